// Package local is the local limiter: it decides in this process as the server does, in exact arithmetic.
package local

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"sync"
	"time"

	"tokenbucket/internal/rules"
)

// Store has the buckets that are not full. It is safe for concurrent use.
type Store struct {
	mutex sync.Mutex
	most  int // buckets; 0: any number
	of    map[string]stored
	now   time.Duration // of the current call, since 1970
}

// NewStore keeps at most so many buckets; 0: all.
func NewStore(most int) *Store { return &Store{most: most, of: map[string]stored{}} }

// commands are DEL and those that limiters send.
var commands = map[string]struct {
	do           func(*Store, []string) (any, error)
	fewest, most int // arguments
}{
	"DEL":         {(*Store).del, 1, math.MaxInt},
	"TB.TAKE":     {single("cost", up, (*bucket).take, false, false), 3, 4},
	"TB.PEEK":     {single("cost", up, (*bucket).take, true, true), 3, 4},
	"TB.TAKEUPTO": {single("max", down, (*bucket).takeUpTo, false, false), 4, 4},
	"TB.RESERVE":  {single("cost", up, (*bucket).reserve, false, false), 5, 5},
	"TB.CHARGE":   {single("amount", up, (*bucket).charge, false, false), 4, 4},
	"TB.GIVE":     {single("amount", down, (*bucket).give, false, false), 4, 4},
	"TB.MTAKE":    {(*Store).take, 5, math.MaxInt},
	"TB.MHOLD":    {holding(4), 7, math.MaxInt},
	"TB.MRENEW":   {holding(3), 6, math.MaxInt},
	"TB.MSETTLE":  {(*Store).settle, 6, math.MaxInt},
	"TB.TAKEANY":  {first((*Store).take, 2), 6, math.MaxInt},
	"TB.HOLDANY":  {first(holding(4), 4), 8, math.MaxInt},
}

// Do decides at that moment, in time since 1970.
func (s *Store) Do(now time.Duration, args ...any) (any, error) {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = fmt.Sprint(arg)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if now > s.now { // or another call, which came later, was the first here
		s.now = now
	}
	command, ok := commands[words[0]]
	switch arguments := words[1:]; {
	case !ok:
		return nil, fmt.Errorf("ERR unknown command '%s'", words[0])
	case len(arguments) < command.fewest || len(arguments) > command.most:
		return nil, fmt.Errorf("ERR wrong number of arguments for '%s' command", strings.ToLower(words[0]))
	default:
		return command.do(s, arguments)
	}
}

func (s *Store) del(keys []string) (any, error) {
	before := len(s.of)
	for _, key := range keys {
		delete(s.of, key)
	}
	return int64(before - len(s.of)), nil
}

type decider func(b *bucket, amount *big.Rat, arguments []string) ([]any, error)

// single is a command of one bucket.
func single(what string, isUp bool, decide decider, takesPools, onlyLooks bool) func(*Store, []string) (any, error) {
	return func(s *Store, words []string) (any, error) {
		buckets, err := s.look("1", words[:3], 3, takesPools)
		if err != nil {
			return nil, err
		}
		arguments := append(words[3:], "1") // the cost, unless it is given
		amount, err := amountOf(what, arguments[0], isUp)
		if err != nil {
			return nil, err
		}
		reply, err := decide(buckets[0], amount, arguments)
		if err == nil && !onlyLooks {
			s.keep(buckets[0])
		}
		return reply, err
	}
}

func (s *Store) take(words []string) (any, error) {
	buckets, err := s.look(words[0], words[1:], 4, false)
	if err != nil {
		return nil, err
	}
	waitMs := func(b *bucket) int64 { return b.waitMs(b.amount) }
	return s.decide(buckets, false, waitMs, func(b *bucket) int64 { b.spend(b.amount); return 0 }), nil
}

