package local

import (
	"fmt"
	"math/big"
	"sync"
	"time"
)

const never = int64(-1)

// bucket is as it was at its last write, under the limit of that.
type bucket struct {
	level *big.Rat
	at    time.Duration
	holds *holds
}

// view is a bucket under the limit of one call.
type view struct {
	key      string
	capacity *big.Rat
	rate     string
	flow     flow
	passed   int // of its holds have come back since
	bucket
}

// fill never fills above the capacity; nothing more is how a level is clamped to a smaller one.
func (v *view) fill(more *big.Rat) {
	if v.level.Add(v.level, more); v.level.Cmp(v.capacity) > 0 {
		v.level.Set(v.capacity)
	}
}

func (v *view) flowUntil(moment time.Duration) {
	if moment > v.at {
		v.fill(v.flow.between(v.at, moment))
		v.at = moment
	}
}

// passUntil lets tokens flow in, and holds come back as they expire.
func (v *view) passUntil(moment time.Duration) {
	v.holds.expired(moment, func(one *held) {
		v.flowUntil(one.expires)
		v.fill(tokensOf(one.micro))
		v.passed++
	})
	v.flowUntil(moment)
}

// held is what the bucket holds under an id.
func (v *view) held(id string) (amount *big.Rat, ok bool) {
	if one, ok := v.holds.of[id]; ok && one.expires > v.at {
		return tokensOf(one.micro), true
	}
	return nil, false
}

// waitMs is how long until there is so much unless other calls act, rounded up. Before that, nothing is above the capacity.
func (v *view) waitMs(wanted *big.Rat) int64 {
	lacking := new(big.Rat).Sub(wanted, v.level)
	if lacking.Sign() <= 0 {
		return 0
	}
	if wanted.Cmp(v.capacity) > 0 {
		return never
	}
	expires, before, isBack := v.holds.reaching(v.at, func(micro int64, at time.Duration) bool {
		came := v.flow.between(v.at, at)
		return came.Add(came, tokensOf(micro)).Cmp(lacking) >= 0
	})
	wait, flows := v.flowsWithin(new(big.Rat).Sub(wanted, tokensOf(before)), v.at)
	if isBack {
		if back := nanoseconds(expires - v.at); !flows || back.Cmp(wait) < 0 {
			wait, flows = back, true
		}
	}
	if !flows {
		return never
	}
	return upToMs(wait)
}

func tokensOf(micro int64) *big.Rat { return big.NewRat(micro, 1_000_000) }

// flowsWithin is when so much will have flowed in, in nanoseconds since a moment.
func (v *view) flowsWithin(wanted *big.Rat, since time.Duration) (*big.Rat, bool) {
	moment, ok := v.flow.reaches(v.at, new(big.Rat).Sub(wanted, v.level))
	if !ok {
		return nil, false
	}
	return moment.Sub(moment, nanoseconds(since)), true
}

func (v *view) reply(allowed, waitMs int64) []any {
	return []any{allowed, floor(v.level), waitMs, v.waitMs(v.capacity)}
}

func nanoseconds(duration time.Duration) *big.Rat { return big.NewRat(int64(duration), 1) }

func upToMs(nanoseconds *big.Rat) int64 {
	ms := new(big.Rat).Quo(nanoseconds, big.NewRat(int64(time.Millisecond), 1))
	return -floor(ms.Neg(ms))
}

// floor: big.Int's Div rounds down for a positive divisor.
func floor(ratio *big.Rat) int64 { return new(big.Int).Div(ratio.Num(), ratio.Denom()).Int64() }

var micro = big.NewRat(1_000_000, 1)

// amountDown and amountUp read an amount to the millionth of a token. It must not be changed: it is cached.
func amountDown(what, text string) (*big.Rat, error) {
	amount := roundedDown.Of(text)
	if amount == nil {
		return nil, Error(fmt.Sprintf("ERR %s must be a decimal number of tokens from 0 to 1e12", what))
	}
	return amount, nil
}

func amountUp(what, text string) (*big.Rat, error) {
	if amount := roundedUp.Of(text); amount != nil {
		return amount, nil
	}
	return amountDown(what, text)
}

var (
	most = big.NewRat(MostTokens, 1)
	half = big.NewRat(1, 2)
	// floatNoise is what a float is off by, in millionths of a token.
	floatNoise = big.NewRat(1, 1_000_000)
)

// rounded reads an amount to the millionth that it is meant to be, if a float alone makes the difference, or else to the one
// above or below; nil if it is none.
func rounded(text string, isUp bool) *big.Rat {
	amount := parseNumber(text)
	if amount == nil || amount.Cmp(most) > 0 {
		return nil
	}
	amount.Mul(amount, micro)
	meant := whole(new(big.Rat).Add(amount, half))
	off := new(big.Rat).Sub(amount, meant)
	if meant.Sign() == 0 || off.Abs(off).Cmp(floatNoise) > 0 {
		meant = whole(amount)
		if isUp && meant.Cmp(amount) < 0 {
			meant.Add(meant, big.NewRat(1, 1))
		}
	}
	return meant.Quo(meant, micro)
}

// whole rounds down.
func whole(ratio *big.Rat) *big.Rat {
	return new(big.Rat).SetInt(new(big.Int).Div(ratio.Num(), ratio.Denom()))
}

var (
	roundedDown = NewCache(func(text string) *big.Rat { return rounded(text, false) })
	roundedUp   = NewCache(func(text string) *big.Rat { return rounded(text, true) })
	flows       = NewCache(readFlow)
)

// Cache has what was read lately: the same limits and costs come again and again, and exact arithmetic takes long.
type Cache[K comparable, V any] struct {
	read  func(K) V
	mutex sync.Mutex
	known map[K]V
}

const mostCached = 1000

// NewCache caches what a function reads.
func NewCache[K comparable, V any](read func(K) V) *Cache[K, V] {
	return &Cache[K, V]{read: read, known: map[K]V{}}
}

// Of returns what the function reads of the key.
func (c *Cache[K, V]) Of(key K) V {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	value, ok := c.known[key]
	if !ok {
		if len(c.known) >= mostCached {
			c.known = map[K]V{}
		}
		value = c.read(key)
		c.known[key] = value
	}
	return value
}
