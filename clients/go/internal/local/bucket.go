package local

import (
	"fmt"
	"math/big"
	"sort"
	"sync"
	"time"
)

const never = int64(-1)

// bucket is as it was at its last write.
type bucket struct {
	level *big.Rat
	at    time.Duration
	holds map[string]held
}

type held struct {
	amount  *big.Rat
	expires time.Duration
}

func (b *bucket) copy() bucket {
	holds := map[string]held{}
	for id, one := range b.holds {
		holds[id] = one
	}
	return bucket{new(big.Rat).Set(b.level), b.at, holds}
}

// view is a bucket under the limit of one call.
type view struct {
	key      string
	capacity *big.Rat
	flow     flow
	bucket
}

// fill never fills above the capacity; nothing more is how a level is clamped to a smaller one.
func (v *view) fill(more *big.Rat) {
	if v.holds == nil {
		v.holds = map[string]held{}
	}
	if v.level.Add(v.level, more); v.level.Cmp(v.capacity) > 0 {
		v.level.Set(v.capacity)
	}
}

func (v *view) flowUntil(moment time.Duration) {
	v.fill(v.flow.between(v.at, moment))
	v.at = moment
}

// passUntil lets tokens flow in, and holds come back as they expire.
func (v *view) passUntil(moment time.Duration) {
	for _, id := range v.expiring() {
		one := v.holds[id]
		if one.expires > moment {
			break
		}
		v.flowUntil(one.expires)
		v.fill(one.amount)
		delete(v.holds, id)
	}
	v.flowUntil(moment)
}

// expiring is the holds, the next to expire first.
func (v *view) expiring() []string {
	ids := make([]string, 0, len(v.holds))
	for id := range v.holds {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool { return v.holds[ids[i]].expires < v.holds[ids[j]].expires })
	return ids
}

// waitMs is how long until there is so much if nobody else acts, rounded up.
func (v *view) waitMs(wanted *big.Rat) int64 {
	if v.level.Cmp(wanted) >= 0 {
		return 0
	}
	if wanted.Cmp(v.capacity) > 0 {
		return never
	}
	future := &view{v.key, v.capacity, v.flow, v.bucket.copy()}
	for _, id := range future.expiring() {
		one, ok := future.holds[id]
		if !ok {
			continue // it came back together with another
		}
		if wait, ok := future.flowsWithin(wanted, v.at); ok && wait.Cmp(nanoseconds(one.expires-v.at)) < 0 {
			return upToMs(wait)
		}
		future.passUntil(one.expires)
		if future.level.Cmp(wanted) >= 0 {
			return upToMs(nanoseconds(one.expires - v.at))
		}
	}
	if wait, ok := future.flowsWithin(wanted, v.at); ok {
		return upToMs(wait)
	}
	return never
}

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

// amountDown and amountUp read an amount to the millionth of a token. Nobody may change it: it is cached.
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

func toMicro(text string) *big.Rat {
	amount := parseNumber(text)
	if amount == nil {
		return nil
	}
	amount.Mul(amount, micro)
	whole := new(big.Int).Div(amount.Num(), amount.Denom())
	return amount.Quo(new(big.Rat).SetInt(whole), micro)
}

func toMicroUp(text string) *big.Rat {
	amount := toMicro(text)
	if amount != nil && amount.Cmp(parseNumber(text)) < 0 {
		amount.Add(amount, big.NewRat(1, 1_000_000))
	}
	return amount
}

var (
	roundedDown = NewCache(toMicro)
	roundedUp   = NewCache(toMicroUp)
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