// decide lets all buckets do what each waits for, or none, or each for itself. What they do returns how long to wait after it.
func (s *Store) decide(buckets []*bucket, isEach bool, waitMs, do func(*bucket) int64) any {
	waits, areAllReady := make([]int64, len(buckets)), true
	for i, b := range buckets {
		waits[i] = waitMs(b)
		areAllReady = areAllReady && waits[i] == 0
	}
	replies := make([]any, len(buckets))
	for i, b := range buckets {
		allowed := int64(0)
		if waits[i] == 0 {
			allowed = 1
			if areAllReady || isEach {
				waits[i] = do(b)
			}
		}
		replies[i] = b.reply(allowed, waits[i])
		s.keep(b)
	}
	return joint(replies)
}

// holding lets a hold of the amounts last from now. Groups of three have none: a renewal is of what it has.
func holding(size int) func(*Store, []string) (any, error) {
	return func(s *Store, words []string) (any, error) {
		id := words[2]
		ttlMs, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil || ttlMs < 1 || ttlMs > rules.Longest.Milliseconds() {
			return nil, errors.New("ERR ttl_ms must be a whole number of milliseconds from 1 to 2592000000")
		}
		buckets, err := s.look(words[0], words[3:], size, true)
		if err != nil {
			return nil, err
		}
		waitMs := func(b *bucket) int64 {
			if size == 3 {
				if b.amount = b.holds.amountOf(id); b.amount == none {
					return never
				}
			}
			return b.waitMsToHold(id)
		}
		return s.decide(buckets, false, waitMs, func(b *bucket) int64 {
			b.fill(new(big.Rat).Sub(b.holds.amountOf(id), b.amount))
			b.holds.set(id, b.amount, b.at+time.Duration(ttlMs)*time.Millisecond)
			return 0
		}), nil
	}
}

// first decides on the alternatives in order, or on the one that has the hold alone, until one allows: its number comes first in
// the reply. If none does, it returns the denial with the shortest wait. Of those that have the hold, the first that wants what is
// held has it, or else the first. Looks at all before: a mistake in the last is one, too. So many words come before the groups.
func first(decide func(*Store, []string) (any, error), before int) func(*Store, []string) (any, error) {
	return func(s *Store, words []string) (any, error) {
		number, _ := strconv.Atoi(words[0])
		size, _ := strconv.Atoi(words[1])
		groups, id := words[before:], ""
		if before > 2 {
			id = words[3]
		}
		if number > mostBuckets {
			return nil, errTooMany
		}
		if size < 1 || number%size != 0 || len(groups) != 4*number {
			return nil, errors.New("ERR each must be a whole number that divides numkeys")
		}
		held, isSame := -1, false
		for i := 0; i < number/size; i++ {
			buckets, err := s.look(words[1], groups[4*size*i:4*size*(i+1)], 4, id != "")
			if err != nil {
				return nil, err
			}
			if is, same := hasHold(buckets, id); is && (held < 0 || same && !isSame) {
				held, isSame = i, same
			}
		}
		var soonest []any
		for i := 0; i < number/size; i++ {
			if held >= 0 && i != held {
				continue
			}
			reply, err := decide(s, append(append([]string(nil), words[1:before]...), groups[4*size*i:4*size*(i+1)]...))
			if err != nil {
				return nil, err
			}
			fields := reply.([]any)
			if fields[0].(int64) > 0 {
				fields[0] = int64(i + 1)
				return fields, nil
			}
			if soonest == nil || uint64(fields[2].(int64)) < uint64(soonest[2].(int64)) { // never is the largest
				soonest = fields
			}
		}
		return soonest, nil
	}
}

// hasHold returns whether every bucket of which an alternative wants any has the hold, or one if it wants none; and whether what
// is held is what it wants.
func hasHold(buckets []*bucket, id string) (isHeld, isSame bool) {
	wants, hasAll, hasOne, isSame := false, true, false, true
	for _, b := range buckets {
		held := b.holds.amountOf(id)
		hasOne = hasOne || held != none
		isSame = isSame && held.Cmp(b.amount) == 0
		if b.amount.Sign() > 0 {
			wants, hasAll = true, hasAll && held != none
		}
	}
	return wants && hasAll || !wants && hasOne, isSame
}

