package tokenbucket

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// PipeliningDoer is a Doer that opens pipes. Over a pipe, takes cost one switch of goroutines instead of two, and many at a
// time share writes. Commands that must happen once, that wait, or that fail on the pipe go through Do.
type PipeliningDoer interface {
	Doer
	// Pipe opens a connection for the Server alone.
	Pipe(ctx context.Context) (Pipe, error)
}

// Pipe is a connection that takes a command before those ahead of it have their replies.
type Pipe interface {
	// Send sends a command. One goroutine at a time calls it.
	Send(args ...any) error
	// Receive waits for the next reply, as Do returns it. One goroutine calls it, also before there is a command.
	Receive() (any, error)
	// Close ends Send and Receive. Any goroutine may call it.
	Close() error
}

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

// pipe carries the calls of a lane.
type pipe struct {
	Pipe
	lane     *lane
	underWay chan *call // the oldest first
	bytes    atomic.Int64
	mutex    sync.Mutex // of those who send
	isEnded  bool
	retired  atomic.Bool
}

// send tells whether the call is under way.
func (p *pipe) send(c *call) bool {
	for _, arg := range c.args {
		c.bytes += int64(len(arg.(string)))
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.isEnded || p.bytes.Load()+c.bytes > mostPipedBytes {
		return false
	}
	select {
	case p.underWay <- c:
	default:
		return false
	}
	p.bytes.Add(c.bytes)
	if p.Send(c.args...) != nil {
		_ = p.Close() // the call fails in read, with those before it
	}
	return true
}

func (p *pipe) read() {
	for {
		reply, err := p.Receive()
		if err != nil && !isServerLine(err) {
			break
		}
		var c *call
		select {
		case c = <-p.underWay:
		default:
		}
		if c == nil { // a reply to nothing
			break
		}
		p.bytes.Add(-c.bytes)
		p.lane.hear()
		if err != nil && strings.HasPrefix(err.Error(), "READONLY ") {
			p.lane.retire(p) // the master is elsewhere
		}
		p.lane.replied(c, reply, err)
		if p.retired.Load() && len(p.underWay) == 0 {
			break
		}
	}
	p.end()
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
		l.pipe = &pipe{Pipe: conn, lane: l, underWay: make(chan *call, mostPiped)}
		go l.pipe.read()
	}
}

func (l *lane) closePipe() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.retirePipe(l.pipe)
}
