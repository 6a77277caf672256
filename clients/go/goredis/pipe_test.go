package goredis_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/goredis"
	"tokenbucket/internal/pipetest"
)

func TestPipes(t *testing.T) {
	pipetest.Run(t, func(t testing.TB, address string) tokenbucket.Doer {
		doer, err := goredis.From(redis.NewClient(&redis.Options{Addr: address, PoolSize: 4}))
		if err != nil {
			t.Fatal(err)
		}
		return doer
	})
}
