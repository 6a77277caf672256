package goredis_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/goredis"
	"tokenbucket/internal/waitingtest"
)

func TestCallsWaitInTheServer(t *testing.T) {
	redis.SetLogger(unheard{})
	doer := func(t testing.TB, address string) tokenbucket.Doer {
		doer, err := goredis.From(redis.NewClient(&redis.Options{
			Addr: address, PoolSize: 2, ReadTimeout: 50 * time.Millisecond, WriteTimeout: 50 * time.Millisecond,
		}))
		if err != nil {
			t.Fatal(err)
		}
		return doer
	}
	waitingtest.Run(t, doer)
}
