// Package redigo asks through pools of redigo.
package redigo

import (
	"context"
	"errors"
	"time"

	"github.com/gomodule/redigo/redis"

	"tokenbucket"
)

// Option is a setting of From.
type Option func(*doer)

// Address is the server's name in errors and in the log: a pool does not tell where it dials.
func Address(address string) Option { return func(d *doer) { d.address = address } }

// From makes a Doer of a pool. Its connections stay the pool's: callers wait for one where MaxActive bounds their number.
// Calls with tokenbucket.MaxWait dial connections of their own beside the pool, which the pool does not count.
func From(pool *redis.Pool, options ...Option) tokenbucket.Doer {
	d := &doer{pool: pool}
	for _, option := range options {
		option(d)
	}
	return d
}

type doer struct {
	pool    *redis.Pool
	address string
}

// Address is for errors.
func (d *doer) Address() string { return d.address }

// Connections bounds how many commands are sent at a time.
func (d *doer) Connections() int { return d.pool.MaxActive }

// Idle returns how many connections may lead to an earlier server.
func (d *doer) Idle() int { return d.pool.IdleCount() }

func (d *doer) Do(ctx context.Context, args ...any) (any, error) {
	conn, err := d.connection(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return do(ctx, conn, args)
}

// DoBoth sends both commands on one connection of the pool.
func (d *doer) DoBoth(ctx context.Context, first, second []any) (any, error) {
	conn, err := d.connection(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if _, err := do(ctx, conn, first); err != nil && !isReply(err) {
		return nil, tokenbucket.Unsent(err)
	}
	return do(ctx, conn, second)
}

// connection also waits where the pool does not.
func (d *doer) connection(ctx context.Context) (redis.Conn, error) {
	for {
		conn, err := d.pool.GetContext(ctx)
		if err == nil {
			return conn, nil
		}
		conn.Close()
		if !errors.Is(err, redis.ErrPoolExhausted) {
			return nil, tokenbucket.Unsent(err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

func do(ctx context.Context, conn redis.Conn, args []any) (any, error) {
	name := args[0].(string)
	var timeout time.Duration
	if bounded, ok := ctx.(interface{ Timeout() time.Duration }); ok {
		timeout = bounded.Timeout()
	} else if deadline, ok := ctx.Deadline(); ok {
		timeout = time.Until(deadline)
	} else {
		return conn.Do(name, args[1:]...)
	}
	reply, err := redis.DoWithTimeout(conn, timeout, name, args[1:]...)
	if err != nil && len(err.Error()) > 9 && err.Error()[:9] == "READONLY " {
		// The pool keeps no connection with an error, and this one leads to a former master.
		_, _ = redis.ReceiveWithTimeout(conn, time.Nanosecond)
	}
	return reply, err
}

func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// Dial dials as the pool does.
func (d *doer) Dial(ctx context.Context) (tokenbucket.Conn, error) {
	var dialled redis.Conn
	var err error
	switch {
	case d.pool.DialContext != nil:
		dialled, err = d.pool.DialContext(ctx)
	case d.pool.Dial != nil:
		dialled, err = d.pool.Dial()
	default:
		err = errors.New("redigo: the pool has neither Dial nor DialContext")
	}
	return conn{dialled}, err
}

// conn waits without a timeout, whatever it was dialled with.
type conn struct{ redis.Conn }

func (c conn) Do(args ...any) (any, error) {
	return redis.DoWithTimeout(c.Conn, 0, args[0].(string), args[1:]...)
}

// FromCluster makes a Doer of the nodes of a cluster. poolOf makes the pool of the node at an address, once; the Server
// closes it. The addresses are those of nodes to ask first where the slots are.
func FromCluster(poolOf func(address string) *redis.Pool, first string, more ...string) tokenbucket.Doer {
	c := &cluster{poolOf: poolOf, addresses: append([]string{first}, more...)}
	c.first = c.nodeAt(first)
	return c
}

type cluster struct {
	poolOf    func(address string) *redis.Pool
	addresses []string
	first     node
}

// Do asks the first node.
func (c *cluster) Do(ctx context.Context, args ...any) (any, error) { return c.first.Do(ctx, args...) }

func (c *cluster) Addresses() []string { return c.addresses }

func (c *cluster) Node(address string) tokenbucket.Doer {
	if address == c.addresses[0] {
		return c.first
	}
	return c.nodeAt(address)
}

func (c *cluster) nodeAt(address string) node {
	return node{&doer{pool: c.poolOf(address), address: address}}
}

// node closes its pool.
type node struct{ *doer }

func (n node) Close() error { return n.pool.Close() }
