// Package tokenbucket limits by token buckets that the tokenbucket module of Redis and Valkey decides on.
//
// A Server is where to ask and what to do without it; a Limiter is one limit for many names, a JointLimiter several
// limits that are taken together. All are safe for concurrent use.
package tokenbucket

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"
)

// Doer sends a command and returns its reply: integers as int64, arrays as []any. An error that the server replied has
// its line as its text. How long that takes at most is not its business: whoever asks waits no longer than Timeout.
type Doer interface {
	Do(ctx context.Context, args ...any) (any, error)
}

// From makes a Doer of the method Do of clients in the style of go-redis: From(rdb.Do).
func From[C interface{ Result() (any, error) }](do func(ctx context.Context, args ...any) C) Doer {
	return doFunc(func(ctx context.Context, args ...any) (any, error) { return do(ctx, args...).Result() })
}

type doFunc func(ctx context.Context, args ...any) (any, error)

func (do doFunc) Do(ctx context.Context, args ...any) (any, error) { return do(ctx, args...) }

// Clock is the time by which limiters wait and forget. A Doer that is one, as the fake is, is the Server's, and has no
// deadline unless Timeout sets one: that would be by another clock.
type Clock interface {
	Now() time.Time
	// Sleep returns when so much time has passed, or with the context's error when that ends first.
	Sleep(ctx context.Context, duration time.Duration) error
}

// ErrServerAway is what FailWithError answers while the server cannot be asked.
var ErrServerAway = errors.New("tokenbucket: the server cannot be asked")

// ErrModuleMissing tells that the server has no tokenbucket module.
var ErrModuleMissing = errors.New("tokenbucket: the server has no tokenbucket module")

// ErrCrossSlot tells that the buckets of one call are in several slots of a cluster.
var ErrCrossSlot = errors.New("tokenbucket: in a cluster, the names of one call have to share a hash tag, as in {ada}:requests")

// Server is a server, or a cluster, to ask. One is enough for all limiters of a process: they share what is known about it.
type Server struct {
	doer     Doer
	clock    Clock
	settings serverSettings
	nodes    nodes
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

// Timeout is the deadline of a call, 100 ms unless told otherwise: a limiter that hangs is worse than one that fails.
func Timeout(timeout time.Duration) ServerOption {
	return func(s *serverSettings) { s.timeout = timeout }
}

// RetryEvery is how often a server that is away is tried again, by one call at a time; 500 ms unless told otherwise.
func RetryEvery(every time.Duration) ServerOption {
	return func(s *serverSettings) { s.retryEvery = every }
}

// LogTo is told when the server goes and when it returns; log.Printf unless told otherwise.
func LogTo(logf func(format string, args ...any)) ServerOption {
	return func(s *serverSettings) { s.logf = logf }
}

// FallbackScript lets a Lua script decide while the server has no module. Its buckets are others, under keys of its own.
func FallbackScript() ServerOption {
	return func(s *serverSettings) { s.hasScript = true }
}

// Cluster tells that the Doer asks a cluster: a node of it that is away, or lacks the module, says nothing about the
// others. The Doer's business is to send a call to the node that has the key: see KeyPosition.
func Cluster() ServerOption {
	return func(s *serverSettings) { s.isCluster = true }
}

// NewServer asks nothing yet: a server that is away is found out by the first call.
func NewServer(doer Doer, options ...ServerOption) *Server {
	s := &Server{doer: doer, clock: realClock{}}
	s.settings = serverSettings{timeout: 100 * time.Millisecond, retryEvery: 500 * time.Millisecond, logf: log.Printf}
	if clock, ok := doer.(Clock); ok {
		s.clock, s.settings.timeout = clock, 0
	}
	for _, option := range options {
		option(&s.settings)
	}
	return s
}

// Do sends any command, like TB.STATE, within the deadline of the Server.
func (s *Server) Do(ctx context.Context, words ...string) (any, error) {
	return s.ask(ctx, command{words: words, always: true})
}

// command is what to ask.
type command struct {
	words []string
	// always asks also while the server is thought to be away.
	always bool
	// once is not sent again when the connection broke before the reply: what is given twice is too much.
	once bool
}

// ask returns an error that wraps ErrServerAway if the server does not decide, and any other if the call is wrong.
func (s *Server) ask(ctx context.Context, c command) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	key := keyOf(c.words)
	for {
		module := s.node(key)
		decider := module
		if s.hasScript(c) && module.script.inUse(s.clock.Now()) {
			// Its keys have other names, and so perhaps another node.
			decider = s.node(key + scriptSuffix)
		}
		reply, err := s.askNode(ctx, decider, c)
		if !s.hasScript(c) || !errors.Is(err, ErrModuleMissing) {
			return reply, err
		}
		module.script.begin(s.clock.Now(), s.settings.logf)
	}
}

