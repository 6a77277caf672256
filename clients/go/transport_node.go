package tokenbucket

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// node is one server, or one node of a cluster, and what is known about it.
//
// A call runs in its caller's goroutine, in this order: circuit, turn, connection, command, judgement. It ends when the
// client library's deadline does, so that a caller whose context ends earlier need not cut it short.
type node struct {
	server  *Server
	doer    Doer
	address string // of a cluster's node
	who     string
	circuit circuit
	script  script
	turns   chan struct{} // bounds the calls that are with the client at a time
	isThere atomic.Bool   // it has replied since it was last away
	heard   atomic.Int64  // how many replies there were
	life    context.Context
	end     context.CancelFunc

	mutex   sync.Mutex
	attempt *attempt  // to open a connection, if one is under way
	idle    []*waiter // connections for calls that wait, the last used at the end
}

const (
	// mostTurns keeps a flood of calls from opening a flood of connections.
	mostTurns = 64
	// connectTimeout bounds opening a connection. Callers wait for it no longer than Timeout.
	connectTimeout = time.Second
	// A call that alone is late is sent so often, if that takes no longer.
	triesOfLate  = 10
	repeatWithin = time.Second
)

var ping = []any{"PING"}

func newNode(s *Server, doer Doer, who string) *node {
	turns := mostTurns
	if bounded, ok := doer.(interface{ Connections() int }); ok {
		if most := bounded.Connections(); most > 0 && most < turns {
			turns = most
		}
	}
	life, end := context.WithCancel(context.Background())
	return &node{server: s, doer: doer, who: who, turns: make(chan struct{}, turns), life: life, end: end}
}

// call returns the reply, an *awayError, or the error of a call that is wrong. A redirection is returned as it is.
func (n *node) call(ctx context.Context, c command) (any, error) {
	probing, admitted := n.admits()
	if !admitted && !c.always {
		return nil, &awayError{server: n.who, cause: errCircuitOpen}
	}
	if !n.server.synchronous {
		if err := n.takeTurn(ctx); err != nil {
			return nil, err
		}
		defer func() { <-n.turns }()
		if !probing && !c.always && n.circuit.away.Load() {
			return nil, &awayError{server: n.who, cause: errCircuitOpen}
		}
	}
	if probing {
		n.lookForModule() // the server may be another
	}
	began := n.now()
	var reply any
	isSent, err := false, n.connect(probing)
	if err == nil {
		reply, isSent, err = n.exchange(ctx, c, began)
		if ended := ctx.Err(); ended != nil && err != nil && !isSent {
			return nil, ended // the caller's end says nothing about the server
		}
	}
	return reply, n.judge(c, isSent, err, began)
}

