package tokenbucket

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// lane leads to one server, or to one node of a cluster. It bounds how many calls are with the client at a time, and
// watches for the server's silence.
type lane struct {
	server  *Server
	who     string
	circuit circuit
	script  script

	awake atomic.Int64 // the lane's clock: see watch
	heard atomic.Int64 // by that clock: when the server was last heard

	mutex       sync.Mutex
	first, last *call // those under way, the oldest first
	queue       []*call
	idle        []chan *call // of workers that wait for a call
	workers     int
	isWatched   bool
	pinged      int64 // by the lane's clock: when the server was last asked for those that wait
	hadCall     bool  // since the watch last looked

	pipe          *pipe // nil: workers send everything
	isOpeningPipe bool
	nextPipe      int64 // by the lane's clock: when one may be opened again
	unpiped       int   // calls of workers that a pipe could have carried
}

// mostWorkers bounds the calls that are with the client at a time, so that a flood opens no flood of connections.
const mostWorkers = 64

// connectTimeout is how long opening a connection may take.
const connectTimeout = time.Second

func (l *lane) synchronous() bool { return l.server.synchronous }

// longest is how long a call may take while others are answered.
func (l *lane) longest() time.Duration {
	if longest := 10 * l.server.settings.timeout; longest > time.Second {
		return longest
	}
	return time.Second
}

func (l *lane) hear() { l.heard.Store(l.awake.Load()) }

