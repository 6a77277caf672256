package tokenbucket

import (
	"context"
	"errors"
	"math"
	"strconv"
	"time"
)

// Policy is what a limiter does while the server cannot be asked.
type Policy int

const (
	// FailOpen lets everything through. It is the policy unless told otherwise.
	FailOpen Policy = iota
	// FailClosed lets nothing through.
	FailClosed
	// FailWithError leaves it to the caller, who gets ErrServerAway.
	FailWithError
)

// LimiterOption is a setting of a Limiter or a JointLimiter.
type LimiterOption func(*settings)

type settings struct {
	prefix          string
	policy          Policy
	rememberDenials int
	batch           int64
	onDecision      []DecisionFunc
}

// DecisionFunc is told of every decision, wherever it was made, and how long it took.
type DecisionFunc func(name string, limit Limit, decision Decision, duration time.Duration)

// Prefix stands before each name in the keys; "tb:" unless told otherwise.
func Prefix(prefix string) LimiterOption { return func(s *settings) { s.prefix = prefix } }

// OnError is what to do while the server cannot be asked. A caller's mistake is an error under every policy.
func OnError(policy Policy) LimiterOption { return func(s *settings) { s.policy = policy } }

// RememberDenials refuses so many denied names here until their RetryAfter has passed, so that a flood is refused without
// asking. A denial says nothing about smaller costs: those are asked for.
func RememberDenials(names int) LimiterOption {
	return func(s *settings) { s.rememberDenials = names }
}

// Batch fetches so many tokens of a name at a time and spends them here, for whole costs up to that. Never more is granted
// than the server granted. Up to one less than a batch lies unused in each process; Close gives it back, and it is dropped
// after the time in which as many tokens flow in anew.
func Batch(tokens int64) LimiterOption { return func(s *settings) { s.batch = tokens } }

// OnDecision calls the function after each decision, and before the caller has it.
func OnDecision(call DecisionFunc) LimiterOption {
	return func(s *settings) { s.onDecision = append(s.onDecision, call) }
}

func newSettings(options []LimiterOption) settings {
	s := settings{prefix: "tb:"}
	for _, option := range options {
		option(&s)
	}
	return s
}

// decided by the policy, as nobody could be asked.
func (s settings) decided(server *Server, away error) (Decision, error) {
	switch s.policy {
	case FailOpen:
		return Decision{Allowed: true, Granted: 1, Degraded: true}, nil
	case FailClosed:
		return Decision{RetryAfter: server.settings.retryEvery, Degraded: true}, nil
	}
	return Decision{Degraded: true}, away
}

func (s settings) tell(server *Server, name string, limit Limit, decision Decision, began time.Time) {
	for _, call := range s.onDecision {
		call(name, limit, decision, server.clock.Now().Sub(began))
	}
}

// Limiter is one limit for many names; each name has a bucket of its own, under Prefix + name.
type Limiter struct {
	server  *Server
	limit   Limit
	denials *denials // nil: none are remembered
	batches *batches // nil: every token is asked for
	settings
}

// NewLimiter asks nothing yet.
func NewLimiter(server *Server, limit Limit, options ...LimiterOption) *Limiter {
	l := &Limiter{server: server, limit: limit, settings: newSettings(options)}
	if l.rememberDenials > 0 {
		l.denials = newDenials(l.rememberDenials)
	}
	if l.batch > 1 {
		l.batches = newBatches(l.batch)
	}
	return l
}

// Limit is what the limiter was made with.
func (l *Limiter) Limit() Limit { return l.limit }

// With is the limiter with another limit for the same names. Buckets, denials and batches are shared.
func (l *Limiter) With(limit Limit) *Limiter {
	other := *l
	other.limit = limit
	return &other
}

// Take takes cost tokens if the bucket holds them, else none.
func (l *Limiter) Take(ctx context.Context, name string, cost float64) (Decision, error) {
	began := l.server.clock.Now()
	decision, err := l.take(ctx, name, cost, began)
	if err == nil {
		l.tell(l.server, name, l.limit, decision, began)
	}
	return decision, err
}

func (l *Limiter) take(ctx context.Context, name string, cost float64, began time.Time) (Decision, error) {
	if l.batches != nil && cost >= 1 && cost <= float64(l.batch) && cost == math.Trunc(cost) {
		return l.takeFromBatch(ctx, name, int64(cost))
	}
	if refusal, ok := l.denials.recall(l.of(name), cost, began); ok {
		return refusal, nil
	}
	decision, err := l.ask(ctx, "TB.TAKE", name, tokens(cost))
	if err == nil {
		l.denials.remember(l.of(name), denial{cost, decision, began, l.server.clock.Now()})
	}
	return decision, err
}

