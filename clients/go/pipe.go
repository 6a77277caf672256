package tokenbucket

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// PipeliningDoer is a Doer that opens pipes. A take over a pipe costs one switch of goroutines instead of two, or none if it
// is alone on an InterruptiblePipe. Many takes at a time share system calls. Commands that must happen once, that wait, or
// that fail on the pipe go through Do.
type PipeliningDoer interface {
	Doer
	// Pipe opens a connection for the Server alone.
	Pipe(ctx context.Context) (Pipe, error)
}

// Pipe is a connection that takes a command before those ahead of it have their replies.
type Pipe interface {
	// Send sends a command. One goroutine at a time calls it.
	Send(args ...any) error
	// Receive waits for the next reply, as Do returns it. One goroutine at a time calls it, also before there is a command.
	Receive() (any, error)
	// Close ends Send and Receive. Any goroutine may call it.
	Close() error
}

// InterruptiblePipe is a Pipe on which a caller that is alone receives its reply itself.
type InterruptiblePipe interface {
	Pipe
	// Interrupt makes the Receive that waits return ErrInterrupted, or else the next one that has to wait. The Receive after
	// that goes on with the part of a reply that has arrived. Any goroutine may call Interrupt.
	Interrupt()
}

// ErrInterrupted is what Receive of an InterruptiblePipe returns after Interrupt.
var ErrInterrupted = newKind("receiving was interrupted")

const (
	// mostPiped and mostPipedBytes bound what is under way on a pipe. So much fits into the buffers of the system, so that
	// no caller waits in Send.
	mostPiped      = 128
	mostPipedBytes = 8192
	// callsBeforePipe keeps programs that ask now and then from opening a second connection.
	callsBeforePipe = 10
	// pipeAgainAfter is how long nobody tries to open a pipe after that has failed.
	pipeAgainAfter = 10 * time.Second
)

// isPiped: commands that may be repeated, and whose replies are due at once.
var isPiped = map[any]bool{
	"TB.TAKE": true, "TB.PEEK": true, "TB.TAKEUPTO": true, "TB.RESERVE": true, "TB.MTAKE": true, "TB.MHOLD": true,
}

func (c *call) mayBePiped() bool {
	return !c.once && !c.aside && c.maxWait == 0 && isPiped[c.args[0]] && !c.lane.script.needed.Load()
}

// pipe carries the calls of a lane. A caller that is alone reads its own reply. When several calls are under way, or reading
// cannot be interrupted, a goroutine reads.
type pipe struct {
	Pipe
	interrupt func() // nil: a goroutine always reads
	lane      *lane
	underWay  chan *call // the oldest first
	bytes     atomic.Int64
	isLed     atomic.Bool // a caller reads, and was not interrupted
	mutex     sync.Mutex  // of those who send
	isRead    bool        // by a caller or a goroutine
	isEnded   bool
	retired   atomic.Bool
}

func newPipe(l *lane, conn Pipe) *pipe {
	p := &pipe{Pipe: conn, lane: l, underWay: make(chan *call, mostPiped)}
	if interruptible, ok := conn.(InterruptiblePipe); ok {
		p.interrupt = interruptible.Interrupt
	} else {
		p.isRead = true
		go p.read()
	}
	return p
}

