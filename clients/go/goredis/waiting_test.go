package goredis_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/internal/waitingtest"
)

func TestCallsWaitInTheServer(t *testing.T) {
	doer := func(t testing.TB, address string) tokenbucket.Doer {
		return from(t, redis.NewClient(&redis.Options{
			Addr: address, PoolSize: 2, ReadTimeout: 50 * time.Millisecond, WriteTimeout: 50 * time.Millisecond,
		}))
	}
	waitingtest.Run(t, doer)
}
