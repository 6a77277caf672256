package tokenbucket

import (
	"context"
	"strconv"
	"time"

	"tokenbucket/internal/local"
)

// Policy is what a limiter does while the server is away.
type Policy int

const (
	// FailLocal enforces the same limit in the memory of this process, for up to 10,000 names. It is the policy unless set
	// otherwise. Each outage can let one more bucket through in each process: the capacity, and what refills while it lasts.
	FailLocal Policy = iota
	// FailOpen lets everything through.
	FailOpen
	// FailClosed lets nothing through.
	FailClosed
	// FailWithError returns ErrServerAway or ErrReplyLost.
	FailWithError
)

// ask decides by the policy what the server does not decide. The parts are those of a command over several limits, or nil.
func (s *settings) ask(ctx context.Context, c command, parts []part) (JointDecision, error) {
	if s.shadow {
		c.maxWait = 0
	}
	sent := c
	if c.renews {
		sent.args = renewingForm(c.args)
	}
	reply, err := s.server.ask(ctx, sent)
	if err != nil {
		return s.without(c, parts, err)
	}
	return parseJointDecision(reply, parts)
}

// renewingForm returns the command that makes a hold last longer, and takes nothing if it is gone.
func renewingForm(hold []any) []any {
	renewal := append([]any{"TB.MRENEW"}, hold[1:4]...)
	for group := hold[4:]; len(group) >= 4; group = group[4:] {
		renewal = append(renewal, group[:3]...)
	}
	return renewal
}

// without decides by the policy.
func (s *settings) without(c command, parts []part, err error) (joint JointDecision, failure error) {
	away := awayOf(err)
	if away == nil {
		return joint, err
	}
	s.server.degraded.Add(1)
	reply, failure := s.policyReply(c.args, err)
	if failure == nil {
		if s.policy != FailLocal {
			parts = nil
		}
		joint, failure = parseJointDecision(reply, parts)
	}
	joint.Degraded, joint.Lost, joint.mayBeHeld = true, away.lost, away.mayBeHeld
	for which, own := range joint.Each {
		own.Degraded, own.Lost = true, away.lost
		joint.Each[which] = own
	}
	switch {
	case c.args[0] == "TB.MSETTLE":
		s.server.settleLater(c)
	case away.mayBeHeld && !joint.Allowed:
		s.server.settleInDoubt(c)
	}
	return joint, failure
}

// policyReply has the shape of the server's reply.
func (s *settings) policyReply(args []any, err error) (any, error) {
	decide := s.server.decideLocally
	if s.policy != FailLocal {
		decide = decideOnFullBuckets
	}
	reply, wrong := decide(args)
	switch {
	case wrong != nil:
		return nil, badArgument("%s (decided here, the server is away)", wrong)
	case s.policy == FailLocal:
		return reply, nil
	case s.policy == FailOpen:
		granted := int64(1)
		if args[0] == "TB.TAKEUPTO" {
			granted, _ = strconv.ParseInt(args[4].(string), 10, 64)
		}
		return []any{granted, int64(0), int64(0), int64(0)}, nil
	case s.policy == FailClosed:
		return []any{int64(0), int64(0), upToMs(s.server.retryEvery).Milliseconds(), int64(0)}, nil
	}
	return nil, err
}

// decideLocally forgets nothing when the server is back: outages that follow each other share one bucket. It decides by a time
// that is that of the day at the start, and goes on steadily.
func (s *Server) decideLocally(args []any) (any, error) {
	return s.local.Do(time.Duration(s.started.UnixNano()+s.now()-1), local.Words(args))
}

// decideOnFullBuckets finds mistakes.
func decideOnFullBuckets(args []any) (any, error) { return local.NewStore(0).Do(0, local.Words(args)) }
