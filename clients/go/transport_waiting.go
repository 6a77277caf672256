package tokenbucket

import (
	"context"
	"net"
	"strconv"
	"sync/atomic"
	"time"
)

// wait lets the server keep the call until its turn. Where it cannot, it asks again, each time when the last decision says.
func (s *Server) wait(ctx context.Context, c command) (any, error) {
	until := s.clock.Now().Add(c.maxWait)
	c.maxWait = 0
	module := s.nodeOf(c.key)
	_, canWait := module.doer.(WaitingDoer)
	if canWait && !(s.settings.hasScript && isScripted[c.args[0].(string)] && module.usesScript()) {
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
		case (code == "READONLY" || code == "" && isBroken(err)) && !repeated && n.life.Err() == nil:
			repeated = true
			n.lookForModule() // the server may be another
		default:
			return nil, n.judge(c, code == "" && !isUnsent(err), err, n.now())
		}
	}
}

// waiter is a connection for one call at a time that waits in the server. In the pool it would keep other calls from a
// connection, perhaps those that bring the tokens back.
type waiter struct {
	conn Conn
	id   atomic.Int64 // the server's of the connection; 0 while it is unknown, and if this user may not know it
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
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	var used atomic.Pointer[waiter]
	ended := make(chan outcome, 1)
	go func() {
		reply, err := n.sendLong(within, c.first, args, &used)
		n.hear(err)
		ended <- outcome{reply, err}
	}()
	pulse := time.NewTicker(pulseEvery)
	defer pulse.Stop()
	for {
		var err error
		heard := n.heard.Load()
		select {
		case o := <-ended:
			n.keepWaiter(used.Load(), o.err)
			if o.err == nil {
				n.answered()
			}
			return o.reply, o.err
		case <-ctx.Done():
			go n.leave(c, args, &used, ended)
			return nil, ctx.Err()
		case <-n.life.Done():
			err = net.ErrClosed
		case <-pulse.C:
			if !n.isGone(heard) {
				continue
			}
			err = errSilent
		}
		cancel() // before it looks for the connection, see sendLong
		n.keepWaiter(used.Load(), err)
		return nil, err
	}
}

// sendLong tells which connection it uses, so that others can end the wait.
func (n *node) sendLong(ctx context.Context, first, args []any, used *atomic.Pointer[waiter]) (any, error) {
	w := n.takeIdle()
	isNew := w == nil
	if isNew {
		within, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		conn, err := n.doer.(WaitingDoer).Dial(within)
		if err != nil {
			return nil, Unsent(err)
		}
		w = &waiter{conn: conn}
	}
	used.Store(w)
	if ctx.Err() != nil {
		_ = w.conn.Close() // the caller may have gone before it saw the connection
		return nil, Unsent(errLeft)
	}
	if isNew {
		id, err := w.conn.Do("CLIENT", "ID")
		if err != nil && !isServerLine(err) {
			return nil, Unsent(err)
		}
		number, _ := id.(int64)
		w.id.Store(number)
	}
	if first != nil {
		if _, err := w.conn.Do(first...); err != nil && !isServerLine(err) {
			return nil, Unsent(err)
		}
	}
	return w.conn.Do(args...)
}

// isGone asks whether the server is there, if it has said nothing since: calls that wait do not tell.
func (n *node) isGone(heard int64) bool {
	if n.server.settings.timeout <= 0 || n.heard.Load() != heard {
		return false
	}
	if !n.circuit.away.Load() {
		_, _ = n.call(context.Background(), command{args: ping, always: true})
	}
	return n.circuit.away.Load() && n.heard.Load() == heard
}

// leave ends a wait. CLIENT UNBLOCK makes the server reply, so that a grant on its way is read and given back. Where that
// command is not permitted, the connection is closed, and the server loses a grant that it makes at that moment.
func (n *node) leave(c command, args []any, used *atomic.Pointer[waiter], ended <-chan outcome) {
	isClosed := false
	for began := time.Now(); ; {
		if w := used.Load(); w != nil && (isClosed || time.Since(began) > leaveWithin || !n.unblock(w, args)) {
			isClosed = true
			_ = w.conn.Close()
		}
		select {
		case o := <-ended:
			if w := used.Load(); w != nil && !isClosed {
				n.keepWaiter(w, o.err)
			}
			if o.err != nil && !isServerLine(o.err) {
				o.err = &awayError{server: n.who, cause: o.err, mayBeHeld: !isUnsent(o.err)}
			}
			n.server.giveBack(c, o.reply, o.err)
			return
		case <-time.After(leaveAgainAfter):
		}
	}
}

// unblock returns whether the server could be asked, and the connection's id is known. CLIENT UNBLOCK is sent behind a write of the same key on the same
// connection, which a paused server keeps back: most servers before Redis 8.2 and Valkey 9 end if a call is unblocked that
// they keep back because they are paused.
func (n *node) unblock(w *waiter, waiting []any) bool {
	id := w.id.Load()
	if id == 0 {
		return false
	}
	words := []any{"CLIENT", "UNBLOCK", strconv.FormatInt(id, 10)}
	_, err := n.call(context.Background(), command{args: words, first: writesNothing(waiting), always: true})
	return err == nil
}

// takeIdle returns nil if there is none.
func (n *node) takeIdle() *waiter {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	last := len(n.idle) - 1
	if last < 0 {
		return nil
	}
	w := n.idle[last]
	n.idle = n.idle[:last]
	return w
}

// keepWaiter keeps a connection for the next call. If it failed, the server has gone or another is the master: those that are
// idle lead nowhere as well.
func (n *node) keepWaiter(w *waiter, err error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if w != nil {
		n.idle = append(n.idle, w)
	}
	most := cap(n.turns)
	if code := codeOf(err); err != nil && code == "" || code == "READONLY" || n.life.Err() != nil {
		most = 0
	}
	for ; len(n.idle) > most; n.idle = n.idle[1:] {
		_ = n.idle[0].conn.Close()
	}
}

// waitingForm returns the command that waits at most so long for what the given one would be denied. Only those of one bucket
// have shares.
func waitingForm(c command, maxWait time.Duration) []any {
	ms := strconv.FormatInt(upToMs(maxWait).Milliseconds(), 10)
	name, args := c.args[0], c.args[1:]
	switch {
	case name == "TB.MTAKE" && c.share == nil:
		return joined([]any{"TB.BMTAKE", args[0], ms}, args[1:])
	case name == "TB.MHOLD" && c.share == nil:
		return joined([]any{"TB.BMHOLD"}, args[:3], []any{ms}, args[3:])
	case name == "TB.MTAKE":
		return joined([]any{"TB.BTAKE"}, args[1:], []any{ms}, c.share)
	case name == "TB.MHOLD":
		return joined([]any{"TB.BHOLD"}, args[3:], args[1:3], []any{ms}, c.share)
	default:
		return joined([]any{"TB.BTAKE"}, args, []any{ms}, c.share)
	}
}

func joined(lists ...[]any) (all []any) {
	for _, list := range lists {
		all = append(all, list...)
	}
	return all
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
