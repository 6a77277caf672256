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

// passing grants what was wanted in shadow mode.
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
	batches    *batches
	settings
}

// NewLimiter makes a limiter of a server and a limit. It sends nothing: a wrong limit is an error of the first call.
func NewLimiter(server *Server, limit Limit, options ...LimiterOption) *Limiter {
	return &Limiter{limit, limit.words(), &batches{recent[*batch]{most: mostBatches}}, newSettings(server, options)}
}

// Limit returns the limit that the limiter was made with.
func (l *Limiter) Limit() Limit { return l.limit }

// With returns the limiter with another limit for the same names. Both share buckets, denials and batches.
func (l *Limiter) With(limit Limit) *Limiter {
	other := *l
	other.limit, other.limitWords = limit, limit.words()
	return &other
}

// Take takes cost tokens if the bucket holds them, else nothing. With MaxWait it waits for its turn.
func (l *Limiter) Take(ctx context.Context, name string, cost float64, options ...CallOption) (Decision, error) {
	return l.told(name, 1, func() (Decision, error) { return l.take(ctx, name, cost, options) })
}

func (l *Limiter) take(ctx context.Context, name string, cost float64, options []CallOption) (Decision, error) {
	if len(options) > 0 {
		if c := l.command("TB.TAKE", l.of(name), cost).with(options); c.maxWait > 0 || c.wrong != nil {
			joint, err := l.ask(ctx, c, nil)
			return joint.Decision, err
		}
	}
	if l.batch > 1 && cost >= 1 && cost <= math.Min(float64(l.batch), l.limit.Capacity) && cost == math.Trunc(cost) {
		return l.takeFromBatch(ctx, name, int64(cost))
	}
	return l.takeRemembering(ctx, name, cost)
}

// takeRemembering asks, unless a denial that still holds is remembered. None says when there will be more than the capacity.
func (l *Limiter) takeRemembering(ctx context.Context, name string, cost float64) (Decision, error) {
	if l.denials.most == 0 || cost > l.limit.Capacity {
		return l.decide(ctx, "TB.TAKE", name, cost)
	}
	asked := l.server.clock.Now()
	if refusal, ok := l.denials.recall(l.of(name), cost, asked); ok {
		return refusal, nil
	}
	decision, err := l.decide(ctx, "TB.TAKE", name, cost)
	if err == nil {
		l.denials.remember(l.of(name), denial{cost, decision, asked, l.server.clock.Now()})
	}
	return decision, err
}

// Peek returns what Take would decide, and takes nothing. With cost 0, Remaining is what the bucket has.
func (l *Limiter) Peek(ctx context.Context, name string, cost float64) (Decision, error) {
	return l.decideAndTell(ctx, "TB.PEEK", name, cost)
}

// TakeUpTo takes as many whole tokens as the bucket has, at most most: see Granted.
func (l *Limiter) TakeUpTo(ctx context.Context, name string, most int64) (Decision, error) {
	return l.told(name, most, func() (Decision, error) { return l.decide(ctx, "TB.TAKEUPTO", name, float64(most)) })
}

// Reserve books a place in the queue: sleep RetryAfter, then act. It is denied, without taking a token, if the wait would
// exceed maxWait; RetryAfter is then how long that wait would have been.
func (l *Limiter) Reserve(ctx context.Context, name string, cost float64, maxWait time.Duration) (Decision, error) {
	decision, err := l.decideAndTell(ctx, "TB.RESERVE", name, cost, strconv.FormatInt(maxWait.Milliseconds(), 10))
	if l.shadow {
		decision.RetryAfter = 0
	}
	return decision, err
}

