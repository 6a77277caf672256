// Package tokenbucket limits by token buckets in the tokenbucket module of Redis and Valkey.
//
// A Server knows where to ask and whether the server answers. A Limiter is one limit for many names, a JointLimiter
// several limits that are taken together. All are safe for concurrent use.
package tokenbucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"sync/atomic"
	"time"

	"tokenbucket/internal/memory"
)

// Doer sends a command and returns its reply: integers as int64, arrays as []any. The text of an error that the server
// replied is the server's line. The Server bounds how long callers wait, so a Doer needs no deadline of its own; it must
// not repeat a command for which IsOnce holds. The context is the call's, and outlives the caller: see KeyOf, IsOnce,
// Connecting, Sent and Heard. A Doer with a method Address() string is named by it in errors, one with Connections() int
// gets at most so many commands at a time, and one that is an io.Closer is closed with the Server.
type Doer interface {
	Do(ctx context.Context, args ...any) (any, error)
}

// Clock is the time by which limiters wait and forget. A Doer that is one, as the fake is, sets the clock of the Server,
// answers at once and is never silent.
type Clock interface {
	Now() time.Time
	// Sleep returns when so much time has passed, or with the context's error when that ends first.
	Sleep(ctx context.Context, duration time.Duration) error
}

// Server is a server, or a cluster, to ask. One is enough for all limiters of a process: they share what is known about it.
type Server struct {
	doer        Doer
	clock       Clock
	synchronous bool
	address     string
	mostWorkers int
	settings    serverSettings
	nodes       nodes
	local       *memory.Store // decides while the server is away
	degraded    atomic.Int64
	returning   atomic.Int64 // batches on their way back
}

type serverSettings struct {
	timeout    time.Duration
	retryEvery time.Duration
	logf       func(format string, args ...any)
	hasScript  bool
	isCluster  bool
}

// ServerOption is a setting of a Server.
type ServerOption func(*serverSettings)

// Timeout is how long the server may be silent, on every connection, before it counts as away; 100 ms unless set. No call
// waits longer for a server that says nothing. 0 waits for ever.
func Timeout(timeout time.Duration) ServerOption {
	return func(s *serverSettings) { s.timeout = timeout }
}

// RetryEvery is how often one call tries a server that is away; 500 ms unless set.
func RetryEvery(every time.Duration) ServerOption {
	return func(s *serverSettings) { s.retryEvery = every }
}

// LogTo gets a line when the server goes and one when it returns; log.Printf unless set.
func LogTo(logf func(format string, args ...any)) ServerOption {
	return func(s *serverSettings) { s.logf = logf }
}

// FallbackScript lets a Lua script decide while the server has no module. Its buckets are others, under keys of its own.
func FallbackScript() ServerOption {
	return func(s *serverSettings) { s.hasScript = true }
}

// Cluster says that the Doer asks a cluster. A node that is away, or has no module, then says nothing about the others.
// The Doer sends a call to the node that has its key: see KeyOf.
func Cluster() ServerOption {
	return func(s *serverSettings) { s.isCluster = true }
}

// mostNames bounds the buckets that decide here while the server is away.
const mostNames = 10_000

// NewServer asks nothing yet: the first call finds out whether the server is there.
func NewServer(doer Doer, options ...ServerOption) *Server {
	s := &Server{doer: doer, clock: realClock{}, mostWorkers: mostWorkers, local: memory.NewStore(mostNames)}
	s.settings = serverSettings{timeout: 100 * time.Millisecond, retryEvery: 500 * time.Millisecond, logf: log.Printf}
	if clock, ok := doer.(Clock); ok {
		s.clock, s.synchronous = clock, true
	}
	if addressed, ok := doer.(interface{ Address() string }); ok {
		s.address = addressed.Address()
	}
	if bounded, ok := doer.(interface{ Connections() int }); ok {
		if most := bounded.Connections(); most > 0 && most < s.mostWorkers {
			s.mostWorkers = most
		}
	}
	for _, option := range options {
		option(&s.settings)
	}
	return s
}

// DegradedCount is how many decisions were made without the server.
func (s *Server) DegradedCount() int64 { return s.degraded.Load() }

