// Package tokenbucket limits by token buckets in the tokenbucket module of Redis and Valkey.
//
// A Server knows where to ask and whether the server answers. A Limiter is one limit for many names, a JointLimiter
// several limits that are taken together. All are safe for concurrent use.
package tokenbucket

import (
	"context"
	"log"
	"strings"
	"sync/atomic"
	"time"

	"tokenbucket/internal/local"
)

// Doer sends a command by a client library and returns its reply: integers as int64, arrays as []any. The text of an error
// that the server replied is the server's line.
//
// Do runs in the caller's goroutine, so it has to return at the deadline of the context, and must not repeat the command.
// The deadline is Timeout from the moment it is asked for: ask when the command has been sent. A context with the method
// Timeout() time.Duration tells the same without a look at the clock. The context ends with the caller's: that may end a
// wait for a connection, but not reading, because the reply may be a grant.
//
// Optional methods: Address() string names the server in errors. Connections() int bounds the commands sent at a time.
// Idle() int returns how many idle connections may lead to an earlier server, Connected() time.Time when the server last
// greeted a connection. An io.Closer is closed with the Server.
type Doer interface {
	Do(ctx context.Context, args ...any) (any, error)
}

// OrderedDoer is a Doer that sends two commands on one connection. Without it, a Give, Charge or Settle may be sent on a
// connection that has ended, and slots that are moving are not followed.
type OrderedDoer interface {
	Doer
	// DoBoth sends the second command when the first has its reply, whatever that is, and returns the second's. If the
	// connection fails before, the error is made by Unsent.
	DoBoth(ctx context.Context, first, second []any) (any, error)
}

// WaitingDoer is a Doer that opens connections for calls that wait in the server. With other Doers, a call with MaxWait
// polls.
type WaitingDoer interface {
	Doer
	// Dial opens a connection of its own, on which no timeout of the client library applies. It may do so with the first
	// command.
	Dial(ctx context.Context) (Conn, error)
}

// Conn is a connection that one call at a time uses.
type Conn interface {
	// Do waits for the reply as long as that takes.
	Do(args ...any) (any, error)
	// Close ends Do. Any goroutine may call it.
	Close() error
}

// ClusterDoer is a Doer that leads to the nodes of a cluster. The Server finds the node of a key.
type ClusterDoer interface {
	Doer
	// Addresses lists nodes to ask first where the slots are.
	Addresses() []string
	// Node makes a Doer for one node.
	Node(address string) Doer
}

// Clock is the time by which limiters wait and forget. A Doer that is one, as the fake server is, sets the clock of the
// Server, answers at once and is never silent.
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
	settings    serverSettings
	cluster     *cluster // nil: a single server
	single      *node    // nil: a cluster
	local       *local.Store
	degraded    atomic.Int64
	returning   atomic.Int64 // batches on their way back
	closed      atomic.Bool
	late        atomic.Int64 // holds that are settled later
}

type serverSettings struct {
	timeout    time.Duration
	retryEvery time.Duration
	logf       func(format string, args ...any)
	hasScript  bool
}

// ServerOption is a setting of a Server.
type ServerOption func(*serverSettings)

// Timeout is how long the server may be silent, on every connection, before it counts as away; 100 ms unless set. No call
// waits longer for a server that says nothing, but for up to a second if it has to open one more connection. 0 waits for
// ever.
func Timeout(timeout time.Duration) ServerOption {
	return func(s *serverSettings) { s.timeout = timeout }
}

// RetryEvery is how often one call tries a server that is away; 500 ms unless set.
func RetryEvery(every time.Duration) ServerOption {
	return func(s *serverSettings) { s.retryEvery = every }
}

// LogTo gets a line when the server goes, one when it returns, and one for each error of a renewal; log.Printf unless set.
func LogTo(logf func(format string, args ...any)) ServerOption {
	return func(s *serverSettings) { s.logf = logf }
}

// FallbackScript lets a Lua script decide while the server has no module. Its buckets are others, under keys of its own.
func FallbackScript() ServerOption {
	return func(s *serverSettings) { s.hasScript = true }
}

// mostNames bounds the buckets that the local limiter keeps.
const mostNames = 10_000

// NewServer asks nothing yet: the first call finds out whether the server is there.
func NewServer(doer Doer, options ...ServerOption) *Server {
	s := &Server{doer: doer, clock: realClock{}, local: local.NewStore(mostNames)}
	s.settings = serverSettings{timeout: 100 * time.Millisecond, retryEvery: 500 * time.Millisecond, logf: log.Printf}
	if clock, ok := doer.(Clock); ok {
		s.clock, s.synchronous = clock, true
	}
	for _, option := range options {
		option(&s.settings)
	}
	if of, ok := doer.(ClusterDoer); ok {
		s.cluster = &cluster{server: s, doer: of, nodes: map[string]*node{}, slots: map[int64]*node{}}
		return s
	}
	who := "the server"
	if addressed, ok := doer.(interface{ Address() string }); ok && addressed.Address() != "" {
		who += " " + addressed.Address()
	}
	s.single = newNode(s, doer, who)
	return s
}

