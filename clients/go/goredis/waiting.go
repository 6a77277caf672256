package goredis

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
)

// waiters are connections for commands that wait in the server. Each is a client of one connection: a command that waits
// shall keep none of the others from a connection, as it may be them that bring the tokens back, and it may have to close its
// own to leave the queue, which go-redis does not let a caller do.
type waiters struct {
	mutex    sync.Mutex
	all      map[*waiter]bool
	idle     []*waiter // the last used at the end
	isClosed bool
}

type waiter struct {
	client *redis.Client

	mutex  sync.Mutex
	conn   net.Conn // nil before it has one
	id     int64    // the server's of the connection; 0 if this user may not know it
	isLeft bool
}

const (
	// leaveWithin is how long the server may take to end a wait.
	leaveWithin = time.Second
	// unblockWithin bounds the time for which a busy pool delays it.
	unblockWithin = 200 * time.Millisecond
	// leaveAgainAfter is how long a command or its reply may be on its way.
	leaveAgainAfter = 50 * time.Millisecond
)

// do sends the command on a connection that no other has, and keeps the connection for the next.
func (w *waiters) do(ctx context.Context, node *redis.Client, args []any, isAsking bool) (any, error) {
	one, err := w.take(node.Options())
	if err != nil {
		return nil, err
	}
	over := make(chan struct{})
	go one.leaveWith(ctx, node, args, over)
	reply, err := one.do(ctx, args, isAsking)
	close(over)
	_, isAnswer := err.(redis.Error)
	switch {
	case ctx.Err() != nil:
		w.close(one)
	case err == nil || isAnswer && !strings.HasPrefix(err.Error(), "READONLY "):
		w.keep(one, node.Options().PoolSize)
	default:
		// The server has gone, or another is the master: those that are idle lead nowhere as well.
		w.close(append(w.takeIdle(), one)...)
	}
	return reply, err
}

func (w *waiters) take(options *redis.Options) (*waiter, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.isClosed {
		return nil, redis.ErrClosed
	}
	if last := len(w.idle) - 1; last >= 0 {
		one := w.idle[last]
		w.idle = w.idle[:last]
		return one, nil
	}
	one := newWaiter(*options)
	if w.all == nil {
		w.all = map[*waiter]bool{}
	}
	w.all[one] = true
	return one, nil
}

func (w *waiters) keep(one *waiter, most int) {
	w.mutex.Lock()
	isKept := !w.isClosed && len(w.idle) < most
	if isKept {
		w.idle = append(w.idle, one)
	}
	w.mutex.Unlock()
	if !isKept {
		w.close(one)
	}
}

func (w *waiters) takeIdle() []*waiter {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	idle := w.idle
	w.idle = nil
	return idle
}

func (w *waiters) close(some ...*waiter) {
	for _, one := range some {
		w.mutex.Lock()
		delete(w.all, one)
		w.mutex.Unlock()
		_ = one.client.Close()
	}
}

func (w *waiters) closeAll() {
	w.mutex.Lock()
	w.isClosed, w.idle = true, nil
	all := make([]*waiter, 0, len(w.all))
	for one := range w.all {
		all = append(all, one)
	}
	w.mutex.Unlock()
	w.close(all...)
}

func newWaiter(options redis.Options) *waiter {
	one := &waiter{}
	dial := options.Dialer
	options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil && !one.has(conn) {
			conn.Close()
			return nil, net.ErrClosed
		}
		return conn, err
	}
	prepare := options.OnConnect
	options.OnConnect = func(ctx context.Context, conn *redis.Conn) error {
		one.isKnownAs(conn.ClientID(ctx).Val())
		if prepare != nil {
			return prepare(ctx, conn)
		}
		return nil
	}
	options.PoolSize, options.MinIdleConns, options.MaxIdleConns = 1, 0, 0
	options.MaxRetries, options.ReadTimeout, options.ContextTimeoutEnabled = -1, -1, true
	one.client = redis.NewClient(separate(&options))
	return one
}

func (w *waiter) has(conn net.Conn) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.conn, w.id = conn, 0
	return !w.isLeft
}

func (w *waiter) isKnownAs(id int64) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.id = id
}

func (w *waiter) do(ctx context.Context, args []any, isAsking bool) (any, error) {
	if !isAsking {
		return w.client.Do(ctx, args...).Result()
	}
	return askOn(ctx, w.client, args)
}

// leaveWith ends the wait when the context ends. CLIENT UNBLOCK makes the server reply, so that a grant on its way is read and
// given back. Where that command is not permitted, it closes its side of the connection: then the server loses a grant that it
// makes at that moment.
func (w *waiter) leaveWith(ctx context.Context, node *redis.Client, args []any, over <-chan struct{}) {
	select {
	case <-over:
		return
	case <-ctx.Done():
	}
	w.mutex.Lock()
	w.isLeft = true
	conn, id := w.conn, w.id
	w.mutex.Unlock()
	for began := time.Now(); id != 0 && time.Since(began) < leaveWithin && unblock(node, id, args); {
		if isOver(over, leaveAgainAfter) {
			return
		}
	}
	if conn == nil || halfClose(conn) != nil || !isOver(over, leaveWithin) {
		_ = w.client.Close()
	}
}

// unblock tells whether the server could be asked.
func unblock(node *redis.Client, id int64, waiting []any) bool {
	ctx, cancel := context.WithTimeout(context.Background(), unblockWithin)
	defer cancel()
	both := node.Pipeline()
	both.Do(ctx, tokenbucket.WritesNothing(waiting)...)
	both.Do(ctx, "CLIENT", "UNBLOCK", id)
	_, err := both.Exec(ctx)
	return err == nil
}

func isOver(over <-chan struct{}, within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-over:
		return true
	case <-timer.C:
		return false
	}
}

func halfClose(conn net.Conn) error {
	if l, ok := conn.(*listening); ok {
		conn = l.Conn
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return conn.Close()
}

// DoWaiting uses a connection of its own.
func (s *single) DoWaiting(ctx context.Context, args ...any) (any, error) {
	return s.waiters.do(ctx, s.client, args, false)
}

// DoWaiting uses a connection of its own to the node that has the key. Where a slot has moved to is known when it returns.
func (c *cluster) DoWaiting(ctx context.Context, args ...any) (any, error) {
	node, unknown := c.client.MasterForKey(ctx, tokenbucket.KeyOf(ctx))
	if unknown != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: unknown} // nothing was sent
	}
	reply, err := c.waitersOf(node).do(ctx, node, args, false)
	move := moveOf(err)
	if move == nil {
		return reply, err
	}
	if !move.isAsk {
		c.learnSlots(ctx)
		return reply, err
	}
	if node, err = c.nodeAt(ctx, move.address); err != nil {
		return nil, err
	}
	return c.waitersOf(node).do(ctx, node, args, true)
}

func (c *cluster) waitersOf(node *redis.Client) *waiters {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	address := node.Options().Addr
	if c.waiters == nil {
		c.waiters = map[string]*waiters{}
	}
	if c.waiters[address] == nil {
		c.waiters[address] = &waiters{isClosed: c.isClosed}
	}
	return c.waiters[address]
}