// run returns the reply, or goes on without it when the server is away or the caller's context ends. The call itself
// goes on.
func (l *lane) run(ctx context.Context, c *call) (any, error) {
	if l.synchronous() {
		c.reply, c.err = l.server.perform(c)
		l.report(c, false)
		return c.reply, c.err
	}
	c.ready = make(chan struct{}, 1)
	if pipe := l.submit(c); pipe != nil {
		pipe.lead(ctx)
	}
	if done := ctx.Done(); done == nil {
		<-c.ready
	} else {
		select {
		case <-c.ready:
		case <-done:
			if l.leave(c) {
				return nil, ctx.Err()
			}
		}
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if !c.released {
		return c.reply, c.err
	}
	return nil, c.awayError(errSilent)
}

// leave tells whether the caller went before the reply came.
func (l *lane) leave(c *call) bool {
	l.mutex.Lock()
	if c.finished || c.released {
		l.mutex.Unlock()
		return false
	}
	c.released = true
	if c.maxWait > 0 {
		l.drop(c) // it leaves the server's queue
	}
	l.mutex.Unlock()
	c.decide(undone)
	return true
}

// submit returns the pipe on which the caller has to call lead, if any.
func (l *lane) submit(c *call) *pipe {
	l.mutex.Lock()
	c.since = l.awake.Load()
	l.append(c)
	if !l.isWatched && l.server.settings.timeout > 0 {
		l.isWatched = true
		go l.watch()
	}
	if l.pipe == nil || !c.mayBePiped() {
		l.hand(c)
		l.mutex.Unlock()
		return nil
	}
	pipe := l.pipe
	c.pipe, c.phase = pipe, sent
	l.mutex.Unlock()
	isSent, isFirst := pipe.send(c)
	if isFirst {
		return pipe
	}
	if isSent {
		return nil
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	c.pipe, c.phase = nil, queued
	if !c.dropped {
		l.hand(c)
	}
	return nil
}

// hand lets a worker send the call.
func (l *lane) hand(c *call) {
	switch {
	case c.needsNoWorker():
		go func() { l.do(c) }()
	case len(l.idle) > 0:
		wake := l.idle[len(l.idle)-1]
		l.idle = l.idle[:len(l.idle)-1]
		wake <- c
	case l.workers < l.server.mostWorkers:
		l.workers++
		go l.work(c)
	default:
		l.queue = append(l.queue, c)
	}
}

// needsNoWorker: it bounds nobody's way to the server, as it has a connection of its own or goes where no other does.
func (c *call) needsNoWorker() bool { return c.aside || c.maxWait > 0 }

func (l *lane) work(c *call) {
	wake := make(chan *call, 1)
	for {
		wasDropped := l.do(c)
		l.mutex.Lock()
		if wasDropped {
			l.mutex.Unlock() // another worker has its place
			return
		}
		if c = l.pop(); c == nil {
			if !l.isWatched { // nobody would end it
				l.workers--
				l.mutex.Unlock()
				return
			}
			l.idle = append(l.idle, wake)
			l.mutex.Unlock()
			if c = <-wake; c == nil {
				return
			}
			continue
		}
		l.mutex.Unlock()
	}
}

// pop is the next call that somebody still waits for.
func (l *lane) pop() *call {
	for len(l.queue) > 0 {
		c := l.queue[0]
		l.queue[0] = nil
		l.queue = l.queue[1:]
		if !c.released {
			return c
		}
		l.remove(c)
	}
	return nil
}

func (l *lane) do(c *call) (wasDropped bool) {
	l.mutex.Lock()
	if c.released {
		if !c.dropped {
			l.remove(c)
		}
		l.mutex.Unlock()
		l.circuit.abandoned(c.probing)
		return false
	}
	c.phase, c.since = sent, l.awake.Load()
	l.mutex.Unlock()

	reply, err := l.server.perform(c)
	if err == nil {
		l.openPipeIfDue(c)
	}
	return l.finish(c, reply, err)
}

func (l *lane) finish(c *call, reply any, err error) (wasDropped bool) {
	l.mutex.Lock()
	c.reply, c.err, c.finished = reply, err, true
	wasDropped = c.dropped
	if !wasDropped {
		l.remove(c)
	}
	late := c.released
	l.mutex.Unlock()
	l.report(c, wasDropped)
	if late {
		c.giveBack()
	} else {
		c.ready <- struct{}{}
	}
	return wasDropped
}

func (l *lane) append(c *call) {
	l.hadCall = true
	if c.prev = l.last; c.prev == nil {
		l.first = c
	} else {
		c.prev.next = c
	}
	l.last = c
}

func (l *lane) remove(c *call) {
	if c.prev == nil {
		l.first = c.next
	} else {
		c.prev.next = c.next
	}
	if c.next == nil {
		l.last = c.prev
	} else {
		c.next.prev = c.prev
	}
	c.next, c.prev = nil, nil
}

// looks is how often the watch looks in the time that a server may be silent.
const (
	looks        = 8
	mostInterval = 50 * time.Millisecond
)

// idleLooks is after how many looks without a call the watch ends, and the workers with it.
const idleLooks = 100

// watch decides that the server is silent. Its clock counts at most one interval a look: time in which this process got
// no processor, and so could not read what had arrived, is not the server's silence.
func (l *lane) watch() {
	interval := l.interval()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for idle := 0; ; {
		<-ticker.C
		// Timers overtake what is ready to run. Behind all of that, a reply that has arrived is read by now.
		runtime.Gosched()
		l.mutex.Lock()
		l.awake.Store(l.awake.Load() + int64(interval))
		if l.first != nil || l.hadCall {
			idle = 0
		} else if idle++; idle >= idleLooks {
			l.stopWorkers()
			l.mutex.Unlock()
			return
		}
		l.hadCall = false
		failure := l.look()
		unheard, isDue := l.pingIsDue()
		l.mutex.Unlock()
		if isDue {
			go l.ping(unheard)
		}
		if failure != nil {
			l.fail(failure)
		}
	}
}

func (l *lane) interval() time.Duration {
	if interval := l.server.settings.timeout/looks + 1; interval < mostInterval {
		return interval
	}
	return mostInterval
}

func (l *lane) stopWorkers() {
	l.isWatched = false
	for _, wake := range l.idle {
		close(wake)
	}
	l.workers -= len(l.idle)
	l.idle = nil
	l.retirePipe(l.pipe)
}

// look releases the callers whose time is over. The error says why the server is away, if it is.
func (l *lane) look() (failure error) {
	now, longest := l.awake.Load(), int64(l.longest())
	timeout := int64(l.server.settings.timeout + l.interval()) // a call may have begun just before a look
	for c := l.first; c != nil; {
		next := c.next
		if c.pipe != nil {
			c.pipe.interruptLeader()
		}
		due := c.since
		if c.phase == sent {
			due += c.left
		}
		quiet, age := now-later(due, l.heard.Load()), now-due
		switch {
		case c.isKept(now) && l.circuit.away.Load() && now-later(c.since, l.heard.Load()) >= longest:
			l.release(c)
			l.drop(c)
		case c.phase == sent && age >= longest:
			l.release(c)
			l.drop(c)
		case c.phase == connecting && age >= int64(connectTimeout) && quiet >= int64(connectTimeout):
			l.release(c)
			l.drop(c)
			failure = errConnecting
		case quiet >= timeout && !c.released && (c.phase != connecting || c.maxWait == 0): // who wants to wait has time to connect
			if c.phase == sent {
				failure = errSilent
			}
			l.release(c)
		}
		c = next
	}
	return failure
}

// pingIsDue tells whether calls wait, and nothing was heard for so long that the server may have gone; and their key.
func (l *lane) pingIsDue() (key string, isDue bool) {
	now := l.awake.Load()
	if now-later(l.pinged, l.heard.Load()) < int64(l.longest())/2 {
		return "", false
	}
	for c := l.first; c != nil; c = c.next {
		if c.isKept(now) {
			l.pinged = now
			return c.key, true
		}
	}
	return "", false
}

// ping finds out whether the server is there: calls that wait do not tell.
func (l *lane) ping(key string) {
	_, _ = l.server.askNode(context.Background(), l, command{args: ping, key: key, always: true})
}

func later(one, other int64) int64 {
	if one > other {
		return one
	}
	return other
}

func (l *lane) release(c *call) {
	if !c.released && !c.finished {
		c.released = true
		c.ready <- struct{}{}
	}
}

// drop makes the client close the connection, if it can, and gives the worker's place to another.
func (l *lane) drop(c *call) {
	l.remove(c)
	c.dropped = true
	if c.done != nil {
		close(c.done)
	}
	if c.pipe != nil {
		_ = c.pipe.Close() // replies come in order: all of its calls are late
		return
	}
	if c.needsNoWorker() {
		return
	}
	if next := l.pop(); next != nil {
		go l.work(next)
	} else {
		l.workers--
	}
}

// fail opens the circuit. Callers whose commands are not sent yet go on without the server.
func (l *lane) fail(err error) {
	l.circuit.failed(l.server.clock.Now(), err)
	l.server.slotsMayHaveMoved()
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.retirePipe(l.pipe)
	for c := l.first; c != nil; c = c.next {
		if c.phase != sent {
			l.release(c)
		}
	}
}

// report tells the circuit how a call ended, also one that nobody waits for.
func (l *lane) report(c *call, wasDropped bool) {
	switch fault := l.server.faultOf(c.err); {
	case wasDropped, c.err == errBroken: // others find out
	case errors.Is(c.err, errUnsent):
		l.circuit.abandoned(c.probing)
	case fault == faultOfServer && (!isTimeout(c.err) || l.heard.Load() <= c.since):
		l.fail(c.err)
	case fault == faultOfWrite || fault == faultOfServer:
		l.circuit.refused(l.server.clock.Now(), c.err)
	default:
		l.circuit.answered()
	}
}
