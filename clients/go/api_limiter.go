package tokenbucket

import (
	"context"
	"math"
	"strconv"
	"time"
)

// LimiterOption sets an option of a Limiter or a JointLimiter.
type LimiterOption func(*settings)

type settings struct {
	server     *Server
	prefix     string
	policy     Policy
	denials    *denials
	batch      int64
	onDecision []func(string, Limit, Decision, time.Duration)
	shadow     bool
	wrong      error // of an option: every call returns it
}

// Prefix sets what precedes each name in its key; "tb:" by default.
func Prefix(prefix string) LimiterOption { return func(s *settings) { s.prefix = prefix } }

// OnError sets what decides while the server is away; FailLocal by default. A caller's mistake is an error under every
// policy.
func OnError(policy Policy) LimiterOption { return func(s *settings) { s.policy = policy } }

// RememberDenials lets this process refuse up to this number of denied names by itself, each until its RetryAfter has
// passed. Smaller costs than the denied one still ask the server. The default is 0; less is ErrBadArgument.
func RememberDenials(names int) LimiterOption {
	return func(s *settings) { s.denials.most = names }
}

// Batch fetches this number of tokens of a name at a time and spends them in this process, for whole costs up to it. Each
// process keeps up to one less than a batch of a name, which others are denied meanwhile. Close gives it back; it is dropped
// after the time in which an empty bucket fills. The default, 0, asks the server each time; less is ErrBadArgument.
func Batch(tokens int64) LimiterOption { return func(s *settings) { s.batch = tokens } }

// OnDecision calls the function with each decision, the server's or the policy's, and its duration, before the caller has it. A
// panic in it is logged and changes nothing.
func OnDecision(call func(name string, limit Limit, decision Decision, duration time.Duration)) LimiterOption {
	return func(s *settings) { s.onDecision = append(s.onDecision, call) }
}

// Shadow lets every call pass, at once. The server decides and counts as always, and a decision that was a denial is
// Shadowed: so you see whom a limit would deny.
func Shadow(on bool) LimiterOption { return func(s *settings) { s.shadow = on } }

func newSettings(server *Server, options []LimiterOption) settings {
	s := settings{server: server, prefix: "tb:", denials: &denials{}}
	for _, option := range options {
		option(&s)
	}
	switch {
	case s.policy < FailLocal || s.policy > FailWithError:
		s.wrong = badArgument("on error: there is no policy %d", s.policy)
	case s.batch < 0 || s.denials.most < 0:
		s.wrong = badArgument("batch and remembered denials: %d and %d must not be below 0", s.batch, s.denials.most)
	}
	return s
}

// part is one of the buckets that a command is about.
type part struct {
	which string // the name of its limit in a JointLimiter; of a Limiter ""
	bucket
	words  [2]any // of the limit
	amount float64
}

// bucket is a name under a limit.
type bucket struct {
	name  string
	limit Limit
}

// with returns the part with another amount.
func (p part) with(amount int64) part {
	p.amount = float64(amount)
	return p
}

// command returns one of these words, followed by the arguments of each part.
func (s *settings) command(words []any, parts ...part) command {
	c := command{args: append(make([]any, 0, len(words)+4*len(parts)+1), words...), wrong: s.wrong}
	c.once = words[0] == "TB.GIVE" || words[0] == "TB.CHARGE" || words[0] == "TB.MSETTLE"
	for _, p := range parts {
		key := s.prefix + p.name
		if c.key == "" {
			c.key = key
		}
		c.args = append(c.args, key, p.words[0], p.words[1], tokens(p.amount))
	}
	return c
}

// reporting decides, and reports the decision.
func (s *settings) reporting(wanted int64, decide func() (Decision, error), parts ...part) (Decision, error) {
	began := s.server.clock.Now()
	decision, err := decide()
	if err == nil {
		decision = s.report(parts, decision, wanted, began)
	}
	return decision, err
}

// report lets what was denied pass in shadow mode, and reports to OnDecision what was decided about each part.
func (s *settings) report(parts []part, decision Decision, wanted int64, began time.Time) Decision {
	decision = s.passing(decision, wanted)
	for _, p := range parts {
		own, ok := decision.Each[p.which]
		if !ok {
			own = decision
		} else if passed := s.passing(own, wanted); passed.Shadowed { // never of a settlement, which others may be reading
			own, decision.Each[p.which] = passed, passed
		}
		for _, call := range s.onDecision {
			guarded(func() { call(p.name, p.limit, own, s.server.clock.Now().Sub(began)) })
		}
	}
	return decision
}

func (s *settings) passing(decision Decision, wanted int64) Decision {
	if s.shadow && decision.Granted < wanted {
		decision.Allowed, decision.Granted, decision.Shadowed = true, wanted, true
	}
	return decision
}

// Limiter is one limit for many names; each name has a bucket of its own, under Prefix + name.
type Limiter struct {
	limit      Limit
	limitWords [2]any // made once, because that costs memory
	batches    *recent[bucket, *batch]
	settings
}

// NewLimiter makes a limiter of a server and a limit. It sends nothing: a wrong limit is an error of the first call.
func NewLimiter(server *Server, limit Limit, options ...LimiterOption) *Limiter {
	return &Limiter{limit, limit.words(), &recent[bucket, *batch]{most: mostBatches}, newSettings(server, options)}
}

// Limit returns the limit that the limiter was made with.
func (l *Limiter) Limit() Limit { return l.limit }

// With returns the limiter with another limit for the same names. Both share the buckets. Of a name they remember one denial,
// the last, and a batch for each limit.
func (l *Limiter) With(limit Limit) *Limiter {
	other := *l
	other.limit, other.limitWords = limit, limit.words()
	return &other
}

