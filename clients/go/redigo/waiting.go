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
	idle     []waiter // the last used at the end
	isClosed bool
}

type waiter struct {
	redis.Conn
	id int64 // the server's of the connection; 0 if this user may not know it
}

// take is a connection of an earlier wait, if there is one.
func (w *waiters) take() (one waiter, ok bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	last := len(w.idle) - 1
	if last < 0 {
		return waiter{}, false
	}
	one = w.idle[last]
	w.idle = w.idle[:last]
	return one, true
}

func (w *waiters) keep(one waiter, most int) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.isClosed || len(w.idle) >= most {
		one.Close()
		return
	}
	w.idle = append(w.idle, one)
}

func (w *waiters) closeIdle() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for _, one := range w.idle {
		one.Close()
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
	one, ok := d.waiters.take()
	if !ok {
		conn, err := d.dial(ctx)
		if err != nil {
			return nil, err
		}
		one.Conn = conn
		one.id, _ = redis.Int64(redis.DoWithTimeout(conn, leaveWithin, "CLIENT", "ID"))
	}
	reply, err := doWaiting(ctx, one.Conn, args, func() bool { return d.unblock(one.id, args) })
	switch {
	case isBroken(err) && ctx.Err() == nil, isReadOnly(err):
		one.Close()
		d.waiters.closeIdle() // they lead nowhere as well
	case ctx.Err() != nil || isBroken(err):
		one.Close()
	default:
		d.waiters.keep(one, d.pool.MaxIdle)
	}
	return reply, err
}

// unblock tells whether the server could be asked to end a wait.
func (d doer) unblock(id int64, waiting []any) bool {
	if id == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), unblockWithin)
	defer cancel()
	conn, err := d.pool.GetContext(ctx)
	if err != nil {
		return false
	}
	defer conn.Close()
	first := tokenbucket.WritesNothing(waiting)
	if conn.Send(first[0].(string), first[1:]...) != nil {
		return false
	}
	_, err = do(ctx, conn, []any{"CLIENT", "UNBLOCK", id})
	return err == nil
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
	return doWaiting(ctx, conn, args, func() bool { return false })
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

const (
	// leaveWithin is how long the server may take to end a wait.
	leaveWithin = time.Second
	// unblockWithin bounds the time for which a busy pool delays it.
	unblockWithin = 200 * time.Millisecond
	// leaveAgainAfter is how long a command or its reply may be on its way.
	leaveAgainAfter = 50 * time.Millisecond
)

// doWaiting ends the wait when the context ends. unblock tells the server to do so: a grant that is on its way is then read, so
// that it can be given back. It is lost when the connection is closed, where the server cannot be told.
func doWaiting(ctx context.Context, conn redis.Conn, args []any, unblock func() bool) (any, error) {
	if err := tokenbucket.Sent(ctx); err != nil {
		return nil, err
	}
	over, left := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(left)
		select {
		case <-over:
			return
		case <-ctx.Done():
		}
		for began := time.Now(); time.Since(began) < leaveWithin && unblock(); {
			select {
			case <-over:
				return
			case <-time.After(leaveAgainAfter):
			}
		}
		conn.Close()
	}()
	timeout := time.Duration(0) // none, whatever the connection was dialled with
	if deadline, ok := ctx.Deadline(); ok {
		timeout = time.Until(deadline)
	}
	reply, err := redis.DoWithTimeout(conn, timeout, args[0].(string), args[1:]...)
	close(over)
	<-left
	return reply, err
}
