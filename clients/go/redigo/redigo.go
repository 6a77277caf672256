// Package redigo asks through a pool of redigo, or through a cluster client on top of it.
package redigo

import (
	"context"
	"fmt"
	"strings"
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
	return do(ctx, conn, args)
}

// Getter hands out connections that find their node, as *redisc.Cluster of github.com/mna/redisc does.
type Getter interface{ Get() redis.Conn }

// FromCluster makes a Doer of a cluster client. Its connections have a method Bind(keys ...string) error, by which they are
// told the key: they would take the first argument for it. Give the tokenbucket.Server the option Cluster.
func FromCluster(cluster Getter) tokenbucket.Doer { return clusterDoer{cluster} }

type clusterDoer struct{ cluster Getter }

// A slot that moves back and forth is not followed for ever.
const mostRedirections = 3

// Do follows slots that have moved: the client has noted where to by then, or is about to find out.
func (d clusterDoer) Do(ctx context.Context, args ...any) (reply any, err error) {
	for redirected := 0; redirected <= mostRedirections && ctx.Err() == nil; redirected++ {
		if reply, err = d.once(ctx, args); !hasMoved(err) {
			return reply, err
		}
	}
	return reply, err
}

func (d clusterDoer) once(ctx context.Context, args []any) (any, error) {
	conn := d.cluster.Get()
	defer conn.Close()
	if position := tokenbucket.KeyPosition(args...); position > 0 {
		bound, ok := conn.(interface{ Bind(keys ...string) error })
		if !ok {
			return nil, fmt.Errorf("redigo: %T has no method Bind", conn)
		}
		if err := bound.Bind(fmt.Sprint(args[position])); err != nil {
			return nil, err
		}
	}
	return do(ctx, conn, args)
}

func hasMoved(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "MOVED ") }

func do(ctx context.Context, conn redis.Conn, args []any) (any, error) {
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
