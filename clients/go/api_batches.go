package tokenbucket

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"
)

// mostBatches bounds the names of a limiter that have a batch. The ones used longest ago lose theirs.
const mostBatches = 10_000

// batch is what is left of the tokens that were fetched for one bucket.
type batch struct {
	of         bucket
	mutex      sync.Mutex
	tokens     int64
	fetched    time.Time
	stale      time.Time // by then an empty bucket would have filled
	reply      Decision
	isFetching bool
	isDropped  bool     // nobody finds it any more: what it gets goes back
	waiting    []*claim // for the fetch that is under way, or for the next
}

// claim is a caller for whom the batch had too little.
type claim struct {
	cost     int64
	ready    chan struct{} // closed when the two below are set
	decision Decision
	err      error // why the fetch decided nothing
}

type batches struct {
	mutex  sync.Mutex
	recent *recent[*batch]
}

func newBatches() *batches { return &batches{recent: newRecent[*batch](mostBatches)} }

// find also returns the batch that had to make room, if one had to.
func (b *batches) find(of bucket) (found, evicted *batch) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	found, ok := b.recent.get(of)
	if !ok {
		found = &batch{of: of}
		evicted = b.recent.add(of, found)
	}
	return found, evicted
}

// drop forgets the tokens, as the bucket was reset.
func (b *batches) drop(of bucket) {
	b.mutex.Lock()
	dropped, ok := b.recent.remove(of)
	b.mutex.Unlock()
	if ok {
		dropped.empty(time.Time{})
	}
}

// drain is what each batch has left, which it then has no longer.
func (b *batches) drain(now time.Time) map[bucket]int64 {
	b.mutex.Lock()
	all := b.recent.of
	b.recent = newRecent[*batch](mostBatches)
	b.mutex.Unlock()
	left := map[bucket]int64{}
	for of, element := range all {
		if tokens := element.Value.(kept[*batch]).value.empty(now); tokens > 0 {
			left[of] = tokens
		}
	}
	return left
}

// empty is what was left of a batch that nobody finds any more.
func (b *batch) empty(now time.Time) int64 {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.isDropped = true
	tokens := b.left(now)
	b.tokens = 0
	return tokens
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

func (l *Limiter) takeFromBatch(ctx context.Context, name string, cost int64) (Decision, error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, err
	}
	now := l.server.clock.Now()
	b, evicted := l.batches.find(l.of(name))
	if evicted != nil {
		l.returnEvicted(evicted, now)
	}
	b.mutex.Lock()
	left := b.left(now)
	if left >= cost && len(b.waiting) == 0 {
		defer b.mutex.Unlock()
		return b.spend(cost, now), nil
	}
	if refusal, ok := l.denials.recall(b.of, float64(cost-left), now); ok {
		b.mutex.Unlock()
		return refusal, nil
	}
	w := &claim{cost: cost, ready: make(chan struct{})}
	b.waiting = append(b.waiting, w)
	begins := !b.isFetching
	b.isFetching = true
	b.mutex.Unlock()
	switch {
	case begins && l.server.synchronous:
		l.fetch(b)
	case begins:
		go l.fetch(b) // also for those that this caller does not wait for
	}
	select {
	case <-w.ready:
	case <-ctx.Done():
		if b.leave(w) {
			l.returnDropped(b)
			return Decision{}, ctx.Err()
		}
	}
	if w.err != nil {
		c := l.command("TB.TAKE", name, tokensWord(float64(cost)))
		return l.decision(c, nil, w.err)
	}
	return w.decision, nil
}

// leave puts back what the batch has granted meanwhile. A denial is still reported.
func (b *batch) leave(w *claim) bool {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	select {
	case <-w.ready:
		if w.err != nil || !w.decision.Allowed {
			return false
		}
		b.tokens += w.cost
		return true
	default:
	}
	for i, other := range b.waiting {
		if other == w {
			b.waiting = append(b.waiting[:i:i], b.waiting[i+1:]...)
			return true
		}
	}
	w.cost = 0 // it is being served
	return true
}

// fetch asks once for all who wait, and again for those who came meanwhile and for whom what was fetched does not do.
func (l *Limiter) fetch(b *batch) {
	for {
		b.mutex.Lock()
		now := l.server.clock.Now()
		for len(b.waiting) > 0 && b.left(now) >= b.waiting[0].cost {
			w := b.waiting[0]
			b.waiting = b.waiting[1:]
			w.decision = b.spend(w.cost, now)
			close(w.ready)
		}
		served := b.waiting
		b.waiting, b.isFetching = nil, len(served) > 0
		wanted := -b.left(now)
		for _, w := range served {
			wanted += w.cost
		}
		if most := l.batch - b.tokens; wanted < most {
			wanted = most
		}
		b.mutex.Unlock()
		if len(served) == 0 {
			l.returnDropped(b)
			return
		}
		l.fetchFor(b, served, wanted, now)
	}
}