// Wait reserves, and sleeps until the call's turn. If ctx ends before, the tokens go back.
func (l *Limiter) Wait(ctx context.Context, name string, cost float64, maxWait time.Duration) (Decision, error) {
	decision, err := l.Reserve(ctx, name, cost, maxWait)
	if err != nil || !decision.Allowed || decision.RetryAfter == 0 {
		return decision, err
	}
	if err := l.server.clock.Sleep(ctx, decision.RetryAfter); err != nil {
		// Should it fail, the bucket refills by itself: a token less was used, never one more.
		give := l.command("TB.GIVE", l.of(name), cost)
		switch {
		case !decision.Degraded:
			l.denials.forget(l.of(name))
			_, _ = l.server.ask(context.Background(), give) // the caller's context is over
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
	return l.decideAndTell(ctx, "TB.CHARGE", name, amount)
}

// Give puts amount back, at most up to the capacity. It is sent once: see Lost.
func (l *Limiter) Give(ctx context.Context, name string, amount float64) (Decision, error) {
	l.denials.forget(l.of(name))
	return l.decideAndTell(ctx, "TB.GIVE", name, amount)
}

// Reset makes the bucket full, and forgets its holds.
func (l *Limiter) Reset(ctx context.Context, name string) error {
	l.denials.forget(l.of(name))
	l.batches.drop(l.of(name))
	return l.server.delete(ctx, l.prefix+name)
}

// delete makes buckets full, here and in the server.
func (s *Server) delete(ctx context.Context, key string) error {
	_, _ = s.decideLocally([]any{"DEL", key})
	_, err := s.Do(ctx, "DEL", key)
	if err == nil && s.hasScript {
		_, err = s.Do(ctx, "DEL", key+scriptSuffix)
	}
	return err
}

// Hold takes amount until the hold is settled or, if its process dies, until ttl (1 ms to 30 days) is over: see the type
// Hold. With MaxWait it waits for its turn, and the ttl begins with the grant.
func (l *Limiter) Hold(ctx context.Context, name string, amount float64, ttl time.Duration, options ...CallOption) (*Hold, error) {
	return newHold(ctx, l.settings, []part{{"", l.of(name), amount}}, ttl, options)
}

// WithHold runs work under a hold, and settles it when work returns or panics. It returns a *DeniedError, without running
// work, if the hold is denied; else the error of work, or that of Settle.
func (l *Limiter) WithHold(ctx context.Context, name string, amount float64, ttl time.Duration, work func(*Hold) error, options ...CallOption) error {
	hold, err := l.Hold(ctx, name, amount, ttl, options...)
	return hold.during(err, work)
}

// Close gives back what batches have left.
func (l *Limiter) Close(ctx context.Context) error {
	var first error
	for of, left := range l.batches.drain(l.server.clock.Now()) {
		if _, err := l.With(of.limit).Give(ctx, of.name, float64(left)); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// bucket is what denials and batches are kept for.
type bucket struct {
	name  string
	limit Limit
	words [2]any
}

func (l *Limiter) of(name string) bucket { return bucket{name, l.limit, l.limitWords} }

// told tells OnDecision, and lets the call pass in shadow mode.
func (l *Limiter) told(name string, wanted int64, decide func() (Decision, error)) (Decision, error) {
	began := l.server.clock.Now()
	decision, err := decide()
	if err == nil {
		decision = l.passing(decision, wanted)
		l.tellAll([]part{{bucket: l.of(name)}}, JointDecision{Decision: decision}, began)
	}
	return decision, err
}

func (l *Limiter) decideAndTell(ctx context.Context, operation any, name string, amount float64, more ...any) (Decision, error) {
	return l.told(name, 1, func() (Decision, error) { return l.decide(ctx, operation, name, amount, more...) })
}

func (l *Limiter) decide(ctx context.Context, operation any, name string, amount float64, more ...any) (Decision, error) {
	joint, err := l.ask(ctx, l.command(operation, l.of(name), amount, more...), nil)
	return joint.Decision, err
}

// command is one about a single bucket. The operation is a constant, which needs no memory.
func (s *settings) command(operation any, of bucket, amount float64, more ...any) command {
	args := s.words(append(make([]any, 0, 6), operation), part{bucket: of, amount: amount})
	once := operation == "TB.GIVE" || operation == "TB.CHARGE"
	return command{args: append(args, more...), key: args[1].(string), once: once, wrong: s.wrong}
}
