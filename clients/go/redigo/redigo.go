// Package redigo asks through a pool of redigo.
package redigo

import (
	"context"
	"fmt"
	"time"

	"github.com/gomodule/redigo/redis"

	"tokenbucket"
)

// From makes a Doer of a pool. Let it wait for a connection (Wait: true) where MaxActive bounds their number: a pool that
// has none left is to a limiter a server that is away.
func From(pool *redis.Pool) tokenbucket.Doer { return doer{pool} }

type doer struct{ pool *redis.Pool }

// Do gives the connection back in time for the next caller: it reads no longer than the context lasts.
func (d doer) Do(ctx context.Context, args ...any) (any, error) {
	conn, err := d.pool.GetContext(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	name := fmt.Sprint(args[0])
	deadline, ok := ctx.Deadline()
	if !ok {
		return conn.Do(name, args[1:]...)
	}
	left := time.Until(deadline)
	if left <= 0 {
		return nil, context.DeadlineExceeded
	}
	return redis.DoWithTimeout(conn, left, name, args[1:]...)
}