func (s *Server) hasScript(c command) bool { return s.settings.hasScript && isScripted[c.words[0]] }

func (s *Server) askNode(ctx context.Context, of *node, c command) (any, error) {
	probing, admitted := of.circuit.admits(s.clock.Now())
	if !admitted && !c.always {
		return nil, ErrServerAway
	}
	limited := ctx
	if s.settings.timeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, s.settings.timeout)
		defer cancel()
	}
	reply, err := s.send(limited, of, c, probing || !admitted)
	if err == nil {
		of.circuit.answered()
		return reply, nil
	}
	if ctx.Err() != nil {
		of.circuit.abandoned(probing)
		return nil, ctx.Err()
	}
	switch faultOf(err) {
	case faultOfServer:
		of.circuit.failed(s.clock.Now(), err)
		s.slotsMayHaveMoved()
		return nil, fmt.Errorf("%w: %v", ErrServerAway, err)
	case faultOfWrite:
		of.circuit.refused(s.clock.Now(), err)
		return nil, fmt.Errorf("%w: %v", ErrServerAway, err)
	}
	of.circuit.answered()
	if isCrossSlot(err) {
		return nil, ErrCrossSlot
	}
	return nil, err
}

// send meets connections of a pool that died with an earlier server. It takes them all out, so that one restart of the
// server is one that no caller notices.
func (s *Server) send(ctx context.Context, of *node, c command, wasAway bool) (any, error) {
	if wasAway {
		if err := s.reconnect(ctx, of, c.words); err != nil {
			return nil, err
		}
	}
	reply, err := s.decide(ctx, c)
	if !isBroken(err) {
		return reply, err
	}
	if unreachable := s.reconnect(ctx, of, c.words); unreachable != nil || c.once {
		return nil, err
	}
	return s.decide(ctx, c)
}

// pingOf is what finds out whether the connections of a pool are alive: in a cluster, those to the node of the key.
func (s *Server) pingOf(words []string) []string {
	if s.settings.isCluster {
		return []string{"EXISTS", keyOf(words)}
	}
	return []string{"PING"}
}

func (s *Server) reconnect(ctx context.Context, of *node, words []string) error {
	of.script.lookForModule()
	ping := s.pingOf(words)
	for pinged := 1; ; pinged++ {
		_, err := s.do(ctx, ping)
		if !isBroken(err) || pinged == mostConnections {
			return ignoreDenial(err)
		}
	}
}

// Whoever ends so many connections one after the other does so to every one.
const mostConnections = 1000

// decide asks the module, or the script where there is none.
func (s *Server) decide(ctx context.Context, c command) (any, error) {
	name, of := c.words[0], s.node(keyOf(c.words))
	if s.hasScript(c) && of.script.inUse(s.clock.Now()) {
		return s.runScript(ctx, c.words)
	}
	reply, err := s.do(ctx, c.words)
	if !isScripted[name] && !needsModule[name] {
		return reply, err
	}
	switch {
	case !isUnknownCommand(err):
		of.script.end(s.settings.logf, err == nil)
		return reply, err
	case needsModule[name]:
		return nil, fmt.Errorf("%w, and holds need it: load it", ErrModuleMissing)
	}
	return nil, fmt.Errorf("%w: load it, or give the Server FallbackScript()", ErrModuleMissing)
}

// do is over when the context is, whether or not the Doer heeds it.
func (s *Server) do(ctx context.Context, words []string) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	args := make([]any, len(words))
	for i, word := range words {
		args[i] = word
	}
	type answer struct {
		reply any
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		reply, err := s.doer.Do(ctx, args...)
		answers <- answer{reply, err}
	}()
	select {
	case a := <-answers:
		return a.reply, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
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
