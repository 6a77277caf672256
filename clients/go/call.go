package tokenbucket

import (
	"context"
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
	maxWait time.Duration // in the server, on a connection of its own
	ready   chan struct{} // receives once, when the caller may go on
	bytes   int64         // on a pipe

	// The lane's mutex guards what follows.
	phase      phase
	since      int64 // of the lane's clock: when the phase began
	left       int64 // of maxWait when the command was sent: before that is over, no reply is due
	pipe       *pipe // that it is under way on
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

// Heard returns what a Doer calls when bytes arrive on a connection to the server of this call; nil without a call.
func Heard(ctx context.Context) func() {
	if c := callOf(ctx); c != nil {
		return c.lane.hear
	}
	return nil
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
	c.lane.mutex.Lock()
	left := time.Duration(c.left)
	c.lane.mutex.Unlock()
	// The lane drops a late call first, and knows whether the server was silent or this call alone was late.
	return time.Now().Add(left + 2*c.lane.longest()), true
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
	// A hold that was waited for may have been granted when its connection was closed. Nothing is lost by settling none.
	mayBeHeld := c.maxWait > 0 && c.args[0] == "TB.MHOLD" && !isServerLine(c.err)
	isDue := c.finished && c.released && c.undoes && c.fate == undone && (c.err == nil || mayBeHeld)
	if isDue {
		c.fate = kept
	}
	c.lane.mutex.Unlock()
	if !isDue {
		return
	}
	for _, undo := range c.undoing() {
		go c.lane.server.undo(undo, c.err != nil)
	}
}

// undoAgainAfter is how long a server may take to see that a connection was closed.
const undoAgainAfter = time.Second

// undo sends it again later if the call may be granted behind it: the server has not seen yet that the caller has gone.
func (s *Server) undo(c command, mayStillWait bool) {
	_, _ = s.ask(context.Background(), c)
	if mayStillWait && s.clock.Sleep(context.Background(), undoAgainAfter) == nil {
		_, _ = s.ask(context.Background(), c)
	}
}

// undoing lists the commands that return what the call has taken, or may have.
func (c *call) undoing() []command {
	args := c.args
	decision, err := parseDecision(c.reply)
	if c.err == nil && (err != nil || !decision.Allowed) {
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