// DegradedCount is how many decisions were made without the server.
func (s *Server) DegradedCount() int64 { return s.degraded.Load() }

// Close closes the connections that were opened for the Server. Calls that come later fail with ErrClosed, whatever OnError
// says. Limiters that hold batches are closed before.
func (s *Server) Close() error {
	s.closed.Store(true)
	if s.cluster == nil {
		return s.single.close()
	}
	s.cluster.closeNodes()
	return closeDoer(s.doer)
}

// Do sends any command, like TB.STATE, and waits for its reply as limiters do.
func (s *Server) Do(ctx context.Context, words ...string) (any, error) {
	args := make([]any, len(words))
	for i, word := range words {
		args[i] = word
	}
	return s.ask(ctx, command{args: args, key: keyOf(words), always: true})
}

// command is a call to the server with its options.
type command struct {
	args []any // the name, then words, all strings
	key  string
	// first is sent before, on the same connection.
	first []any
	// always asks even while the circuit is open.
	always bool
	// once forbids sending it again when its reply was lost.
	once bool
	// undoes says that a grant goes back if its caller has gone.
	undoes bool
	// renews sends the renewal of what a TB.MHOLD holds. While the server is away, the policy decides on the TB.MHOLD.
	renews bool
	// ttl is how long a hold lasts that the command settles.
	ttl time.Duration
	// maxWait lets what would be denied wait in the server.
	maxWait time.Duration
	// share names the tenant whose turn a call that waits takes.
	share []any
	// wrong is the error of an option.
	wrong error
	// until is when that ends, if the server keeps it.
	until time.Time
}

// ask returns an *awayError if the server does not decide, and any other error if the call is wrong or its context is over.
func (s *Server) ask(ctx context.Context, c command) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var reply any
	var err error
	switch {
	case c.wrong != nil:
		return nil, c.wrong
	case s.closed.Load():
		return nil, ErrClosed
	case c.maxWait > 0:
		reply, err = s.wait(ctx, c)
	default:
		reply, err = s.decide(ctx, c)
	}
	if err != nil && s.closed.Load() {
		return nil, ErrClosed
	}
	if ended := ctx.Err(); ended != nil && !c.once {
		s.giveBack(c, reply, err)
		return nil, ended
	}
	return reply, err
}

// decide asks the module, or the script where there is no module.
func (s *Server) decide(ctx context.Context, c command) (any, error) {
	name := c.args[0].(string)
	hasScript := s.settings.hasScript && isScripted[name]
	n := s.nodeOf(c.key)
	if hasScript && n.usesScript() {
		return s.decideByScript(ctx, n, c)
	}
	reply, err := s.route(ctx, c)
	switch {
	case err == nil && strings.HasPrefix(name, "TB."):
		n.endScript()
	case !isUnknownCommand(err):
	case hasScript:
		n.beginScript()
		return s.decideByScript(ctx, n, c)
	case needsModule[name]:
		return nil, wrap(ErrModuleMissing, "and holds need it: load it")
	case isScripted[name]:
		return nil, wrap(ErrModuleMissing, "load it, or give the Server FallbackScript()")
	}
	return reply, err
}

// nodeOf returns the node that has the key, as far as is known.
func (s *Server) nodeOf(key string) *node {
	if s.cluster != nil {
		return s.cluster.nodeOf(key)
	}
	return s.single
}

const (
	// mostRedirections ends following a slot that moves back and forth.
	mostRedirections = 5
	// triesOfSplitSlot is how often a call is sent within the timeout while some of its keys have moved with their slot.
	// No node does anything then.
	triesOfSplitSlot = 10
)

// route sends the command to the node that has its key, and follows slots that have moved or are moving.
func (s *Server) route(ctx context.Context, c command) (any, error) {
	n, call := s.nodeOf(c.key), (*node).call
	if !c.until.IsZero() {
		call = (*node).callLong
	}
	for redirected, tries := 0, 1; ; {
		reply, err := call(n, ctx, c)
		if err == nil {
			return reply, nil
		}
		move := s.moveOf(err)
		switch {
		case move != nil && redirected < mostRedirections:
			redirected++
			n, c.first = s.cluster.follow(n, move)
		case isSplitSlot(err) && tries < triesOfSplitSlot:
			tries++
			if err := s.clock.Sleep(ctx, s.settings.timeout/triesOfSplitSlot); err != nil {
				return nil, err
			}
			n, c.first = s.nodeOf(c.key), nil
		case move != nil || isSplitSlot(err):
			n.refused(err)
			return nil, &awayError{server: n.who, cause: err}
		default:
			return reply, err
		}
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
