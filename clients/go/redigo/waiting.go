package redigo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"tokenbucket"
)

// waiters are connections beside the pool's, for commands that wait in the server. In a pool they would keep others from a
// connection, and it may be those that bring the tokens back.
type waiters struct {
	mutex    sync.Mutex
	idle     []redis.Conn // the last used at the end
	isClosed bool
}

// take is a connection of an earlier wait; nil if there is none.
func (w *waiters) take() redis.Conn {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	last := len(w.idle) - 1
	if last < 0 {
		return nil
	}
	conn := w.idle[last]
	w.idle = w.idle[:last]
	return conn
}

func (w *waiters) keep(conn redis.Conn, most int) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.isClosed || len(w.idle) >= most {
		conn.Close()
		return
	}
	w.idle = append(w.idle, conn)
}

func (w *waiters) closeIdle() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for _, conn := range w.idle {
		conn.Close()
	}
	w.idle = nil
}

// Close closes the connections of calls that waited. The pool is the caller's.
func (d doer) Close() error {
	d.waiters.mutex.Lock()
	d.waiters.isClosed = true
	d.waiters.mutex.Unlock()
	d.waiters.closeIdle()
	return nil
}

// DoWaiting dials as the pool does, and keeps as many idle connections as the pool.
func (d doer) DoWaiting(ctx context.Context, args ...any) (any, error) {
	tokenbucket.Connecting(ctx)
	conn := d.waiters.take()
	if conn == nil {
		var err error
		if conn, err = d.dial(ctx); err != nil {
			return nil, err
		}
	}
	reply, err := doWaiting(ctx, conn, args)
	switch {
	case isBroken(err) && ctx.Err() == nil, isReadOnly(err):
		conn.Close()
		d.waiters.closeIdle() // they lead nowhere as well
	case ctx.Err() != nil || isBroken(err):
		conn.Close()
	default:
		d.waiters.keep(conn, d.pool.MaxIdle)
	}
	return reply, err
}

func (d doer) dial(ctx context.Context) (redis.Conn, error) {
	switch {
	case d.pool.DialContext != nil:
		return d.pool.DialContext(ctx)
	case d.pool.Dial != nil:
		return d.pool.Dial()
	}
	return nil, errors.New("redigo: the pool has neither Dial nor DialContext")
}

// DoWaiting dials beside the pools where the client can, as *redisc.Cluster does with its DialOptions.
func (d clusterDoer) DoWaiting(ctx context.Context, args ...any) (any, error) {
	tokenbucket.Connecting(ctx)
	var conn redis.Conn
	if dialer, ok := d.cluster.(interface{ Dial() (redis.Conn, error) }); ok {
		var err error
		if conn, err = dialer.Dial(); err != nil {
			return nil, err
		}
	} else {
		conn = d.cluster.Get()
	}
	defer conn.Close()
	if err := bind(conn, tokenbucket.KeyOf(ctx)); err != nil {
		return nil, err
	}
	return doWaiting(ctx, conn, args)
}

func bind(conn redis.Conn, key string) error {
	if key == "" {
		return nil
	}
	bound, ok := conn.(interface{ Bind(keys ...string) error })
	if !ok {
		return fmt.Errorf("redigo: %T has no method Bind", conn)
	}
	if err := bound.Bind(key); err != nil {
		return unsent(err)
	}
	return nil
}

// doWaiting closes the connection when the context ends: redigo lets nobody close one side of it alone.
func doWaiting(ctx context.Context, conn redis.Conn, args []any) (any, error) {
	if err := tokenbucket.Sent(ctx); err != nil {
		return nil, err
	}
	over, closed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(closed)
		select {
		case <-over:
		case <-ctx.Done():
			conn.Close()
		}
	}()
	timeout := time.Duration(0) // none, whatever the connection was dialled with
	if deadline, ok := ctx.Deadline(); ok {
		timeout = time.Until(deadline)
	}
	reply, err := redis.DoWithTimeout(conn, timeout, args[0].(string), args[1:]...)
	close(over)
	<-closed
	return reply, err
}