// send tells whether the call is under way, and whether nobody reads yet: then the caller has to call lead.
func (p *pipe) send(c *call) (isSent, isFirst bool) {
	for _, arg := range c.args {
		c.bytes += int64(len(arg.(string)))
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.isEnded || p.bytes.Load()+c.bytes > mostPipedBytes {
		return false, false
	}
	select {
	case p.underWay <- c:
	default:
		return false, false
	}
	p.bytes.Add(c.bytes)
	if p.Send(c.args...) != nil {
		_ = p.Close() // the call fails in receive, with those before it
	}
	isFirst = !p.isRead
	p.isRead = true
	return true, isFirst
}

// lead lets the caller read its own reply: a goroutine that reads in its place would have to wake it. The watch interrupts
// the caller at its next look. A goroutine then reads on, and the caller waits for the reply or the end of its context.
func (p *pipe) lead(ctx context.Context) {
	if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > 2*p.lane.interval() {
		p.isLed.Store(true)
		p.receive()
		p.isLed.Store(false)
		if !p.goesOn() {
			return
		}
	}
	go p.read()
}

// interruptLeader is for the watch. If the caller has its reply meanwhile, the next one is interrupted, which costs only time.
func (p *pipe) interruptLeader() {
	if p.isLed.CompareAndSwap(true, false) {
		p.interrupt()
	}
}

func (p *pipe) read() {
	for {
		p.receive()
		if !p.goesOn() {
			return
		}
	}
}

// goesOn tells whether replies are due, so that reading goes on.
func (p *pipe) goesOn() bool {
	if len(p.underWay) > 0 {
		return true
	}
	if p.retired.Load() {
		p.end()
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.isRead = !p.isEnded && (p.interrupt == nil || len(p.underWay) > 0)
	return p.isRead
}

// receive hands out a reply, or ends the pipe.
func (p *pipe) receive() {
	reply, err := p.Receive()
	if err == ErrInterrupted {
		return
	}
	var c *call
	if err == nil || isServerLine(err) {
		select {
		case c = <-p.underWay:
		default: // a reply to nothing
		}
	}
	if c == nil {
		p.end()
		return
	}
	p.bytes.Add(-c.bytes)
	p.lane.hear()
	if err != nil && strings.HasPrefix(err.Error(), "READONLY ") {
		p.lane.retire(p) // the master is elsewhere
	}
	p.lane.replied(c, reply, err)
}

// end lets others send what had no reply.
func (p *pipe) end() {
	_ = p.Close()
	p.mutex.Lock()
	p.isEnded = true
	p.mutex.Unlock()
	p.lane.retire(p)
	for {
		select {
		case c := <-p.underWay:
			p.lane.replied(c, nil, errBroken)
		default:
			return
		}
	}
}

// retire takes no more calls. Those under way get their replies.
func (l *lane) retire(p *pipe) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.retirePipe(p)
}

func (l *lane) retirePipe(p *pipe) {
	if p == nil {
		return
	}
	if l.pipe == p {
		l.pipe = nil
	}
	p.retired.Store(true)
	if len(p.underWay) == 0 {
		_ = p.Close()
	}
}

// replied ends a call, or lets a worker send it again: nothing happened, or it may happen twice.
func (l *lane) replied(c *call, reply any, err error) {
	l.mutex.Lock()
	if err != nil && !c.released {
		c.pipe, c.phase, c.since = nil, queued, l.awake.Load()
		l.hand(c)
		l.mutex.Unlock()
		return
	}
	l.mutex.Unlock()
	l.finish(c, reply, err)
}

// openPipeIfDue is called when a worker has had a reply.
func (l *lane) openPipeIfDue(c *call) {
	doer, ok := l.server.doer.(PipeliningDoer)
	if !ok || l.server.settings.isCluster || !c.mayBePiped() {
		return
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.unpiped++
	if l.pipe != nil || l.isOpeningPipe || !l.isWatched || l.unpiped < callsBeforePipe || l.awake.Load() < l.nextPipe {
		return
	}
	l.isOpeningPipe, l.unpiped = true, 0
	go l.openPipe(doer)
}

func (l *lane) openPipe(doer PipeliningDoer) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	conn, err := doer.Pipe(ctx)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.isOpeningPipe = false
	switch {
	case err != nil:
		l.nextPipe = l.awake.Load() + int64(pipeAgainAfter)
	case !l.isWatched || l.circuit.away.Load():
		_ = conn.Close()
	default:
		l.pipe = newPipe(l, conn)
	}
}

func (l *lane) closePipe() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.retirePipe(l.pipe)
}
