package redigo_test

import (
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"tokenbucket"
	"tokenbucket/internal/waitingtest"
	"tokenbucket/redigo"
)

func TestCallsWaitInTheServer(t *testing.T) {
	doer := func(t testing.TB, address string) tokenbucket.Doer {
		dial := func() (redis.Conn, error) {
			return redis.Dial("tcp", address, redis.DialReadTimeout(50*time.Millisecond), redis.DialWriteTimeout(50*time.Millisecond))
		}
		pool := &redis.Pool{MaxIdle: 2, MaxActive: 2, Dial: dial}
		t.Cleanup(func() { pool.Close() })
		return redigo.From(pool)
	}
	waitingtest.Run(t, doer)
}
