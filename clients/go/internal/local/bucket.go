package local

import (
	"errors"
	"math/big"
	"strconv"
	"time"
)

const never = int64(-1)

// stored is what is kept of a bucket between calls, whatever their limits.
type stored struct {
	level     *big.Rat      // changed by replacing it
	at        time.Duration // when it had that
	ended     int64         // what holds that have ended since returned, in millionths
	holds     holds
	expiresMs int64 // since 1970; then it is full under each limit that it had, hence under any
}

// bucket is one under the limit of a call.
type bucket struct {
	stored
	found    stored // before the call
	key      string
	capacity *big.Rat
	rate     *rate
	amount   *big.Rat // that a call over several buckets is about
	fullAt   *big.Rat // of the last reply
}

// fill never fills above the capacity; nothing more is how a level is clamped to a smaller one.
func (b *bucket) fill(more *big.Rat) {
	if b.level = new(big.Rat).Add(b.level, more); b.level.Cmp(b.capacity) > 0 {
		b.level = b.capacity
	}
}

func (b *bucket) spend(amount *big.Rat) { b.level = new(big.Rat).Sub(b.level, amount) }

// passUntil lets tokens flow in, and those of ended holds come back. A pool lacks what is held.
func (b *bucket) passUntil(moment time.Duration) {
	if b.rate.isPool() {
		b.level = new(big.Rat).Sub(b.capacity, tokens(b.holds.root.total()))
		b.at, b.ended = moment, 0
		return
	}
	b.fill(none)
	came := b.rate.between(b.at, moment)
	b.fill(came.Add(came, tokens(b.ended)))
	b.at, b.ended = moment, 0
}

// reaches is when there is so much unless other calls act, in nanoseconds; nil if never. Before that, nothing is above the
// capacity.
func (b *bucket) reaches(wanted *big.Rat) *big.Rat {
	lacking := new(big.Rat).Sub(wanted, b.level)
	if lacking.Sign() <= 0 {
		return nanoseconds(b.at)
	}
	if wanted.Cmp(b.capacity) > 0 {
		return nil
	}
	back, before := b.holds.reaching(func(micro int64, at time.Duration) bool {
		came := b.rate.between(b.at, at)
		return came.Add(came, tokens(micro)).Cmp(lacking) >= 0
	})
	moment := b.rate.reaches(b.at, lacking.Sub(lacking, tokens(before)))
	if back != nil && (moment == nil || nanoseconds(back.expires).Cmp(moment) < 0) {
		moment = nanoseconds(back.expires)
	}
	return moment
}

// msUntil is rounded up.
func (b *bucket) msUntil(moment *big.Rat) int64 {
	if moment == nil {
		return never
	}
	wait := new(big.Rat).Sub(moment, nanoseconds(b.at))
	return ceil(wait.Quo(wait, nanoseconds(time.Millisecond)))
}

func (b *bucket) waitMs(wanted *big.Rat) int64 { return b.msUntil(b.reaches(wanted)) }

// waitMsToHold is for a hold that gets the amount, or grows to it. Its own end brings nothing: the whole amount is lacking then.
// One above the capacity can grow while it lasts, and not anew.
func (b *bucket) waitMsToHold(id string) int64 {
	more, without := new(big.Rat).Sub(b.amount, b.holds.amountOf(id)), *b
	if more.Sign() <= 0 {
		return 0
	}
	own := b.holds.byID[id]
	if own != nil {
		without.holds.root = b.holds.without(own)
	}
	wait := without.waitMs(more)
	if wait > 0 && own != nil && b.amount.Cmp(b.capacity) > 0 && b.at+time.Duration(wait)*time.Millisecond >= own.expires {
		return never
	}
	return wait
}

func tokens(micro int64) *big.Rat { return big.NewRat(micro, 1_000_000) }

func (b *bucket) reply(allowed, waitMs int64) []any {
	b.fullAt = b.reaches(b.capacity)
	return []any{allowed, floor(b.level), waitMs, b.msUntil(b.fullAt)}
}

// expire sets when the bucket expires as the server does: a quarter of the time and a second after it is full and without holds,
// unless it was to expire later.
func (b *bucket) expire() {
	fullAtUs := int64(saturated)
	if b.fullAt != nil {
		fullAtUs = ceil(new(big.Rat).Quo(b.fullAt, nanoseconds(time.Microsecond)))
	}
	if ends := b.holds.last().Microseconds(); ends > fullAtUs {
		fullAtUs = ends
	}
	if earliestMs := (fullAtUs + 999) / 1000; b.expiresMs < earliestMs {
		b.expiresMs = earliestMs + (fullAtUs-b.at.Microseconds())/1000/4 + 1000
	}
}

func (b *bucket) take(cost *big.Rat, _ []string) ([]any, error) {
	return b.reserve(cost, []string{"", "0"})
}

func (b *bucket) reserve(cost *big.Rat, arguments []string) ([]any, error) {
	maxWait, err := strconv.ParseInt(arguments[1], 10, 64)
	if err != nil || maxWait < 0 || maxWait > century.Milliseconds() {
		return nil, errors.New("ERR max_wait_ms must be a whole number of milliseconds from 0 to 3155760000000")
	}
	wait := b.waitMs(cost)
	if wait == never || wait > maxWait {
		return b.reply(0, wait), nil
	}
	b.spend(cost)
	return b.reply(1, wait), nil
}

func (b *bucket) takeUpTo(most *big.Rat, _ []string) ([]any, error) {
	if most.Cmp(one) < 0 || !most.IsInt() {
		return nil, errors.New("ERR max must be a whole number of tokens from 1 to 1e12")
	}
	granted := floor(b.level)
	if granted < 1 {
		return b.reply(0, b.waitMs(one)), nil
	}
	if granted > floor(most) {
		granted = floor(most)
	}
	b.spend(big.NewRat(granted, 1))
	return b.reply(granted, 0), nil
}

var (
	none    = new(big.Rat)
	deepest = new(big.Rat).Neg(most)
)

func (b *bucket) charge(amount *big.Rat, _ []string) ([]any, error) {
	if b.spend(amount); b.level.Cmp(deepest) < 0 {
		return nil, errors.New("ERR the bucket would be more than 1e12 tokens in debt")
	}
	return b.reply(1, b.waitMs(none)), nil
}

func (b *bucket) give(amount *big.Rat, _ []string) ([]any, error) {
	b.fill(amount)
	return b.reply(1, 0), nil
}
