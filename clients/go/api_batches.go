package tokenbucket

import (
	"context"
	"strings"
	"time"

	"tokenbucket/internal/local"
)

// mostBatches bounds the names of a limiter that have a batch. The ones used longest ago lose theirs.
const mostBatches = 10_000

// batches are what is left of the tokens that were fetched, by bucket.
type batches struct{ recent[*batch] }

type batch struct {
	of       bucket
	tokens   int64
	fetched  time.Time
	stale    time.Time // by then an empty bucket would have filled
	reply    Decision
	fetching chan struct{} // closed when the fetch under way has ended, or nil
}

// drop forgets the tokens, as the bucket was reset.
func (b *batches) drop(of bucket) {
	b.Lock()
	defer b.Unlock()
	dropped, _ := b.remove(of)
	dropped.drain(time.Time{})
}

// drain is what each batch has left, which it then has no longer.
func (b *batches) drain(now time.Time) map[bucket]int64 {
	b.Lock()
	defer b.Unlock()
	left := map[bucket]int64{}
	for of := range b.of {
		drained, _ := b.remove(of)
		if tokens := drained.drain(now); tokens > 0 {
			left[of] = tokens
		}
	}
	return left
}

// find also returns the batch that had to make room, or nil.
func (b *batches) find(of bucket) (found, evicted *batch) {
	found, ok := b.get(of)
	if !ok {
		found = &batch{of: of}
		evicted = b.add(of, found)
	}
	return found, evicted
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
func (l *Limiter) takeFromBatch(ctx context.Context, name string, cost int64) (Decision, error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, err
	}
	now := l.server.clock.Now()
	l.batches.Lock()
	b, evicted := l.batches.find(l.of(name))
	unspent := evicted.drain(now)
	left, fetching := b.left(now), b.fetching
	if left >= cost {
		defer l.batches.Unlock()
		return b.spend(cost, now), nil
	}
	if fetching == nil {
		b.fetching = make(chan struct{})
		defer func() {
			l.batches.Lock()
			defer l.batches.Unlock()
			close(b.fetching)
			b.fetching = nil
		}()
	}
	l.batches.Unlock()
	if unspent > 0 {
		_, _ = l.server.ask(ctx, l.command("TB.GIVE", evicted.of, float64(unspent)))
	}
	if fetching != nil {
		return l.takeMeanwhile(ctx, b, cost, fetching)
	}
	if refusal, ok := l.denials.recall(b.of, float64(cost-left), now); ok {
		return refusal, nil
	}
	return l.fetch(ctx, b, cost, left, now)
}

// takeMeanwhile takes for this call alone while another fetches, which may bring what the bucket then lacks.
func (l *Limiter) takeMeanwhile(ctx context.Context, b *batch, cost int64, fetching chan struct{}) (Decision, error) {
	decision, err := l.takeRemembering(ctx, b.of.name, float64(cost))
	if err != nil || decision.Allowed || decision.Degraded {
		return decision, err
	}
	select {
	case <-fetching:
	case <-time.After(l.server.timeout): // a connection or a hook may hold up the other call
	case <-ctx.Done():
		return Decision{}, ctx.Err()
	}
	l.batches.Lock()
	defer l.batches.Unlock()
	if now := l.server.clock.Now(); b.left(now) >= cost {
		decision = b.spend(cost, now)
	}
	return decision, nil
}

func (l *Limiter) fetch(ctx context.Context, b *batch, cost, left int64, asked time.Time) (Decision, error) {
	c := l.command("TB.TAKEUPTO", b.of, float64(l.batch-left))
	fetched, err := parseDecision(l.server.ask(ctx, c))
	if err != nil {
		joint, err := l.without(l.command("TB.TAKE", b.of, float64(cost)), nil, err)
		return joint.Decision, err
	}
	l.batches.Lock()
	b.add(fetched, l.limit, asked)
	if b.tokens >= cost {
		defer l.batches.Unlock()
		return b.spend(cost, l.server.clock.Now()), nil
	}
	held := b.tokens
	lacking := cost - held
	l.batches.Unlock()
	denied := fetched
	if lacking > 1 || fetched.Allowed { // the server knows when there will be so much
		if denied, err = l.decide(ctx, "TB.PEEK", b.of.name, float64(lacking)); err != nil {
			return denied, err
		}
		if denied.Allowed && !denied.Degraded { // it has flowed in meanwhile
			denied = Decision{Remaining: fetched.Remaining, RetryAfter: time.Millisecond, ResetAfter: denied.ResetAfter}
		}
	}
	denied.Remaining += held
	l.denials.remember(b.of, denial{float64(lacking), denied, asked, l.server.clock.Now()})
	return denied, nil
}

func (b *batch) add(fetched Decision, limit Limit, asked time.Time) {
	b.reply, b.fetched = fetched, asked
	if fetched.Granted == 0 {
		return
	}
	b.tokens += fetched.Granted
	fresh, _ := local.FillTime(tokens(limit.Capacity), limit.Rate)
	// By the calendar nothing flows before the next boundary, and then all at once.
	if strings.Contains(limit.Rate, "@") && fetched.ResetAfter > 0 && fetched.ResetAfter < fresh {
		fresh = fetched.ResetAfter
	}
	b.stale = asked.Add(fresh)
}

func upToMs(duration time.Duration) time.Duration {
	return (duration + time.Millisecond - 1).Truncate(time.Millisecond)
}
