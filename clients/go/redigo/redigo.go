// Package redigo asks through a pool of redigo, or through a cluster client on top of it.
package redigo

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/gomodule/redigo/redis"

	"tokenbucket"
)

// Option is a setting of From.
type Option func(*doer)

// Address is the server's name in errors and in the log: a pool does not tell where it dials.
func Address(address string) Option { return func(d *doer) { d.address = address } }

// From makes a Doer of a pool. Its connections stay the pool's: callers wait for one where MaxActive bounds their number.
// Calls with tokenbucket.MaxWait dial connections of their own beside the pool, which the pool does not count. Up to MaxIdle
// of them are kept for the next such calls, until the tokenbucket.Server is closed.
func From(pool *redis.Pool, options ...Option) tokenbucket.Doer {
	d := doer{pool: pool, waiters: &waiters{}}
	for _, option := range options {
		option(&d)
	}
	return d
}

type doer struct {
	pool    *redis.Pool
	address string
	waiters *waiters
}

// Address is for errors.
func (d doer) Address() string { return d.address }

// Connections bounds how many commands are sent at a time.
func (d doer) Connections() int { return d.pool.MaxActive }

// Do replaces connections of an earlier server, and those to a master that has become a replica: an address may lead to
// another server now. A reply of READONLY says that nothing happened.
func (d doer) Do(ctx context.Context, args ...any) (reply any, err error) {
	for stale := d.pool.IdleCount() + 1; ; stale-- {
		if reply, err = d.try(ctx, args); stale == 0 || !mayRepeat(ctx, err) {
			return reply, err
		}
	}
}

func (d doer) try(ctx context.Context, args []any) (any, error) {
	tokenbucket.Connecting(ctx)
	conn, err := d.connection(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return send(ctx, conn, args, "PING")
}

// send asks a connection first, of a command that must happen once: a dead one would take it and lose the reply.
func send(ctx context.Context, conn redis.Conn, args []any, ping ...any) (any, error) {
	if tokenbucket.IsOnce(ctx) {
		if _, err := do(ctx, conn, ping); isBroken(err) {
			return nil, unsent(err)
		}
	}
	if err := tokenbucket.Sent(ctx); err != nil {
		return nil, err
	}
	return do(ctx, conn, args)
}

// connection also waits where the pool does not.
func (d doer) connection(ctx context.Context) (redis.Conn, error) {
	for {
		conn, err := d.pool.GetContext(ctx)
		if !errors.Is(err, redis.ErrPoolExhausted) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// Getter hands out connections that find their node, as *redisc.Cluster of github.com/mna/redisc does.
type Getter interface{ Get() redis.Conn }

// FromCluster makes a Doer of a cluster client. Its connections have a method Bind(keys ...string) error, which tells them
// the key of a command. Give the tokenbucket.Server the option Cluster.
func FromCluster(cluster Getter) tokenbucket.Doer { return clusterDoer{cluster} }

type clusterDoer struct{ cluster Getter }

// A slot that moves back and forth is not followed for ever, nor is a node whose connections end one after the other.
const mostAttempts = 100

// Do follows slots that have moved: the client has noted where to by then, or is about to find out.
func (d clusterDoer) Do(ctx context.Context, args ...any) (reply any, err error) {
	redirected := 0
	for attempt := 0; attempt < mostAttempts && ctx.Err() == nil; attempt++ {
		reply, err = d.try(ctx, args)
		if address := askedAt(err); address != "" && d.mayAsk() {
			return d.ask(ctx, address, args)
		}
		switch {
		case hasMoved(err) && redirected < 3:
			redirected++
		case !mayRepeat(ctx, err):
			return reply, err
		}
	}
	return reply, err
}

func (d clusterDoer) try(ctx context.Context, args []any) (any, error) {
	tokenbucket.Connecting(ctx)
	conn := d.cluster.Get()
	defer conn.Close()
	key := tokenbucket.KeyOf(ctx)
	if err := bind(conn, key); err != nil {
		return nil, err
	}
	return send(ctx, conn, args, "EXISTS", key)
}

// mayRepeat: nothing happened, or it may happen twice.
func mayRepeat(ctx context.Context, err error) bool {
	var operation *net.OpError
	wasUnsent := errors.As(err, &operation) && operation.Op == "dial"
	return isReadOnly(err) || isStale(err) && (wasUnsent || !tokenbucket.IsOnce(ctx))
}

// unsent marks a command that has not left this process.
func unsent(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }

func do(ctx context.Context, conn redis.Conn, args []any) (reply any, err error) {
	name := args[0].(string)
	if deadline, ok := ctx.Deadline(); ok {
		reply, err = redis.DoWithTimeout(conn, time.Until(deadline), name, args[1:]...)
	} else {
		reply, err = conn.Do(name, args[1:]...)
	}
	if isReadOnly(err) {
		// The pool keeps no connection with an error, and this one never has an answer.
		_, _ = redis.ReceiveWithTimeout(conn, time.Nanosecond)
	}
	return reply, err
}

func hasMoved(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "MOVED ") }

func isReadOnly(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "READONLY ") }

// isStale tells the end of a connection that was there.
func isStale(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func isBroken(err error) bool {
	var answer redis.Error
	return err != nil && !errors.As(err, &answer)
}
