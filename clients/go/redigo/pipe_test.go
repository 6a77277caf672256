package redigo_test

import (
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"tokenbucket"
	"tokenbucket/internal/pipetest"
	"tokenbucket/redigo"
)

func TestPipes(t *testing.T) { testPipes(t, func(conn redis.Conn) redis.Conn { return conn }) }

// wrapped is a connection as programs have them that trace or count commands.
type wrapped struct{ redis.ConnWithTimeout }

func TestPipesOfOtherConnections(t *testing.T) {
	testPipes(t, func(conn redis.Conn) redis.Conn { return wrapped{conn.(redis.ConnWithTimeout)} })
}

func testPipes(t *testing.T, wrap func(redis.Conn) redis.Conn) {
	pipetest.Run(t, func(t testing.TB, address string) tokenbucket.Doer {
		dial := func() (redis.Conn, error) {
			conn, err := redis.Dial("tcp", address, redis.DialReadTimeout(time.Second))
			if err != nil {
				return nil, err
			}
			return wrap(conn), nil
		}
		pool := &redis.Pool{MaxIdle: 4, MaxActive: 4, Wait: true, Dial: dial}
		t.Cleanup(func() { pool.Close() })
		return redigo.From(pool)
	})
}