// Close closes the Doer, if it has a method Close. Limiters that hold batches are closed before.
func (s *Server) Close() error {
	s.nodes.mutex.RLock()
	for _, of := range s.nodes.known {
		of.closePipe()
	}
	s.nodes.mutex.RUnlock()
	if closer, ok := s.doer.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// Do sends any command, like TB.STATE, and waits for its reply as limiters do.
func (s *Server) Do(ctx context.Context, words ...string) (any, error) {
	args := make([]any, len(words))
	for i, word := range words {
		args[i] = word
	}
	c := command{args: args, always: true}
	if position := keyPosition(args); position > 0 {
		c.key = words[position]
	}
	return s.ask(ctx, c)
}

// command is what to ask.
type command struct {
	args []any // the name, then words, all strings
	key  string
	// always asks also while the server is thought to be away.
	always bool
	// once is not sent again when its reply was lost: what is given twice is too much.
	once bool
	// maxWait lets what would be denied wait in the server.
	maxWait time.Duration
}

// ask returns an *awayError if the server does not decide, and any other if the call is wrong.
func (s *Server) ask(ctx context.Context, c command) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if c.maxWait > 0 {
		return s.wait(ctx, c)
	}
	for {
		module := s.node(c.key)
		decider := module
		if s.hasScript(c.args) && module.script.inUse(s.clock) {
			// Its keys have other names, and so perhaps another node.
			decider = s.node(c.key + scriptSuffix)
		}
		reply, err := s.askNode(ctx, decider, c)
		if !s.hasScript(c.args) || !errors.Is(err, ErrModuleMissing) {
			return reply, err
		}
		module.script.begin(s.clock.Now(), s.settings.logf)
	}
}

func (s *Server) hasScript(args []any) bool {
	return s.settings.hasScript && isScripted[args[0].(string)]
}

func (s *Server) askNode(ctx context.Context, of *lane, c command) (any, error) {
	probing, admitted := of.circuit.admits(s.clock)
	if !admitted && !c.always {
		return nil, &awayError{server: of.who, cause: errCircuitOpen}
	}
	return s.runOn(ctx, &call{lane: of, args: c.args, key: c.key, once: c.once, undoes: true, probing: probing, aside: probing || !admitted})
}

func (s *Server) runOn(ctx context.Context, asked *call) (any, error) {
	of := asked.lane
	reply, err := of.run(ctx, asked)
	if err == nil || err == ctx.Err() {
		return reply, err
	}
	if away, ok := err.(*awayError); ok {
		return nil, away
	}
	switch s.faultOf(err) {
	case faultOfServer, faultOfWrite:
		return nil, asked.awayError(err)
	}
	return nil, of.wrong(err)
}

// perform sends what the call takes: the command, or the script where there is no module.
func (s *Server) perform(c *call) (any, error) {
	if c.maxWait > 0 {
		return s.performWaiting(c)
	}
	name, module := c.args[0].(string), s.node(c.key)
	if c.aside {
		module.script.lookForModule() // the server may be another
	}
	if s.hasScript(c.args) && module.script.inUse(s.clock) {
		reply, err := s.runScript(c)
		if !isUnknownScript(err) {
			return reply, err
		}
		// The server may be another, and have the module.
		if reply, err := s.send(c, c.args...); !isUnknownCommand(err) {
			module.script.end(s.settings.logf, err == nil)
			return reply, err
		}
		return s.loadScript(c)
	}
	reply, err := s.send(c, c.args...)
	if !isScripted[name] && !needsModule[name] {
		return reply, err
	}
	switch {
	case !isUnknownCommand(err):
		module.script.end(s.settings.logf, err == nil)
		return reply, err
	case needsModule[name]:
		return nil, fmt.Errorf("%w, and holds need it: load it", ErrModuleMissing)
	}
	return nil, fmt.Errorf("%w: load it, or give the Server FallbackScript()", ErrModuleMissing)
}

// triesOfSplitSlot is how often a call is sent within the timeout while its slot moves and some of its keys have gone ahead.
// No node does anything then.
const triesOfSplitSlot = 10

func (s *Server) send(c *call, args ...any) (any, error) {
	for try := 1; ; try++ {
		reply, err := s.sendRepeatably(c, args)
		if !isSplitSlot(err) || try == triesOfSplitSlot {
			return reply, err
		}
		if err := s.clock.Sleep(c, s.settings.timeout/triesOfSplitSlot); err != nil {
			return nil, err
		}
	}
}

// sendRepeatably repeats a command whose connection had ended, unless it must happen once.
func (s *Server) sendRepeatably(c *call, args []any) (any, error) {
	reply, err := s.sendOnce(c, args)
	if isBroken(err) {
		c.lane.script.lookForModule() // the server may be another
		if !c.once {
			return s.sendOnce(c, args)
		}
	}
	return reply, err
}

func (s *Server) sendOnce(c *call, args []any) (any, error) {
	if err := c.enter(sent); err != nil {
		return nil, err
	}
	reply, err := s.doer.Do(c, args...)
	if err == nil || isServerLine(err) {
		c.lane.hear()
	}
	return reply, err
}

type realClock struct{}

func (realClock) Now() time.Time { return time.Now() }

func (realClock) Sleep(ctx context.Context, duration time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
