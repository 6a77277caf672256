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

// ask decides by the policy what the server does not decide. The parts are those of a command over several limits, or none.
func (s *settings) ask(ctx context.Context, c command, parts ...part) (Decision, error) {
	if c.share != nil && len(parts) > 1 {
		return Decision{}, badArgument("share: a call of several buckets has none")
	}
	if s.shadow {
		c.maxWait = 0
	}
	sent := c
	if c.renews {
		sent.args = renewingForm(c.args)
	}
	reply, err := s.server.ask(ctx, sent)
	if err != nil {
		return s.without(c, err, parts...)
	}
	return c.parse(reply, parts)
}

// parse reads a reply. One that denies alternatives does not say of which its inner decisions are.
func (c command) parse(reply any, parts []part) (Decision, error) {
	if c.each > 0 {
		decision, err := parseDecision(reply, nil)
		if err != nil || !decision.Allowed {
			return decision, err
		}
		parts = c.chosen(parts, decision.Granted)
	}
	return parseDecision(reply, nil, parts...)
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
func (s *settings) without(c command, err error, parts ...part) (decision Decision, failure error) {
	away := awayOf(err)
	if away == nil {
		return decision, err
	}
	s.server.degraded.Add(1)
	decide := s.server.decideLocally
	if s.policy != FailLocal { // to find mistakes
		decide = func(args []any) (any, error) { return local.NewStore(0).Do(0, args...) }
	}
	switch reply, wrong := decide(c.args); {
	case wrong != nil:
		failure = badArgument("%s (decided here, the server is away)", wrong)
	case s.policy == FailLocal:
		decision, failure = c.parse(reply, parts)
	case s.policy == FailOpen:
		decision = Decision{Allowed: true, Granted: 1}
		if c.args[0] == "TB.TAKEUPTO" {
			decision.Granted, _ = strconv.ParseInt(c.args[4].(string), 10, 64)
		}
	case s.policy == FailClosed:
		decision = Decision{RetryAfter: upToMs(s.server.retryEvery)}
	default:
		failure = err
	}
	decision.Degraded, decision.Lost = true, away.lost
	for which, own := range decision.Each {
		own.Degraded, own.Lost = true, away.lost
		decision.Each[which] = own
	}
	if c.args[0] == "TB.MSETTLE" {
		s.server.settleLater(c)
	}
	return decision, failure
}

// decideLocally forgets nothing when the server is back: outages that follow each other share one bucket. It decides by a time
// that is that of the day at the start, and goes on steadily.
func (s *Server) decideLocally(args []any) (any, error) {
	return s.local.Do(time.Duration(s.started.UnixNano()+s.now()-1), args...)
}
