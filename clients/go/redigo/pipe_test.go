package redigo_test

import (
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"tokenbucket"
	"tokenbucket/internal/pipetest"
	"tokenbucket/redigo"
)

func TestPipes(t *testing.T) {
	pipetest.Run(t, func(t testing.TB, address string) tokenbucket.Doer {
		dial := func() (redis.Conn, error) { return redis.Dial("tcp", address, redis.DialReadTimeout(time.Second)) }
		pool := &redis.Pool{MaxIdle: 4, MaxActive: 4, Wait: true, Dial: dial}
		t.Cleanup(func() { pool.Close() })
		return redigo.From(pool)
	})
}
