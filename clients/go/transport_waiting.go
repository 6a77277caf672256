package tokenbucket

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// wait lets the server keep the call until its turn. Where it cannot, it asks again, each time when the last decision says.
func (s *Server) wait(ctx context.Context, c command) (any, error) {
	until := s.clock.Now().Add(c.maxWait)
	c.maxWait = 0
	module := s.nodeOf(c.key)
	_, canWait := module.doer.(WaitingDoer)
	if canWait && !(s.settings.hasScript && isScripted[c.args[0].(string)] && module.script.inUse(s.clock)) {
		waiting := c
		waiting.until = until
		reply, err := s.route(ctx, waiting)
		if !isUnknownCommand(err) {
			return reply, err
		}
	}
	for {
		reply, err := s.ask(ctx, c)
		if err != nil {
			return nil, err
		}
		decision, err := parseDecision(reply)
		left := until.Sub(s.clock.Now())
		if err != nil || decision.Allowed || decision.RetryAfter == Never || left <= 0 {
			return reply, nil
		}
		pause := decision.RetryAfter
		if pause < time.Millisecond {
			pause = time.Millisecond
		}
		if pause > left {
			pause = left
		}
		if err := s.clock.Sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// callLong lets the server keep the call. It sends it again, with the time that is left, when the server can keep it no
// longer, and once when the connection has ended or leads to a former master.
func (n *node) callLong(ctx context.Context, c command) (any, error) {
	for repeated := false; ; {
		if n.circuit.away.Load() {
			// A call that waits would not tell for long whether the server is back.
			if _, err := n.call(ctx, command{args: ping}); err != nil {
				return nil, err
			}
		}
		left := c.until.Sub(n.server.clock.Now())
		if left < 0 {
			left = 0
		}
		reply, err := n.wait(ctx, c, waitingForm(c, left))
		code := codeOf(err)
		switch {
		case ctx.Err() != nil || err == nil:
			return reply, err
		case code == "UNBLOCKED":
		case (code == "READONLY" || code == "" && isBroken(err)) && !repeated:
			repeated = true
			n.script.lookForModule() // the server may be another
		default:
			return nil, n.judge(c, code == "" && !isUnsent(err), err, time.Now())
		}
	}
}

// waiter is a connection for one call at a time that waits in the server. In the pool it would keep other calls from a
// connection, perhaps those that bring the tokens back.
type waiter struct {
	node *node

	mutex  sync.Mutex
	conn   Conn  // nil before it has one
	id     int64 // the server's of the connection; 0 if this user may not know it
	isLeft bool
}

// outcome is how a call that waited ended.
type outcome struct {
	reply any
	err   error
}

const (
	// leaveWithin is how long the server may take to end a wait.
	leaveWithin = time.Second
	// leaveAgainAfter is how long a command or its reply may be on its way.
	leaveAgainAfter = 50 * time.Millisecond
	// pulseEvery is how often the server is asked whether it is there if nothing was heard from it.
	pulseEvery = 500 * time.Millisecond
)

// wait returns when the server replies, when the context ends, or when the server is silent to everybody.
func (n *node) wait(ctx context.Context, c command, args []any) (any, error) {
	w := n.takeWaiter()
	if w == nil {
		return nil, net.ErrClosed
	}
	ended := make(chan outcome, 1)
	go func() {
		reply, err := w.do(c.first, args)
		if err == nil || isServerLine(err) {
			n.hear()
		}
		ended <- outcome{reply, err}
	}()
	pulse := time.NewTicker(pulseEvery)
	defer pulse.Stop()
	for {
		select {
		case o := <-ended:
			n.keepWaiter(w, o.err)
			if o.err == nil {
				n.answered()
			}
			return o.reply, o.err
		case <-ctx.Done():
			go n.leave(c, w, args, ended)
			return nil, ctx.Err()
		case <-pulse.C:
			if n.isGone() {
				n.keepWaiter(w, errSilent)
				return nil, errSilent
			}
		}
	}
}

// isGone asks whether the server is there: calls that wait do not tell.
func (n *node) isGone() bool {
	isQuiet := func() bool { return time.Since(started)-time.Duration(n.heard.Load()) >= pulseEvery }
	if n.server.settings.timeout <= 0 || !isQuiet() {
		return false
	}
	if !n.circuit.away.Load() {
		_, _ = n.call(context.Background(), command{args: ping, always: true})
	}
	return n.circuit.away.Load() && isQuiet()
}

// leave ends a wait. CLIENT UNBLOCK makes the server reply, so that a grant on its way is read and given back. Where that
// command is not permitted, the connection is closed, and the server loses a grant that it makes at that moment.
func (n *node) leave(c command, w *waiter, args []any, ended <-chan outcome) {
	id := w.leave()
	for began := time.Now(); id != 0 && time.Since(began) < leaveWithin && n.unblock(id, args); {
		select {
		case o := <-ended:
			n.keepWaiter(w, o.err)
			n.giveBackLate(c, o)
			return
		case <-time.After(leaveAgainAfter):
		}
	}
	w.close()
	o := <-ended
	n.mutex.Lock()
	n.drop([]*waiter{w})
	n.mutex.Unlock()
	n.giveBackLate(c, o)
}

func (n *node) giveBackLate(c command, o outcome) {
	err := o.err
	if err != nil && !isServerLine(err) {
		err = &awayError{server: n.who, cause: err, mayBeHeld: !isUnsent(err)}
	}
	n.server.giveBack(c, o.reply, err)
}

// unblock returns whether the server could be asked. CLIENT UNBLOCK is sent behind a write of the same key on the same
// connection, which a paused server keeps back: most servers before Redis 8.2 and Valkey 9 end if a call is unblocked that
// they keep back because they are paused.
func (n *node) unblock(id int64, waiting []any) bool {
	words := []any{"CLIENT", "UNBLOCK", strconv.FormatInt(id, 10)}
	_, err := n.call(context.Background(), command{args: words, first: writesNothing(waiting), always: true})
	return err == nil
}

// takeWaiter returns nil if the connections were closed.
func (n *node) takeWaiter() *waiter {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.isClosed {
		return nil
	}
	if last := len(n.idle) - 1; last >= 0 {
		w := n.idle[last]
		n.idle = n.idle[:last]
		return w
	}
	w := &waiter{node: n}
	if n.waiters == nil {
		n.waiters = map[*waiter]bool{}
	}
	n.waiters[w] = true
	return w
}

// keepWaiter keeps a connection for the next call. If it failed, the server has gone or another is the master: those that are
// idle lead nowhere as well.
func (n *node) keepWaiter(w *waiter, err error) {
	code := codeOf(err)
	n.mutex.Lock()
	defer n.mutex.Unlock()
	switch {
	case err != nil && code == "" || code == "READONLY":
		n.drop(append(n.idle, w))
		n.idle = nil
	case n.isClosed || len(n.idle) >= cap(n.turns):
		n.drop([]*waiter{w})
	default:
		w.stay()
		n.idle = append(n.idle, w)
	}
}

// drop is called under the mutex.
func (n *node) drop(some []*waiter) {
	for _, w := range some {
		w.close()
		delete(n.waiters, w)
	}
}

// closeWaiters ends the waits of all calls.
func (n *node) closeWaiters() {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.isClosed, n.idle = true, nil
	for w := range n.waiters {
		w.close()
	}
	n.waiters = nil
}

func (w *waiter) do(first, args []any) (any, error) {
	if err := w.connect(); err != nil {
		return nil, err
	}
	if first != nil {
		if _, err := w.conn.Do(first...); err != nil && !isServerLine(err) {
			return nil, Unsent(err)
		}
	}
	return w.conn.Do(args...)
}

// connect opens the connection and learns its id, unless it has both or the caller has gone meanwhile.
func (w *waiter) connect() error {
	if err := w.change(func() {}); err != nil || w.conn != nil {
		return err
	}
	within, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	conn, err := w.node.doer.(WaitingDoer).Dial(within)
	if err != nil {
		return Unsent(err)
	}
	if err := w.change(func() { w.conn = conn }); err != nil {
		return err
	}
	id, err := conn.Do("CLIENT", "ID")
	if err != nil && !isServerLine(err) {
		return Unsent(err)
	}
	return w.change(func() { w.id, _ = id.(int64) })
}

// change returns an error if the caller has gone.
func (w *waiter) change(do func()) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	do()
	if w.isLeft {
		return Unsent(errLeft)
	}
	return nil
}

// leave returns the connection's id if a command may have been sent on it that CLIENT UNBLOCK ends.
func (w *waiter) leave() (id int64) {
	_ = w.change(func() { w.isLeft, id = true, w.id })
	return id
}

// stay lets another call use the connection.
func (w *waiter) stay() { _ = w.change(func() { w.isLeft = false }) }

func (w *waiter) close() {
	_ = w.change(func() {
		w.isLeft = true
		if w.conn != nil {
			_ = w.conn.Close()
		}
	})
}

// maxWaitPositions tell where max_wait_ms stands in the commands that wait; in others, at the end.
var maxWaitPositions = map[any]int{"TB.MTAKE": 2, "TB.MHOLD": 4}

// waitingForm returns the command that waits at most so long for what the given one would be denied. Only those of one bucket
// have shares.
func waitingForm(c command, maxWait time.Duration) []any {
	args := c.args
	if c.share != nil {
		args = alone(args)
	}
	position, ok := maxWaitPositions[args[0]]
	if !ok {
		position = len(args)
	}
	words := make([]any, 0, len(args)+5)
	words = append(words, "TB.B"+strings.TrimPrefix(args[0].(string), "TB."))
	words = append(words, args[1:position]...)
	words = append(words, strconv.FormatInt(upToMs(maxWait).Milliseconds(), 10))
	return append(append(words, args[position:]...), c.share...)
}

// alone returns the form of one bucket of a joint command that has one.
func alone(args []any) []any {
	switch args[0] {
	case "TB.MTAKE":
		return append([]any{"TB.TAKE"}, args[2:]...)
	case "TB.MHOLD":
		return append(append([]any{"TB.HOLD"}, args[4:]...), args[2], args[3])
	}
	return args
}

// writesNothing returns a write of the same name and key as a command that waits, which changes nothing.
func writesNothing(waiting []any) []any {
	switch waiting[0] {
	case "TB.BMTAKE":
		return []any{"TB.BMTAKE", "1", "0", waiting[3], "0", "1", "0"}
	case "TB.BMHOLD":
		return []any{"TB.BMHOLD", "1", "1", "none", "0", waiting[5], "0", "0", "0"}
	case "TB.BHOLD":
		return []any{"TB.BHOLD", waiting[1], "0", "0", "0", "1", "none", "0"}
	default:
		return []any{"TB.BTAKE", waiting[1], "0", "1", "0", "0"}
	}
}