func (s *Store) settle(words []string) (any, error) {
	id := words[1]
	buckets, err := s.look(words[0], words[2:], 4, true)
	if err != nil {
		return nil, err
	}
	isLate := func(b *bucket) int64 {
		if b.holds.amountOf(id) == none {
			return never
		}
		return 0
	}
	return s.decide(buckets, true, isLate, func(b *bucket) int64 {
		b.fill(new(big.Rat).Sub(b.holds.amountOf(id), b.amount))
		b.holds.set(id, none, 0)
		return b.waitMs(none)
	}), nil
}

// mostBuckets are of one call.
const mostBuckets = 1024

var errTooMany = fmt.Errorf("ERR numkeys must be a whole number from 1 to %d", mostBuckets)

// look returns the buckets of groups of a key, a limit and perhaps an amount, as they are now.
func (s *Store) look(count string, groups []string, size int, takesPools bool) (buckets []*bucket, err error) {
	number, err := strconv.Atoi(count)
	if number > mostBuckets {
		return nil, errTooMany
	}
	if err != nil || number < 1 || len(groups)%size != 0 || len(groups)/size != number {
		return nil, errors.New("ERR numkeys must match the number of groups")
	}
	isKnown := map[string]bool{}
	for group := groups; len(group) > 0; group = group[size:] {
		b := &bucket{key: group[0], rate: rateOf(group[2])}
		b.capacity, err = amountOf("capacity", group[1], down)
		if err == nil && size > 3 {
			b.amount, err = amountOf("cost", group[3], up)
		}
		switch {
		case err != nil:
		case isKnown[b.key]:
			err = errors.New("ERR key must not be given twice in one call")
		case b.rate == nil:
			err = fmt.Errorf("ERR rate: %q is neither tokens per second nor like 100/m or 1000@d, from 1 token in 100 years to 1e12 a second", group[2])
		case b.rate.isPool() && !takesPools:
			err = errors.New("ERR rate must be above 0 here: 0 is for the commands of holds")
		case !b.rate.isPool() && !b.rate.fillsInTime(b.capacity):
			err = errors.New("ERR refilling capacity from empty at this rate would take more than 100 years")
		}
		if err != nil {
			return nil, err
		}
		isKnown[b.key] = true
		s.recall(b)
		buckets = append(buckets, b)
	}
	return buckets, nil
}

// recall lets a bucket be what is stored of it, as it is now.
func (s *Store) recall(b *bucket) {
	b.level, b.at = b.capacity, s.now
	if old, ok := s.of[b.key]; ok && old.expiresMs >= s.now.Milliseconds() {
		if ended := old.holds.endBy(s.now); ended > 0 {
			old.ended = sum(old.ended, ended)
			s.of[b.key] = old
		}
		b.stored = old
		b.passUntil(s.now)
	}
	b.found = b.stored
}

// keep stores a bucket that a call has changed.
func (s *Store) keep(b *bucket) {
	switch {
	case b.level.Cmp(b.found.level) == 0 && b.holds.root == b.found.holds.root:
		return
	case b.level.Cmp(b.capacity) >= 0 && b.holds.root == nil:
		delete(s.of, b.key)
		return
	}
	b.expire()
	s.of[b.key] = b.stored
	if s.most > 0 && len(s.of) > s.most {
		s.forgetOneBut(b.key)
	}
}

// forgottenOf is how many buckets are drawn, of which one is forgotten.
const forgottenOf = 20

// forgetOneBut forgets the bucket that expires first of some that are drawn: calls under other names do not refill an empty
// one.
func (s *Store) forgetOneBut(kept string) {
	first, firstMs, drawn := "", int64(math.MaxInt64), 0
	for key, b := range s.of { // in an order of chance
		if key != kept && b.expiresMs < firstMs {
			first, firstMs = key, b.expiresMs
		}
		if drawn++; drawn == forgottenOf {
			break
		}
	}
	delete(s.of, first)
}

func joint(each []any) []any {
	binding := append([]any(nil), each[0].([]any)...)
	for _, reply := range each[1:] {
		for field, value := range reply.([]any) {
			one, other := binding[field].(int64), value.(int64)
			// The smaller of what there is, the larger of waits. As unsigned, never is the largest.
			if field < 2 && other < one || field >= 2 && uint64(other) > uint64(one) {
				binding[field] = other
			}
		}
	}
	return append(binding, each)
}