// Take takes cost tokens if the bucket holds them, else nothing. With MaxWait it waits for its turn.
func (l *Limiter) Take(ctx context.Context, name string, cost float64, options ...CallOption) (Decision, error) {
	p := l.part(name, cost)
	return l.reporting(1, func() (Decision, error) {
		if l.server.isClosed() {
			return Decision{}, ErrClosed // before a batch or a denial decides
		}
		if len(options) > 0 {
			if c := l.command([]any{"TB.TAKE"}, p).with(options); c.maxWait > 0 || c.wrong != nil {
				return l.ask(ctx, c)
			}
		}
		if l.batch > 1 && cost >= 1 && cost <= math.Min(float64(l.batch), l.limit.Capacity) && cost == math.Trunc(cost) {
			return l.takeFromBatch(ctx, p)
		}
		return l.takeRemembering(ctx, p)
	}, p)
}

// takeRemembering asks, unless a denial that still holds is remembered. None says when there will be more than the capacity.
func (l *Limiter) takeRemembering(ctx context.Context, p part) (Decision, error) {
	if l.denials.most == 0 || p.amount > l.limit.Capacity {
		return l.decide(ctx, "TB.TAKE", p)
	}
	asked := l.server.clock.Now()
	if refusal, ok := l.recall(p, asked); ok {
		return refusal, nil
	}
	decision, err := l.decide(ctx, "TB.TAKE", p)
	if err == nil {
		l.remember(p, decision, asked)
	}
	return decision, err
}

// Peek returns what Take would decide, and takes nothing. With cost 0, Remaining is what the bucket has.
func (l *Limiter) Peek(ctx context.Context, name string, cost float64) (Decision, error) {
	return l.decideAndReport(ctx, "TB.PEEK", name, cost, 1)
}

// TakeUpTo takes as many whole tokens as the bucket has, at most most: see Granted.
func (l *Limiter) TakeUpTo(ctx context.Context, name string, most int64) (Decision, error) {
	return l.decideAndReport(ctx, "TB.TAKEUPTO", name, float64(most), most)
}

// Reserve books a place in the queue: sleep RetryAfter, then act. It is denied, without taking a token, if the wait would
// exceed maxWait; RetryAfter is then how long that wait would have been.
func (l *Limiter) Reserve(ctx context.Context, name string, cost float64, maxWait time.Duration) (Decision, error) {
	p := l.part(name, cost)
	c := l.command([]any{"TB.RESERVE"}, p)
	c.args = append(c.args, strconv.FormatInt(maxWait.Milliseconds(), 10))
	decision, err := l.reporting(1, func() (Decision, error) { return l.ask(ctx, c) }, p)
	if l.shadow {
		decision.RetryAfter = 0
	}
	return decision, err
}

// Wait reserves, and sleeps until the call may act. If ctx ends before, the tokens go back.
func (l *Limiter) Wait(ctx context.Context, name string, cost float64, maxWait time.Duration) (Decision, error) {
	decision, err := l.Reserve(ctx, name, cost, maxWait)
	if err != nil || !decision.Allowed || decision.RetryAfter == 0 {
		return decision, err
	}
	if err := l.server.clock.Sleep(ctx, decision.RetryAfter); err != nil {
		// Should it fail, the bucket refills by itself: a token less was used, never one more.
		give := l.command([]any{"TB.GIVE"}, l.part(name, cost))
		switch {
		case !decision.Degraded:
			_, _ = l.server.ask(context.Background(), give) // the caller's context is over
			l.forget(name)
		case l.policy == FailLocal: // where it was reserved
			_, _ = l.server.decideLocally(give.args)
		}
		return Decision{}, err
	}
	return decision, nil
}

// Charge takes amount unconditionally, into debt if needed, when the real cost is known only afterwards. It is sent once:
// see Lost.
func (l *Limiter) Charge(ctx context.Context, name string, amount float64) (Decision, error) {
	return l.decideAndReport(ctx, "TB.CHARGE", name, amount, 1)
}

// Give puts amount back, at most up to the capacity. It is sent once: see Lost.
func (l *Limiter) Give(ctx context.Context, name string, amount float64) (Decision, error) {
	defer l.forget(name)
	return l.decideAndReport(ctx, "TB.GIVE", name, amount, 1)
}

// Reset makes the bucket full, and forgets its holds.
func (l *Limiter) Reset(ctx context.Context, name string) error {
	defer l.forget(name)
	defer l.forgetBatches(name)
	return l.server.delete(ctx, l.prefix+name)
}

// delete makes a bucket full, here and in the server.
func (s *Server) delete(ctx context.Context, key string) error {
	del := []any{"DEL", key}
	_, _ = s.decideLocally(del)
	_, err := s.ask(ctx, command{args: del, key: key})
	return err
}

// Hold takes amount until the hold is settled or, if its process dies, until ttl (1 ms to 30 days) is over: see the type
// Hold. With MaxWait it waits for its turn, and the ttl begins with the grant.
func (l *Limiter) Hold(ctx context.Context, name string, amount float64, ttl time.Duration, options ...CallOption) (*Hold, error) {
	return newHold(ctx, l.settings, []part{l.part(name, amount)}, 0, ttl, options)
}

func (l *Limiter) part(name string, amount float64) part {
	return part{"", bucket{name, l.limit}, l.limitWords, amount}
}

func (l *Limiter) decideAndReport(ctx context.Context, operation any, name string, amount float64, wanted int64) (Decision, error) {
	p := l.part(name, amount)
	return l.reporting(wanted, func() (Decision, error) { return l.decide(ctx, operation, p) }, p)
}

// decide asks a command about a single bucket. The operation is a constant, which needs no memory.
func (l *Limiter) decide(ctx context.Context, operation any, p part) (Decision, error) {
	return l.ask(ctx, l.command([]any{operation}, p))
}
