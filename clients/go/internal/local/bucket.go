package local

import (
	"errors"
	"math/big"
	"strconv"
	"time"
)

const never = int64(-1)

// bucket is one under a limit. What it has is changed by replacing it, so a copy keeps what there was.
type bucket struct {
	key      string
	capacity *big.Rat
	rate     *rate
	level    *big.Rat
	at       time.Duration // when it had that
	holds    holds
	amount   *big.Rat // that a call over several buckets is about
	fullInMs int64    // of the last reply
	fullAtMs int64    // since 1970
}

// fill never fills above the capacity; nothing more is how a level is clamped to a smaller one.
func (b *bucket) fill(more *big.Rat) {
	if b.level = new(big.Rat).Add(b.level, more); b.level.Cmp(b.capacity) > 0 {
		b.level = b.capacity
	}
}

func (b *bucket) spend(amount *big.Rat) { b.level = new(big.Rat).Sub(b.level, amount) }

func (b *bucket) flowUntil(moment time.Duration) {
	if moment > b.at {
		b.fill(b.rate.between(b.at, moment))
		b.at = moment
	}
}

// passUntil lets tokens flow in, and holds come back as they expire.
func (b *bucket) passUntil(moment time.Duration) {
	for one := b.holds.root.first(); one != nil && one.expires <= moment; one = b.holds.root.first() {
		b.flowUntil(one.expires)
		b.fill(tokens(one.micro))
		b.holds.end(one)
	}
	b.flowUntil(moment)
}

// waitMs is how long until there is so much unless other calls act, rounded up. Before that, nothing is above the capacity.
func (b *bucket) waitMs(wanted *big.Rat) int64 {
	lacking := new(big.Rat).Sub(wanted, b.level)
	if lacking.Sign() <= 0 {
		return 0
	}
	if wanted.Cmp(b.capacity) > 0 {
		return never
	}
	back, before := b.holds.reaching(func(micro int64, at time.Duration) bool {
		came := b.rate.between(b.at, at)
		return came.Add(came, tokens(micro)).Cmp(lacking) >= 0
	})
	moment := b.rate.reaches(b.at, lacking.Sub(lacking, tokens(before)))
	if back != nil && (moment == nil || nanoseconds(back.expires).Cmp(moment) < 0) {
		moment = nanoseconds(back.expires)
	}
	if moment == nil {
		return never
	}
	wait := moment.Sub(moment, nanoseconds(b.at))
	return ceil(wait.Quo(wait, nanoseconds(time.Millisecond)))
}

func tokens(micro int64) *big.Rat { return big.NewRat(micro, 1_000_000) }

func (b *bucket) reply(allowed, waitMs int64) []any {
	b.fullInMs = b.waitMs(b.capacity)
	return []any{allowed, floor(b.level), waitMs, b.fullInMs}
}

func (b *bucket) take(arguments []string) ([]any, error) {
	cost := "1"
	if len(arguments) > 0 {
		cost = arguments[0]
	}
	return b.reserve([]string{cost, "0"})
}

// longestWaitMs is a century.
const longestWaitMs = int64(century / time.Millisecond)

func (b *bucket) reserve(arguments []string) ([]any, error) {
	cost, err := amountUp("cost", arguments[0])
	if err != nil {
		return nil, err
	}
	maxWait, err := strconv.ParseInt(arguments[1], 10, 64)
	if err != nil || maxWait < 0 || maxWait > longestWaitMs {
		return nil, errors.New("ERR max_wait_ms must be a whole number of milliseconds from 0 to 3155760000000")
	}
	wait := b.waitMs(cost)
	if wait == never || wait > maxWait {
		return b.reply(0, wait), nil
	}
	b.spend(cost)
	return b.reply(1, wait), nil
}

func (b *bucket) takeUpTo(arguments []string) ([]any, error) {
	most, err := strconv.ParseInt(arguments[0], 10, 64)
	if err != nil || most < 1 || most > MostTokens {
		return nil, errors.New("ERR max must be a whole number of tokens from 1 to 1e12")
	}
	granted := floor(b.level)
	if granted > most {
		granted = most
	}
	if granted < 1 {
		return b.reply(0, b.waitMs(one)), nil
	}
	b.spend(big.NewRat(granted, 1))
	return b.reply(granted, 0), nil
}

var (
	none    = new(big.Rat)
	deepest = new(big.Rat).Neg(most)
)

func (b *bucket) charge(arguments []string) ([]any, error) {
	amount, err := amountUp("amount", arguments[0])
	if err != nil {
		return nil, err
	}
	if b.spend(amount); b.level.Cmp(deepest) < 0 {
		return nil, errors.New("ERR the bucket would be more than 1e12 tokens in debt")
	}
	return b.reply(1, b.waitMs(none)), nil
}

func (b *bucket) give(arguments []string) ([]any, error) {
	amount, err := amountDown("amount", arguments[0])
	if err != nil {
		return nil, err
	}
	b.fill(amount)
	return b.reply(1, 0), nil
}
