package tokenbucket

import (
	"context"
	"strconv"
	"sync"
	"time"
)

// batch is what is left of the tokens that were fetched for one bucket. Its mutex is held while tokens are fetched: one
// batch may be enough for all who wait.
type batch struct {
	mutex   sync.Mutex
	tokens  int64
	fetched time.Time
	stale   time.Time // by then as many tokens have flowed into the bucket again
	reply   Decision
}

type batches struct {
	size  int64
	mutex sync.Mutex
	of    map[bucket]*batch
	sweep time.Time // when stale ones are looked for again
}

const betweenSweeps = 10 * time.Second

func newBatches(size int64) *batches { return &batches{size: size, of: map[bucket]*batch{}} }

// lock finds the batch of a bucket, held by the caller alone.
func (b *batches) lock(of bucket, now time.Time) *batch {
	for {
		one := b.find(of, now)
		one.mutex.Lock()
		if one == b.find(of, now) {
			return one
		}
		one.mutex.Unlock() // it was dropped before it could be locked
	}
}

func (b *batches) find(of bucket, now time.Time) *batch {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.dropStale(now)
	one, ok := b.of[of]
	if !ok {
		one = &batch{}
		b.of[of] = one
	}
	return one
}

// dropStale keeps memory within what was used lately. A batch that is being fetched for is left alone.
func (b *batches) dropStale(now time.Time) {
	if now.Before(b.sweep) {
		return
	}
	b.sweep = now.Add(betweenSweeps)
	for of, one := range b.of {
		if one.mutex.TryLock() {
			if one.left(now) == 0 {
				delete(b.of, of)
			}
			one.mutex.Unlock()
		}
	}
}

func (b *batches) drop(of bucket) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	delete(b.of, of)
}

// drain is what each batch has left, which it then has no longer.
func (b *batches) drain(now time.Time) map[bucket]int64 {
	b.mutex.Lock()
	all := b.of
	b.of = map[bucket]*batch{}
	b.mutex.Unlock()
	left := map[bucket]int64{}
	for of, one := range all {
		one.mutex.Lock()
		if tokens := one.left(now); tokens > 0 {
			left[of] = tokens
		}
		one.tokens = 0
		one.mutex.Unlock()
	}
	return left
}

// left is nothing once stale: or a process that was idle would spend a batch beside the bucket that filled meanwhile.
func (b *batch) left(now time.Time) int64 {
	if !now.Before(b.stale) {
		b.tokens = 0
	}
	return b.tokens
}

func (b *batch) add(reply Decision, limit Limit, asked time.Time) {
	b.tokens = b.left(asked) + reply.Granted
	b.reply, b.fetched = reply, asked
	fresh, ok := limit.timeFor(float64(b.tokens))
	// By the calendar nothing flows before the next boundary, and then all at once.
	if ok && limit.IsCalendar() && reply.ResetAfter < fresh {
		fresh = reply.ResetAfter
	}
	b.stale = asked.Add(fresh)
}

func (b *batch) spend(cost int64, now time.Time) Decision {
	b.tokens -= cost
	return Decision{
		Allowed: true, Granted: 1,
		Remaining:  b.reply.Remaining + b.tokens,
		ResetAfter: lessenedBy(b.reply.ResetAfter, now.Sub(b.fetched)),
	}
}

func (l *Limiter) takeFromBatch(ctx context.Context, name string, cost int64) (Decision, error) {
	now := l.server.clock.Now()
	b := l.batches.lock(l.of(name), now)
	defer b.mutex.Unlock()
	now = l.server.clock.Now() // it may have taken others' fetching
	if b.left(now) >= cost {
		return b.spend(cost, now), nil
	}
	if refusal, ok := l.denials.recall(l.of(name), float64(cost-b.tokens), now); ok {
		return refusal, nil
	}
	fetched, err := l.ask(ctx, "TB.TAKEUPTO", name, strconv.FormatInt(l.batch-b.tokens, 10)) // never more than a batch here
	if err != nil || fetched.Degraded {
		return fetched, err
	}
	if fetched.Granted > 0 {
		b.add(fetched, l.limit, now)
	}
	if b.left(now) >= cost {
		return b.spend(cost, now), nil
	}
	return l.lacking(ctx, name, float64(cost-b.tokens), fetched, now)
}

// lacking denies, and tells when what is lacking has flowed in.
func (l *Limiter) lacking(ctx context.Context, name string, tokensLacking float64, fetched Decision, asked time.Time) (Decision, error) {
	denied := fetched
	if fetched.Allowed || tokensLacking > 1 { // that reply was about one token more
		var err error
		asked = l.server.clock.Now()
		denied, err = l.ask(ctx, "TB.PEEK", name, tokens(tokensLacking))
		if err != nil || denied.Degraded {
			return denied, err
		}
		if denied.Allowed { // it flowed in meanwhile: the next call finds it
			denied = Decision{Remaining: denied.Remaining, RetryAfter: time.Millisecond, ResetAfter: denied.ResetAfter}
		}
	}
	l.denials.remember(l.of(name), denial{tokensLacking, denied, asked, l.server.clock.Now()})
	return denied, nil
}
