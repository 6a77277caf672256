package tokenbucket

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// call is one command on its way to the server. It is also the context that the Doer sees, which is not the caller's: a
// caller that gives up ends its own waiting and nothing else.
type call struct {
	lane    *lane
	args    []any
	key     string
	once    bool
	undoes  bool          // a grant that nobody waits for any more goes back
	probing bool          // finds out whether the server is back
	aside   bool          // not behind those that a silent server keeps
	ready   chan struct{} // receives once, when the caller may go on

	// The lane's mutex guards what follows.
	phase      phase
	since      int64 // of the lane's clock: when the phase began
	next, prev *call // of those that are under way
	released   bool  // the caller has gone on without the reply
	finished   bool
	dropped    bool
	done       chan struct{} // of the context; made when somebody asks for it
	reply      any
	err        error
	fate       fate
}

type phase int

const (
	queued     phase = iota
	connecting       // waits for a connection of the client
	sent
)

// fate says what becomes of a grant whose caller was released.
type fate int

const (
	undecided fate = iota
	kept           // the policy let the caller through: it uses the grant
	undone         // the caller was denied or has gone: the grant goes back
)

type callKey struct{}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// KeyOf is for Doers that ask a cluster: the key that selects the node, or "" where any node will do.
func KeyOf(ctx context.Context) string {
	if c := callOf(ctx); c != nil {
		return c.key
	}
	return ""
}

// IsOnce is for Doers that repeat commands: a command that must happen once may not be sent again after its reply was
// lost, and its connection has to be alive before it is sent.
func IsOnce(ctx context.Context) bool {
	c := callOf(ctx)
	return c != nil && c.once
}

// Connecting is for Doers: the call waits for a connection from now on. That time is not the server's silence.
func Connecting(ctx context.Context) {
	if c := callOf(ctx); c != nil {
		_ = c.enter(connecting)
	}
}

// Sent is for Doers that call Connecting: the command is about to be sent. An error says that nobody waits for it any
// more: the Doer then returns that error and sends nothing.
func Sent(ctx context.Context) error {
	if c := callOf(ctx); c != nil {
		return c.enter(sent)
	}
	return ctx.Err()
}

// Heard returns what a Doer calls when bytes arrive on the connection that it opens under this context.
func Heard(ctx context.Context) func() {
	if c := callOf(ctx); c != nil && c.lane != nil {
		return c.lane.hear
	}
	return func() {}
}

func (c *call) enter(phase phase) error {
	if c.lane.synchronous() {
		c.phase = phase
		return nil
	}
	c.lane.mutex.Lock()
	defer c.lane.mutex.Unlock()
	if c.released && c.phase != sent {
		return errUnsent
	}
	c.phase, c.since = phase, c.lane.awake.Load()
	return nil
}

// Deadline bounds reading for Doers that cannot be interrupted.
func (c *call) Deadline() (time.Time, bool) {
	if c.lane.synchronous() || c.lane.server.settings.timeout <= 0 {
		return time.Time{}, false
	}
	// The lane drops a late call first, and knows whether the server was silent or this call alone was late.
	return time.Now().Add(2 * c.lane.longest()), true
}

func (c *call) Done() <-chan struct{} {
	c.lane.mutex.Lock()
	defer c.lane.mutex.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.dropped {
			close(c.done)
		}
	}
	return c.done
}

func (c *call) Err() error {
	c.lane.mutex.Lock()
	defer c.lane.mutex.Unlock()
	if c.dropped {
		return context.DeadlineExceeded
	}
	return nil
}

func (c *call) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	return nil
}

var _ context.Context = (*call)(nil)

// decide settles the fate of a grant that may still arrive. The first to say so decides.
func (c *call) decide(fate fate) {
	if c == nil || c.lane.synchronous() {
		return
	}
	c.lane.mutex.Lock()
	if c.fate == undecided {
		c.fate = fate
	}
	c.lane.mutex.Unlock()
	c.giveBack()
}

// giveBack returns what a finished call has taken, once, if its fate says so.
func (c *call) giveBack() {
	c.lane.mutex.Lock()
	isDue := c.finished && c.released && c.undoes && c.fate == undone && c.err == nil
	if isDue {
		c.fate = kept
	}
	c.lane.mutex.Unlock()
	if !isDue {
		return
	}
	for _, undo := range undoing(c.args, c.reply) {
		go func(undo command) { _, _ = c.lane.server.ask(context.Background(), undo) }(undo)
	}
}

// undoing lists the commands that return what a command has taken.
func undoing(args []any, reply any) []command {
	decision, err := parseDecision(reply)
	if err != nil || !decision.Allowed {
		return nil
	}
	give := func(key, capacity, rate, amount any) command {
		return command{args: []any{"TB.GIVE", key, capacity, rate, amount}, key: key.(string), once: true}
	}
	switch args[0] {
	case "TB.TAKE", "TB.RESERVE":
		return []command{give(args[1], args[2], args[3], args[4])}
	case "TB.TAKEUPTO":
		return []command{give(args[1], args[2], args[3], tokens(float64(decision.Granted)))}
	case "TB.MTAKE":
		var all []command
		for group := args[2:]; len(group) >= 4; group = group[4:] {
			all = append(all, give(group[0], group[1], group[2], group[3]))
		}
		return all
	case "TB.MHOLD":
		settle := []any{"TB.MSETTLE", args[1], args[3]}
		for group := args[4:]; len(group) >= 4; group = group[4:] {
			settle = append(settle, group[0], group[1], group[2], "0")
		}
		return []command{{args: settle, key: args[4].(string), once: true}}
	}
	return nil
}

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
	hadCall     bool // since the watch last looked
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
	l.submit(c)
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
	l.mutex.Unlock()
	c.decide(undone)
	return true
}

func (l *lane) submit(c *call) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	c.since = l.awake.Load()
	l.append(c)
	if !l.isWatched && l.server.settings.timeout > 0 {
		l.isWatched = true
		go l.watch()
	}
	switch {
	case c.aside:
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
		l.remove(c)
		l.mutex.Unlock()
		return false
	}
	c.phase, c.since = sent, l.awake.Load()
	l.mutex.Unlock()

	reply, err := l.server.perform(c)

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
		l.mutex.Unlock()
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
}

// look releases the callers whose time is over. The error says why the server is away, if it is.
func (l *lane) look() (failure error) {
	now, longest := l.awake.Load(), int64(l.longest())
	timeout := int64(l.server.settings.timeout + l.interval()) // a call may have begun just before a look
	for c := l.first; c != nil; {
		next := c.next
		quiet, age := now-later(c.since, l.heard.Load()), now-c.since
		switch {
		case c.phase == sent && age >= longest:
			l.release(c)
			l.drop(c)
		case c.phase == connecting && age >= int64(connectTimeout) && quiet >= int64(connectTimeout):
			l.release(c)
			l.drop(c)
			failure = errConnecting
		case quiet >= timeout && !c.released:
			if c.phase == sent {
				failure = errSilent
			}
			l.release(c)
		}
		c = next
	}
	return failure
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
	if c.aside {
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
	for c := l.first; c != nil; c = c.next {
		if c.phase != sent {
			l.release(c)
		}
	}
}

// report tells the circuit how a call ended, also one that nobody waits for.
func (l *lane) report(c *call, wasDropped bool) {
	switch fault := l.server.faultOf(c.err); {
	case wasDropped:
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
