package tokenbucket

import (
	"context"
	"strings"
	"time"

	"tokenbucket/internal/local"
	"tokenbucket/internal/rules"
)

// mostBatches bounds the buckets of a limiter that have a batch. The ones used longest ago lose theirs.
const mostBatches = 10_000

// batch is what is left of the tokens that were fetched for a bucket.
type batch struct {
	of       part
	tokens   int64
	fetched  time.Time
	stale    time.Time // by then an empty bucket would have filled
	reply    Decision
	fetching chan struct{} // closed when the fetch under way has ended, or nil
	isReset  bool          // its bucket has been filled: what was fetched before is none of it
}

// drain takes all that is left, of no batch nothing.
func (b *batch) drain(now time.Time) (left int64) {
	if b != nil {
		left, b.tokens = b.left(now), 0
	}
	return left
}

// left is nothing once stale: or a process that was idle would spend a batch beside the bucket that filled meanwhile.
func (b *batch) left(now time.Time) int64 {
	if b.tokens > 0 && !now.Before(b.stale) {
		b.tokens = 0
	}
	return b.tokens
}

func (b *batch) spend(cost int64, now time.Time) Decision {
	b.tokens -= cost
	return Decision{
		Allowed: true, Granted: 1,
		Remaining:  b.reply.Remaining + b.tokens,
		ResetAfter: lessenedBy(b.reply.ResetAfter, now.Sub(b.fetched)),
	}
}

// takeFromBatch spends what is there, or fetches. One call fetches at a time; others take for themselves.
func (l *Limiter) takeFromBatch(ctx context.Context, p part) (Decision, error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, err
	}
	cost, now := int64(p.amount), l.server.clock.Now()
	l.batches.Lock()
	b, isKnown := l.batches.get(p.bucket)
	var gone *batch
	if !isKnown {
		b = &batch{of: p}
		gone = l.batches.set(p.bucket, b)
	}
	unspent, left, fetching := gone.drain(now), b.left(now), b.fetching
	if left >= cost {
		defer l.batches.Unlock()
		return b.spend(cost, now), nil
	}
	if fetching == nil {
		b.fetching = make(chan struct{})
		defer l.endFetch(b)
	}
	l.batches.Unlock()
	if unspent > 0 { // of another name, whose node may be slow
		go guarded(func() { _ = l.giveBack(context.Background(), gone.of.with(unspent)) })
	}
	if fetching != nil {
		return l.takeMeanwhile(ctx, b, p, fetching)
	}
	if refusal, ok := l.recall(p.with(cost-left), now); ok {
		return refusal, nil
	}
	return l.fetch(ctx, b, cost, left, now)
}

// endFetch gives back what was fetched for a batch that was removed meanwhile.
func (l *Limiter) endFetch(b *batch) {
	defer func() {
		l.batches.Lock()
		defer l.batches.Unlock()
		close(b.fetching)
		b.fetching = nil
	}()
	if unspent := l.drainRemoved(b); unspent > 0 {
		_ = l.giveBack(context.Background(), b.of.with(unspent)) // the caller's context may be over
	}
}

func (l *Limiter) drainRemoved(b *batch) int64 {
	l.batches.Lock()
	defer l.batches.Unlock()
	if kept, _ := l.batches.get(b.of.bucket); kept == b {
		return 0
	}
	unspent := b.drain(l.server.clock.Now())
	if b.isReset {
		return 0
	}
	return unspent
}

func (l *Limiter) giveBack(ctx context.Context, p part) error {
	defer l.forget(p.name)
	_, err := parseDecision(l.server.ask(ctx, l.command([]any{"TB.GIVE"}, p))) // no policy has it to give
	return err
}