// Peek is what Take would decide, and changes nothing; Remaining is as after it. Of cost 0, what there is.
func (l *Limiter) Peek(ctx context.Context, name string, cost float64) (Decision, error) {
	return l.askAndTell(ctx, "TB.PEEK", name, tokens(cost))
}

// TakeUpTo takes as many whole tokens as there are, at most most: see Granted.
func (l *Limiter) TakeUpTo(ctx context.Context, name string, most int64) (Decision, error) {
	began := l.server.clock.Now()
	decision, err := l.ask(ctx, "TB.TAKEUPTO", name, strconv.FormatInt(most, 10))
	if err == nil {
		if decision.Degraded && decision.Allowed {
			decision.Granted = most
		}
		l.tell(l.server, name, l.limit, decision, began)
	}
	return decision, err
}

// Reserve takes cost tokens now, out of the future if need be, provided that the wait for them is at most maxWait. The
// caller owns them and acts after RetryAfter. Denied: RetryAfter is how long that wait would have been.
func (l *Limiter) Reserve(ctx context.Context, name string, cost float64, maxWait time.Duration) (Decision, error) {
	return l.askAndTell(ctx, "TB.RESERVE", name, tokens(cost), strconv.FormatInt(maxWait.Milliseconds(), 10))
}

// Wait is Reserve that sleeps until it is the caller's turn. When ctx ends before, the tokens go back.
func (l *Limiter) Wait(ctx context.Context, name string, cost float64, maxWait time.Duration) (Decision, error) {
	decision, err := l.Reserve(ctx, name, cost, maxWait)
	if err != nil || !decision.Allowed || decision.RetryAfter == 0 {
		return decision, err
	}
	if err := l.server.clock.Sleep(ctx, decision.RetryAfter); err != nil {
		// Should this fail, the bucket refills by itself: a token less was used, never one more.
		_, _ = l.Give(context.Background(), name, cost) // the caller's context is over
		return Decision{}, err
	}
	return decision, nil
}

// Charge takes amount in any case, into debt if need be: the real cost became known afterwards.
func (l *Limiter) Charge(ctx context.Context, name string, amount float64) (Decision, error) {
	return l.askAndTell(ctx, "TB.CHARGE", name, tokens(amount))
}

// Give puts amount back, never above the capacity.
func (l *Limiter) Give(ctx context.Context, name string, amount float64) (Decision, error) {
	l.denials.forget(l.of(name))
	return l.askAndTell(ctx, "TB.GIVE", name, tokens(amount))
}

// Reset makes the bucket full.
func (l *Limiter) Reset(ctx context.Context, name string) error {
	l.denials.forget(l.of(name))
	if l.batches != nil {
		l.batches.drop(l.of(name))
	}
	key := l.prefix + name
	_, err := l.server.Do(ctx, "DEL", key)
	if err == nil && l.server.settings.hasScript {
		_, err = l.server.Do(ctx, "DEL", key+scriptSuffix)
	}
	return err
}

// Hold takes amount until the hold is settled, or for ttl if its holder is gone: see Hold.
func (l *Limiter) Hold(ctx context.Context, name string, amount float64, ttl time.Duration) (*Hold, error) {
	return newHold(ctx, l.server, l.settings, []part{{"", name, l.limit, amount}}, ttl)
}

// Close gives back what batches have left.
func (l *Limiter) Close(ctx context.Context) error {
	if l.batches == nil {
		return nil
	}
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
}

func (l *Limiter) of(name string) bucket { return bucket{name, l.limit} }

func (l *Limiter) askAndTell(ctx context.Context, operation, name string, words ...string) (Decision, error) {
	began := l.server.clock.Now()
	decision, err := l.ask(ctx, operation, name, words...)
	if err == nil {
		l.tell(l.server, name, l.limit, decision, began)
	}
	return decision, err
}

func (l *Limiter) ask(ctx context.Context, operation, name string, words ...string) (Decision, error) {
	all := append([]string{operation, l.prefix + name}, l.limit.words()...)
	reply, err := l.server.ask(ctx, command{words: append(all, words...), once: operation == "TB.GIVE" || operation == "TB.CHARGE"})
	if errors.Is(err, ErrServerAway) {
		return l.decided(l.server, err)
	}
	if err != nil {
		return Decision{}, err
	}
	return parseDecision(reply)
}