func (l *Limiter) fetchFor(b *batch, served []*claim, wanted int64, asked time.Time) {
	c := l.command("TB.TAKEUPTO", b.of.name, strconv.FormatInt(wanted, 10))
	reply, err := l.server.ask(context.Background(), c)
	var fetched Decision
	if err == nil {
		fetched, err = parseDecision(reply)
	}
	heard := l.server.clock.Now()
	denied := map[int64][]*claim{} // by what each lacks
	b.mutex.Lock()
	if err == nil {
		b.add(fetched, l.limit, asked)
	}
	if err != nil || fetched.Granted < wanted {
		// Those who came meanwhile would hear the same.
		served, b.waiting = append(served, b.waiting...), nil
	}
	for _, w := range served {
		switch {
		case err != nil:
			w.err = err
		case b.tokens >= w.cost: // whatever the round trip took
			w.decision = b.spend(w.cost, heard)
		default:
			denied[w.cost-b.tokens] = append(denied[w.cost-b.tokens], w)
			continue
		}
		close(w.ready)
	}
	b.mutex.Unlock()
	for tokensLacking, waiters := range denied {
		decision := l.lacking(b.of.name, tokensLacking, fetched)
		l.denials.remember(b.of, denial{float64(tokensLacking), decision, asked, l.server.clock.Now()})
		for _, w := range waiters {
			w.decision = decision
			close(w.ready)
		}
	}
}

func (b *batch) add(fetched Decision, limit Limit, asked time.Time) {
	b.reply, b.fetched = fetched, asked
	if fetched.Granted == 0 {
		return
	}
	b.tokens += fetched.Granted
	fresh, ok := limit.timeFor(limit.Capacity)
	if !ok {
		fresh = maxDuration
	}
	// By the calendar nothing flows before the next boundary, and then all at once.
	if limit.IsCalendar() && fetched.ResetAfter > 0 && fetched.ResetAfter < fresh {
		fresh = fetched.ResetAfter
	}
	b.stale = asked.Add(fresh)
}

// lacking denies, and tells when what is lacking has flowed in. Fetching left less than one token in the bucket.
func (l *Limiter) lacking(name string, tokensLacking int64, fetched Decision) Decision {
	denied := Decision{Remaining: fetched.Remaining, RetryAfter: fetched.RetryAfter, ResetAfter: fetched.ResetAfter}
	if float64(tokensLacking) > l.limit.Capacity {
		denied.RetryAfter = Never
		return denied
	}
	switch {
	case l.limit.IsCalendar():
		if l.takesMoreThanOneBoundary(tokensLacking, fetched) {
			denied.RetryAfter = l.retryAfter(name, tokensLacking, fetched.ResetAfter)
		}
	case fetched.Allowed:
		// Back from the time at which the bucket is full.
		since, _ := l.limit.timeFor(l.limit.Capacity - float64(tokensLacking))
		denied.RetryAfter = upToMs(fetched.ResetAfter - since)
	default:
		// The reply tells the time of one token.
		more, _ := l.limit.timeFor(float64(tokensLacking - 1))
		denied.RetryAfter += upToMs(more)
	}
	if denied.RetryAfter < time.Millisecond {
		denied.RetryAfter = time.Millisecond
	}
	return denied
}

// takesMoreThanOneBoundary also of a fetch that was granted something: its reply does not tell the next boundary.
func (l *Limiter) takesMoreThanOneBoundary(tokensLacking int64, fetched Decision) bool {
	count, _, _ := strings.Cut(l.limit.Rate, "@")
	atOnce, _ := strconv.ParseFloat(count, 64)
	var debt int64
	if fetched.Remaining < 0 {
		debt = -fetched.Remaining
	}
	return fetched.Allowed || float64(tokensLacking+debt) > atOnce
}

// retryAfter asks for it: only the server's calendar tells when a later boundary is.
func (l *Limiter) retryAfter(name string, tokensLacking int64, atMost time.Duration) time.Duration {
	c := l.command("TB.PEEK", name, tokensWord(float64(tokensLacking)))
	reply, err := l.server.ask(context.Background(), c)
	if err != nil {
		return atMost
	}
	decision, err := parseDecision(reply)
	if err != nil {
		return atMost
	}
	return decision.RetryAfter
}

func upToMs(duration time.Duration) time.Duration {
	return (duration + time.Millisecond - 1).Truncate(time.Millisecond)
}

// mostReturning bounds how many batches are on their way back at a time. The tokens of the others are lost, until they have
// flowed in anew.
const mostReturning = 64

func (l *Limiter) returnEvicted(evicted *batch, now time.Time) {
	l.giveBack(evicted.of, evicted.empty(now))
}

// returnDropped gives back what a batch got after it was dropped.
func (l *Limiter) returnDropped(b *batch) {
	b.mutex.Lock()
	var left int64
	if b.isDropped && !b.isFetching {
		left, b.tokens = b.tokens, 0
	}
	b.mutex.Unlock()
	l.giveBack(b.of, left)
}

func (l *Limiter) giveBack(of bucket, left int64) {
	if left == 0 {
		return
	}
	if l.server.returning.Add(1) > mostReturning {
		l.server.returning.Add(-1)
		return
	}
	give := l.With(of.limit).command("TB.GIVE", of.name, tokensWord(float64(left)))
	go func() {
		defer l.server.returning.Add(-1)
		_, _ = l.server.ask(context.Background(), give)
	}()
}