func (n *node) takeTurn(ctx context.Context) error {
	select {
	case n.turns <- struct{}{}:
		return nil
	default:
	}
	select {
	case n.turns <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// connect opens a connection, unless the node has replied since it was last away. One call does so for all: on a cold start
// they would keep each other from being answered in time.
func (n *node) connect(probing bool) error {
	timeout := n.server.settings.timeout
	if n.server.synchronous || timeout <= 0 || n.isThere.Load() && !probing {
		return nil
	}
	n.mutex.Lock()
	if n.attempt == nil {
		n.attempt = &attempt{}
	}
	current := n.attempt
	n.mutex.Unlock()
	current.Do(func() {
		current.err = n.open(timeout)
		n.mutex.Lock()
		n.attempt = nil
		n.mutex.Unlock()
	})
	return current.err
}

// attempt is to open a connection.
type attempt struct {
	sync.Once
	err error
}

// open lets the client library connect in the background, so that callers wait no longer than the timeout. A connection that
// comes later serves later calls.
func (n *node) open(timeout time.Duration) error {
	opened := make(chan error, 1)
	go func() {
		within, cancel := context.WithTimeout(context.Background(), connectTimeout)
		defer cancel()
		_, err := n.doer.Do(within, ping...)
		if n.hear(err) {
			err = nil // the command learns whether the server decides
		}
		opened <- err
	}()
	for first := time.Now(); ; {
		began := n.now()
		select {
		case err := <-opened:
			if err != nil {
				return Unsent(err)
			}
			n.isThere.Store(true)
			return nil
		case <-time.After(timeout):
		}
		if n.wasSilent(began) || time.Since(first) > connectTimeout {
			return Unsent(errSilent)
		}
	}
}

// exchange sends the command. It repeats what had no effect, and what may happen twice: on other connections when one has
// ended or leads to a former master, and for a while when this call alone was late. isSent says that the server may have
// executed it although the reply is lost.
func (n *node) exchange(ctx context.Context, c command, began moment) (reply any, isSent bool, err error) {
	bounded := ctx
	if timeout := n.server.settings.timeout; timeout > 0 && !n.server.synchronous {
		bounded = callContext{ctx, timeout}
	}
	stale := -1
	for sent, tries := began, 1; ; sent, tries = n.now(), tries+1 {
		reply, err = n.send(bounded, c)
		replied := n.hear(err)
		if err == nil {
			return reply, true, nil
		}
		if !replied && !isUnsent(err) && (ctx.Err() == nil || !errors.Is(err, ctx.Err())) {
			isSent = true
		}
		switch {
		case codeOf(err) == "READONLY", !replied && isBroken(err) && (!c.once || isUnsent(err)):
			if stale < 0 {
				n.lookForModule() // the server may be another
				stale = 1 + n.idleConnections()
			}
			if stale == 0 || ctx.Err() != nil {
				return nil, isSent, err
			}
			stale--
		case !isTimeout(err) || c.once || ctx.Err() != nil || n.wasSilent(sent),
			tries >= triesOfLate || time.Since(began.at) >= repeatWithin:
			return nil, isSent, err
		}
	}
}

func (n *node) send(ctx context.Context, c command) (any, error) {
	first := c.first
	if first == nil && c.once {
		first = ping
	}
	if ordered, ok := n.doer.(OrderedDoer); ok && first != nil {
		return ordered.DoBoth(ctx, first, c.args)
	}
	return n.doer.Do(ctx, c.args...)
}

func (n *node) idleConnections() int {
	if counting, ok := n.doer.(interface{ Idle() int }); ok {
		return counting.Idle()
	}
	return 0
}

// hear returns whether the node has said something, and notes that.
func (n *node) hear(err error) bool {
	if err != nil && !isServerLine(err) {
		return false
	}
	n.heard.Add(1)
	return true
}

// moment is what was known when something began.
type moment struct {
	at    time.Time
	heard int64
}

func (n *node) now() moment { return moment{time.Now(), n.heard.Load()} }

// wasSilent returns whether the node said nothing to any call since then. A process that looks later than after the
// timeout had no processor, so it may not have read what had arrived.
func (n *node) wasSilent(since moment) bool {
	runtime.Gosched() // timers overtake what is ready to run: behind that, other replies that have arrived are read
	timeout := n.server.settings.timeout
	return !n.hasHeard(since) && time.Since(since.at) < timeout+timeout/4+time.Millisecond
}

// hasHeard returns whether the node has said anything since then.
func (n *node) hasHeard(since moment) bool {
	if connecting, ok := n.doer.(interface{ Connected() time.Time }); ok && connecting.Connected().After(since.at) {
		return true
	}
	return n.heard.Load() != since.heard
}

// judge tells the circuit how a call ended.
func (n *node) judge(c command, isSent bool, err error, began moment) error {
	s := n.server
	fault := faultOf(err)
	switch {
	case err != nil && s.closed.Load():
		return ErrClosed
	case err == nil:
		n.answered()
		return nil
	case s.moveOf(err) != nil || isSplitSlot(err):
		n.answered()
		return err
	case fault == faultOfCaller:
		n.answered()
		return n.wrong(err)
	case fault == faultOfWrite || isTimeout(err) && n.hasHeard(began):
		n.refused(err)
	default:
		n.failed(err)
	}
	return &awayError{server: n.who, cause: err, lost: c.once && isSent, mayBeHeld: isSent}
}

// callContext is the caller's context, with a deadline that begins when it is asked for: time in a queue is not silence.
type callContext struct {
	context.Context
	timeout time.Duration
}

func (c callContext) Deadline() (time.Time, bool) { return time.Now().Add(c.timeout), true }

func (c callContext) Timeout() time.Duration { return c.timeout }

// Unsent marks the error of a command that did not leave this process.
func Unsent(err error) error { return &unsentError{err} }

type unsentError struct{ cause error }

func (e *unsentError) Error() string { return e.cause.Error() }
func (e *unsentError) Unwrap() error { return e.cause }

// isUnsent returns whether the command never left this process.
func isUnsent(err error) bool {
	var unsent *unsentError
	var operation *net.OpError
	return errors.As(err, &unsent) || errors.As(err, &operation) && operation.Op == "dial"
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, errSilent) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &timeout) && timeout.Timeout()
}
