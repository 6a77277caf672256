package tokenbucket

import (
	"context"
	"strconv"
	"strings"
	"time"
)

// WaitingDoer is a Doer that sends commands which wait in the server for their turn. With other Doers, a call with MaxWait
// polls.
type WaitingDoer interface {
	Doer
	// DoWaiting sends a command whose reply may take until the deadline of the context. It uses a connection that no other
	// command needs meanwhile, and no timeout of the client ends the wait. When the context ends, it closes the connection:
	// so the call leaves the server's queue.
	DoWaiting(ctx context.Context, args ...any) (any, error)
}

// CallOption is a setting of one call.
type CallOption func(*command)

// MaxWait lets a call that would be denied wait in the server for its turn, at most so long. Calls that wait for the same
// bucket are served in the order in which they came. When the time is over, the decision is the denial of that moment.
//
// The call leaves the queue when its context ends. Batch and RememberDenials do not apply to it. While the server is away,
// OnError decides without a wait. Where the module cannot keep the call (FallbackScript, an older module, a Doer that is no
// WaitingDoer) the client asks again at the times that the decisions tell: then nothing keeps the order.
func MaxWait(maxWait time.Duration) CallOption {
	return func(c *command) { c.maxWait = maxWait }
}

func (c command) with(options []CallOption) command {
	for _, option := range options {
		option(&c)
	}
	return c
}

// wait lets the server keep the call until its turn, or polls where it cannot.
func (s *Server) wait(ctx context.Context, c command) (any, error) {
	until := s.clock.Now().Add(c.maxWait)
	module := s.node(c.key)
	_, canWait := s.doer.(WaitingDoer)
	if canWait && !(s.hasScript(c.args) && module.script.inUse(s.clock)) {
		reply, err := s.waitOn(ctx, module, c)
		if !isUnknownCommand(err) {
			return reply, err
		}
	}
	return s.poll(ctx, c, until)
}

func (s *Server) waitOn(ctx context.Context, of *lane, c command) (any, error) {
	if of.circuit.away.Load() {
		// A call that waits would not tell for long whether the server is back.
		var away *awayError
		_, err := s.askNode(ctx, of, command{args: ping, key: c.key})
		if err != nil && (err == ctx.Err() || asAway(err, &away)) {
			return nil, err
		}
	}
	return s.runOn(ctx, &call{lane: of, args: c.args, key: c.key, maxWait: c.maxWait, undoes: true})
}

var ping = []any{"PING"}

// poll asks until the call is allowed, each time when the last decision told.
func (s *Server) poll(ctx context.Context, c command, until time.Time) (any, error) {
	c.maxWait = 0
	for {
		reply, err := s.ask(ctx, c)
		if err != nil {
			return nil, err
		}
		decision, err := parseDecision(reply)
		left := until.Sub(s.clock.Now())
		if err != nil || decision.Allowed || decision.RetryAfter == Never || left <= 0 {
			return reply, nil
		}
		pause := decision.RetryAfter
		if pause < time.Millisecond {
			pause = time.Millisecond
		}
		if pause > left {
			pause = left
		}
		if err := s.clock.Sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// triesOfWait is how often a call that waits is sent. Each time, a slot moved, a master changed or a connection ended.
const triesOfWait = 10

// performWaiting sends the command again with the time that is left when the server can keep it no longer.
func (s *Server) performWaiting(c *call) (reply any, err error) {
	began, repeated := s.clock.Now(), false
	for try := 0; try < triesOfWait; try++ {
		left := c.maxWait - s.clock.Now().Sub(began)
		if left < 0 {
			left = 0
		}
		if err := c.enterWaiting(left); err != nil {
			return nil, err
		}
		reply, err = s.doer.(WaitingDoer).DoWaiting(c, waitingForm(c.args, left)...)
		if err == nil || isServerLine(err) {
			c.lane.hear()
		}
		line, _ := serverLine(err)
		switch first, _, _ := strings.Cut(line, " "); {
		case c.Err() != nil:
			return reply, err
		case first == "UNBLOCKED" || first == "MOVED" && s.settings.isCluster:
		case (first == "READONLY" || isBroken(err)) && !repeated:
			repeated = true
			c.lane.script.lookForModule() // the server may be another
		case first == "TRYAGAIN":
			if err := s.clock.Sleep(c, s.settings.timeout/triesOfSplitSlot); err != nil {
				return nil, err
			}
		default:
			return reply, err
		}
	}
	return reply, err
}

// maxWaitPositions tell where max_wait_ms stands in the commands that wait; in others, at the end.
var maxWaitPositions = map[any]int{"TB.MTAKE": 2, "TB.MHOLD": 4}

// waitingForm is the command that waits at most so long for what the given one would be denied.
func waitingForm(args []any, maxWait time.Duration) []any {
	position, ok := maxWaitPositions[args[0]]
	if !ok {
		position = len(args)
	}
	words := make([]any, 0, len(args)+1)
	words = append(words, "TB.B"+strings.TrimPrefix(args[0].(string), "TB."))
	words = append(words, args[1:position]...)
	words = append(words, strconv.FormatInt(upToMs(maxWait).Milliseconds(), 10))
	return append(words, args[position:]...)
}

// WritesNothing is a write of the same name and key as a command that waits, which changes nothing: a server that is paused
// keeps it back. CLIENT UNBLOCK is sent behind it on the same connection: most servers before Redis 8.2 and Valkey 9 end if a
// call is unblocked that they keep back because they are paused.
func WritesNothing(waiting []any) []any {
	switch waiting[0] {
	case "TB.BMTAKE":
		return []any{"TB.BMTAKE", 1, 0, waiting[3], 0, 1, 0}
	case "TB.BMHOLD":
		return []any{"TB.BMHOLD", 1, 1, "none", 0, waiting[5], 0, 0, 0}
	case "TB.BHOLD":
		return []any{"TB.BHOLD", waiting[1], 0, 0, 0, 1, "none", 0}
	default:
		return []any{"TB.BTAKE", waiting[1], 0, 1, 0, 0}
	}
}

// enterWaiting: the command is about to be sent, and its reply may take so long.
func (c *call) enterWaiting(left time.Duration) error {
	c.lane.mutex.Lock()
	c.left = int64(left)
	c.lane.mutex.Unlock()
	return c.enter(sent)
}

// isKept tells whether the server may still keep the call, as of that time of the lane's clock.
func (c *call) isKept(now int64) bool {
	return c.phase == sent && c.left > 0 && now < c.since+c.left
}