// takeMeanwhile takes for this call alone while another fetches, which may bring what the bucket then lacks.
func (l *Limiter) takeMeanwhile(ctx context.Context, b *batch, p part, fetching chan struct{}) (Decision, error) {
	decision, err := l.takeRemembering(ctx, p)
	if err != nil || decision.Allowed || decision.Degraded {
		return decision, err
	}
	select {
	case <-fetching:
	case <-time.After(l.server.patience()): // a connection or a hook may hold up the other call
	case <-ctx.Done():
		return Decision{}, ctx.Err()
	}
	l.batches.Lock()
	defer l.batches.Unlock()
	if now, cost := l.server.clock.Now(), int64(p.amount); b.left(now) >= cost {
		decision = b.spend(cost, now)
	}
	return decision, nil
}

func (l *Limiter) fetch(ctx context.Context, b *batch, cost, left int64, asked time.Time) (Decision, error) {
	c := l.command([]any{"TB.TAKEUPTO"}, b.of.with(l.batch-left))
	fetched, err := parseDecision(l.server.ask(ctx, c))
	if err != nil {
		return l.without(l.command([]any{"TB.TAKE"}, b.of.with(cost)), err)
	}
	l.batches.Lock()
	b.add(fetched, asked)
	if b.tokens >= cost {
		defer l.batches.Unlock()
		return b.spend(cost, l.server.clock.Now()), nil
	}
	held := b.tokens
	l.batches.Unlock()
	if fetched.Granted == l.batch-left { // others spent what was left, and the bucket had all that it was asked for
		return l.takeRemembering(ctx, b.of.with(cost))
	}
	denied, lacking := fetched, b.of.with(cost-held)
	if lacking.amount > 1 || fetched.Allowed { // the server knows when there will be so much
		if denied, err = l.decide(ctx, "TB.PEEK", lacking); err != nil {
			return denied, err
		}
		if denied.Allowed && !denied.Degraded { // it has flowed in meanwhile
			denied = Decision{Remaining: fetched.Remaining, RetryAfter: time.Millisecond, ResetAfter: denied.ResetAfter}
		}
	}
	denied.Remaining += held
	l.remember(lacking, denied, asked)
	return denied, nil
}

func (b *batch) add(fetched Decision, asked time.Time) {
	b.reply, b.fetched = fetched, asked
	if fetched.Granted == 0 {
		return
	}
	b.tokens += fetched.Granted
	fresh, _ := local.FillTime(tokens(b.of.limit.Capacity), b.of.limit.Rate)
	// By the calendar nothing flows before the next boundary, and then all at once.
	if strings.Contains(b.of.limit.Rate, "@") && fetched.ResetAfter > 0 && fetched.ResetAfter < fresh {
		fresh = fetched.ResetAfter
	}
	b.stale = asked.Add(fresh)
}

// forgetBatches drops those of a name under all limits.
func (l *Limiter) forgetBatches(name string) {
	l.batches.Lock()
	defer l.batches.Unlock()
	for of := range l.batches.of {
		if of.name == name {
			l.batches.remove(of).isReset = true
		}
	}
}

// Close gives back what batches have left, also those that are fetched meanwhile. Under every policy, it returns ErrServerAway or
// ErrReplyLost if the server does not take it: others are then denied it until the bucket has refilled.
func (l *Limiter) Close(ctx context.Context) (failure error) {
	l.batches.Lock()
	var left []part
	var fetches []chan struct{}
	for of := range l.batches.of {
		b := l.batches.remove(of)
		if tokens := b.drain(l.server.clock.Now()); tokens > 0 {
			left = append(left, b.of.with(tokens))
		}
		if b.fetching != nil {
			fetches = append(fetches, b.fetching)
		}
	}
	l.batches.Unlock()
	for _, p := range left {
		if err := l.giveBack(ctx, p); err != nil {
			failure = err
		}
	}
	late := time.After(3*l.server.timeout + rules.ConnectWithin) // no call takes longer, unless it asks to close
	for _, fetching := range fetches {
		select {
		case <-fetching:
		case <-late:
			return failure
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return failure
}
