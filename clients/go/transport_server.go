// Package tokenbucket limits rates by token buckets that the tokenbucket module of Redis and Valkey keeps.
//
// A bucket holds at most Capacity tokens and refills at Rate; a call takes one or more of them. A Limiter is one limit for
// many names, each with a bucket of its own. A JointLimiter takes from several limits at once, all or nothing. Both send
// their calls through a Server, which knows whether the server answers. All are safe for concurrent use.
//
// The package goredis connects a Server through go-redis. The examples use tokenbuckettest, a server in memory.
package tokenbucket

import (
	"context"
	"fmt"
	"log"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tokenbucket/internal/local"
	"tokenbucket/internal/rules"
)

// Server is a server or a cluster. One is enough for all limiters of a process, which share its connections and outages.
type Server struct {
	cluster   ClusterDoer // or nil
	clock     Clock
	started   time.Time
	home      *node    // the server; of a cluster, what no node stands for
	nodes     sync.Map // of a cluster, by their Doers
	local     *local.Store
	unsettled unsettled
	degraded  atomic.Int64
	life      context.Context
	end       context.CancelFunc
	closing   chan struct{} // has room for the one that closes

	// By options.
	timeout    time.Duration
	retryEvery time.Duration
	log        func(format string, args ...any)
	byScript   bool
}

// ServerOption sets an option of a Server.
type ServerOption func(*Server)

// Timeout sets how long the server may take to reply; 100 ms by default. A server that is late twice in a row, and answers
// no other call meanwhile, is away. 0 waits for ever.
func Timeout(timeout time.Duration) ServerOption {
	return func(s *Server) { s.timeout = timeout }
}

// RetryEvery sets how often one call tries a server that is away; 500 ms by default. When none has for twice as long, the next
// calls all do.
func RetryEvery(every time.Duration) ServerOption {
	return func(s *Server) { s.retryEvery = every }
}

// LogTo sets what gets the log lines; log.Printf by default. Each outage has one when it begins and one when a call is answered
// again. Calls that the server refused for reasons of its own have one a minute, and each error of a renewal has one. The
// function must not settle holds: a settlement may be what it logs about.
func LogTo(logf func(format string, args ...any)) ServerOption {
	return func(s *Server) { s.log = logf }
}

// ByScript lets a Lua script decide every call in place of the module, in buckets of its own whose keys end in ":script". Holds,
// shares and calendar rates are errors then.
func ByScript() ServerOption {
	return func(s *Server) { s.byScript = true }
}

const (
	// mostNames bounds the buckets that the local limiter keeps.
	mostNames = 10_000
	// mostPermits keeps a flood of calls from opening a flood of connections, unless the Doer says how many it has.
	mostPermits = 64
)

// NewServer makes a Server that sends its commands through doer. It sends nothing: the first call connects.
func NewServer(doer Doer, options ...ServerOption) *Server {
	s := &Server{clock: realClock{}, timeout: rules.Timeout, retryEvery: rules.RetryEvery, log: log.Printf, closing: make(chan struct{}, 1)}
	if clock, ok := doer.(Clock); ok {
		s.clock = clock
	}
	for _, option := range options {
		option(s)
	}
	s.cluster, _ = doer.(ClusterDoer)
	s.local = local.NewStore(mostNames)
	s.started = s.clock.Now()
	s.life, s.end = context.WithCancel(context.Background())
	s.home = newNode(s, doer, "the server")
	return s
}

// now is a moment of a steady clock, above 0: the time of day may be set.
func (s *Server) now() int64 { return 1 + int64(s.clock.Now().Sub(s.started)) }

func (s *Server) logf(format string, args ...any) {
	if s.log != nil {
		guarded(func() { s.log(format, args...) })
	}
}

// guarded runs a function that the program gave. A panic in it changes nothing.
func guarded(hook func()) {
	defer func() {
		if reason := recover(); reason != nil {
			log.Printf("tokenbucket: a function of the program panicked: %v", reason)
		}
	}()
	hook()
}

// DegradedCount returns how many decisions the policy made in place of the server.
func (s *Server) DegradedCount() int64 { return s.degraded.Load() }

// Close closes the connections that were opened for the Server. Later calls return ErrClosed, whatever OnError says. Close
// limiters that have batches before it. Holds that could not be settled are tried once more.
func (s *Server) Close() error {
	select {
	case s.closing <- struct{}{}:
		defer func() { <-s.closing }()
	case <-time.After(3*s.timeout + rules.ConnectWithin): // LogTo may close it while it is being closed
		return nil
	}
	if s.isClosed() {
		return nil
	}
	s.settleLast()
	s.end()
	if pooled, ok := s.home.doer.(PooledDoer); ok {
		return pooled.Close()
	}
	return nil
}

func (s *Server) isClosed() bool { return s.life.Err() != nil }

type command struct {
	args    []any // the name, then words, all strings
	key     string
	each    int           // how many parts an alternative has, if the command has alternatives
	once    bool          // it is not sent again when its reply was lost
	renews  bool          // sends the renewal of the TB.MHOLD on which the policy decides
	inDoubt *bool         // set once the server may have executed it without an answer, or nil
	ttl     time.Duration // of the hold that it settles
	settled func()        // called when it has settled a hold later
	maxWait time.Duration // lets what would be denied wait in the server
	share   []any         // the tenant whose turn a call that waits takes
	wrong   error         // of an option
}

// doubt notes that the server may have executed the command without an answer.
func (c command) doubt() {
	if c.inDoubt != nil {
		*c.inDoubt = true
	}
}

// chosen returns the parts of the alternative that was granted. Of a denial it returns each bucket once, and without alternatives
// all parts.
func (c command) chosen(parts []part, granted int64) []part {
	if c.each == 0 {
		return parts
	}
	if granted > 0 && int(granted)*c.each <= len(parts) {
		return parts[(int(granted)-1)*c.each : int(granted)*c.each]
	}
	var once []part
	isKnown := map[string]bool{}
	for _, p := range parts {
		if !isKnown[p.name] {
			isKnown[p.name] = true
			once = append(once, p)
		}
	}
	return once
}

// ask returns an *awayError if the server does not decide, and any other error if the call is wrong or its context is over.
func (s *Server) ask(ctx context.Context, c command) (any, error) {
	switch {
	case c.wrong != nil:
		return nil, c.wrong
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case s.isClosed():
		return nil, ErrClosed
	case c.maxWait > 0:
		return s.askInTurn(ctx, c)
	}
	return s.decide(ctx, c)
}

// decide asks the module or, with ByScript, the script.
func (s *Server) decide(ctx context.Context, c command) (any, error) {
	name := c.args[0].(string)
	if s.byScript {
		return s.decideByScript(ctx, c, name)
	}
	reply, _, err := s.call(ctx, c)
	if isUnknownCommand(err) && strings.HasPrefix(name, "TB.") {
		const help = "load it, or make a Server with ByScript(); holds, shares and alternatives need the module"
		return nil, fmt.Errorf("%w: %s: %v", ErrModuleMissing, help, err)
	}
	return reply, err
}
