// Package local is the local limiter: it decides in this process as the server does, in exact arithmetic.
package local

import (
	"container/heap"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Store has the buckets that are not full. It is safe for concurrent use.
type Store struct {
	mutex sync.Mutex
	most  int    // buckets; 0: any number
	queue byFull // of all buckets; unused if any number is kept
	of    map[string]*stored
	now   time.Duration // of the current call, since 1970
}

type stored struct {
	key string
	bucket
	capacity *big.Rat // of the last write, like rate
	rate     string
	fullAtMs int64 // since 1970
	position int   // in the queue
}

// NewStore keeps at most so many buckets; 0: all. It forgets the one that is full first: an empty bucket is not refilled by
// calls under other names.
func NewStore(most int) *Store { return &Store{most: most, of: map[string]*stored{}} }

// byFull is a heap of buckets, the first that is full first.
type byFull []*stored

func (q byFull) Len() int           { return len(q) }
func (q byFull) Less(i, j int) bool { return q[i].fullAtMs < q[j].fullAtMs }
func (q byFull) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].position, q[j].position = i, j
}
func (q *byFull) Push(one any) {
	one.(*stored).position = len(*q)
	*q = append(*q, one.(*stored))
}
func (q *byFull) Pop() any {
	last := len(*q) - 1
	one := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return one
}

// firstBut returns the first bucket that is not the given one, of two or more.
func (q byFull) firstBut(one *stored) *stored {
	switch {
	case q[0] != one:
		return q[0]
	case len(q) > 2 && q.Less(2, 1):
		return q[2]
	}
	return q[1]
}

// Error is a line that the server replies.
type Error string

func (e Error) Error() string { return string(e) }

// Check returns the error of a command that is wrong whatever the buckets have.
func Check(words []string) error {
	_, err := NewStore(0).Do(0, words)
	return err
}

// Do decides at that moment, in time since 1970, on DEL and the commands that limiters send.
func (s *Store) Do(now time.Duration, words []string) (any, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.now = now
	name, arguments := words[0], words[1:]
	switch name {
	case "DEL":
		return s.del(arguments), nil
	case "TB.MTAKE":
		return s.several(arguments, 1, (*view).waitMs, func(v *view, cost *big.Rat) { v.level.Sub(v.level, cost) })
	case "TB.MHOLD", "TB.MRENEW":
		return s.hold(arguments, name == "TB.MRENEW")
	case "TB.MSETTLE":
		return s.settle(arguments)
	}
	operation, ok := operations[name]
	if !ok {
		return nil, Error(fmt.Sprintf("ERR unknown command '%s'", name))
	}
	if len(arguments) < 3 || len(arguments) > 3+operation.more {
		return nil, Error(fmt.Sprintf("ERR wrong number of arguments for '%s' command", strings.ToLower(name)))
	}
	v, err := s.look(arguments[0], arguments[1], arguments[2], operation.takesPools)
	if err != nil {
		return nil, err
	}
	reply, err := operation.decide(v, arguments[3:])
	if err == nil && !operation.onlyLooks {
		s.keep(v)
	}
	return reply, err
}

func (s *Store) del(keys []string) int64 {
	var deleted int64
	for _, key := range keys {
		if s.drop(key) {
			deleted++
		}
	}
	return deleted
}

func (s *Store) drop(key string) bool {
	one, ok := s.of[key]
	if ok {
		delete(s.of, key)
		if s.most > 0 {
			heap.Remove(&s.queue, one.position)
		}
	}
	return ok
}

type operation struct {
	decide     func(*view, []string) (any, error)
	more       int // arguments behind the limit
	onlyLooks  bool
	takesPools bool
}

var operations = map[string]operation{
	"TB.TAKE":     {decide: (*view).take, more: 1},
	"TB.PEEK":     {decide: (*view).take, more: 1, onlyLooks: true, takesPools: true},
	"TB.TAKEUPTO": {decide: (*view).takeUpTo, more: 1},
	"TB.RESERVE":  {decide: (*view).reserve, more: 2},
	"TB.CHARGE":   {decide: (*view).charge, more: 1},
	"TB.GIVE":     {decide: (*view).give, more: 1, takesPools: true},
}

func (v *view) take(arguments []string) (any, error) {
	cost := "1"
	if len(arguments) > 0 {
		cost = arguments[0]
	}
	return v.reserve([]string{cost, "0"})
}

func (v *view) reserve(arguments []string) (any, error) {
	cost, err := amountUp("cost", arguments[0])
	if err != nil {
		return nil, err
	}
	maxWait, err := strconv.ParseInt(arguments[1], 10, 64)
	if err != nil || maxWait < 0 {
		return nil, Error("ERR max_wait_ms must be a whole number of milliseconds from 0 to 3155760000000")
	}
	wait := v.waitMs(cost)
	if wait == never || wait > maxWait {
		return v.reply(0, wait), nil
	}
	v.level.Sub(v.level, cost)
	return v.reply(1, wait), nil
}

func (v *view) takeUpTo(arguments []string) (any, error) {
	most, err := strconv.ParseInt(arguments[0], 10, 64)
	if err != nil || most < 1 || most > MostTokens {
		return nil, Error("ERR max must be a whole number of tokens from 1 to 1e12")
	}
	granted := floor(v.level)
	if granted > most {
		granted = most
	}
	if granted < 1 {
		return v.reply(0, v.waitMs(big.NewRat(1, 1))), nil
	}
	v.level.Sub(v.level, big.NewRat(granted, 1))
	return v.reply(granted, 0), nil
}

func (v *view) charge(arguments []string) (any, error) {
	amount, err := amountUp("amount", arguments[0])
	if err != nil {
		return nil, err
	}
	v.level.Sub(v.level, amount)
	return v.reply(1, v.waitMs(new(big.Rat))), nil
}

func (v *view) give(arguments []string) (any, error) {
	amount, err := amountDown("amount", arguments[0])
	if err != nil {
		return nil, err
	}
	v.fill(amount)
	return v.reply(1, 0), nil
}

// several lets all buckets do what each waits for, or none.
func (s *Store) several(words []string, before int, waitMs func(*view, *big.Rat) int64, do func(*view, *big.Rat)) (any, error) {
	views, amounts, err := s.lookAtAll(words, before)
	if err != nil {
		return nil, err
	}
	waits, all := make([]int64, len(views)), true
	for i, v := range views {
		waits[i] = waitMs(v, amounts[i])
		all = all && waits[i] == 0
	}
	replies := make([]any, len(views))
	for i, v := range views {
		if all {
			do(v, amounts[i])
			s.keep(v)
		}
		replies[i] = v.reply(oneIf(waits[i] == 0), waits[i])
	}
	return joint(replies), nil
}

const longestTTLMs = 2_592_000_000

func (s *Store) hold(words []string, renews bool) (any, error) {
	ttlMs, err := strconv.ParseInt(words[1], 10, 64)
	if err != nil || ttlMs < 1 || ttlMs > longestTTLMs {
		return nil, Error("ERR ttl_ms must be a whole number of milliseconds from 1 to 2592000000")
	}
	id, ttl := words[2], time.Duration(ttlMs)*time.Millisecond
	if renews {
		return s.renew(words, id, ttl)
	}
	more := func(v *view, amount *big.Rat) *big.Rat {
		if old, ok := v.held(id); ok {
			return old.Sub(amount, old)
		}
		return amount
	}
	waitMs := func(v *view, amount *big.Rat) int64 {
		if more := more(v, amount); more.Sign() > 0 {
			return v.waitMs(more)
		}
		return 0
	}
	set := func(v *view, amount *big.Rat) {
		v.fill(new(big.Rat).Neg(more(v, amount)))
		v.commit()
		v.holds.set(id, floor(new(big.Rat).Mul(amount, micro)), v.at+ttl)
	}
	return s.several(words, 3, waitMs, set)
}

func (s *Store) renew(words []string, id string, ttl time.Duration) (any, error) {
	groups := append([]string(nil), words[:3]...)
	for group := words[3:]; len(group) >= 3; group = group[3:] {
		groups = append(append(groups, group[:3]...), "0") // of no amount
	}
	waitMs := func(v *view, _ *big.Rat) int64 {
		if _, ok := v.held(id); ok {
			return 0
		}
		return never
	}
	set := func(v *view, _ *big.Rat) {
		v.commit()
		v.holds.set(id, v.holds.of[id].micro, v.at+ttl)
	}
	return s.several(groups, 3, waitMs, set)
}

func (s *Store) settle(words []string) (any, error) {
	id := words[1]
	views, used, err := s.lookAtAll(words, 2)
	if err != nil {
		return nil, err
	}
	for i, v := range views {
		if v.flow.isPool() && used[i].Sign() > 0 {
			return nil, Error("ERR used must be 0 if the rate is 0: nothing would refill it")
		}
	}
	replies := make([]any, len(views))
	for i, v := range views {
		old, ok := v.held(id)
		if !ok {
			replies[i] = v.reply(0, never)
			continue
		}
		v.commit()
		v.holds.end(id)
		v.fill(old.Sub(old, used[i]))
		s.keep(v)
		replies[i] = v.reply(1, v.waitMs(new(big.Rat)))
	}
	return joint(replies), nil
}

// lookAtAll reads groups of a key, a limit and an amount, behind so many other words.
func (s *Store) lookAtAll(words []string, before int) (views []*view, amounts []*big.Rat, err error) {
	count, err := strconv.Atoi(words[0])
	if err != nil || count < 1 || len(words) != before+4*count {
		return nil, nil, Error("ERR numkeys must match the number of groups")
	}
	isKnown := map[string]bool{}
	for group := words[before:]; len(group) > 0; group = group[4:] {
		if isKnown[group[0]] {
			return nil, nil, Error("ERR key must not be given twice in one call")
		}
		isKnown[group[0]] = true
		v, err := s.look(group[0], group[1], group[2], before > 1)
		if err != nil {
			return nil, nil, err
		}
		amount, err := amountUp("cost", group[3])
		if err != nil {
			return nil, nil, err
		}
		views, amounts = append(views, v), append(amounts, amount)
	}
	return views, amounts, nil
}

// look is a bucket as it is now under a limit.
func (s *Store) look(key, capacity, rate string, takesPools bool) (*view, error) {
	flow, err := flowOf(rate)
	if err != nil {
		return nil, Error("ERR " + err.Error())
	}
	if flow.isPool() && !takesPools {
		return nil, Error("ERR rate must be above 0 here: 0 is for the commands of holds")
	}
	most, err := amountDown("capacity", capacity)
	if err != nil {
		return nil, err
	}
	v := &view{key: key, capacity: most, rate: rate, flow: flow}
	one, ok := s.of[key]
	if !ok {
		v.bucket = bucket{new(big.Rat).Set(most), s.now, &holds{}}
		return v, nil
	}
	v.bucket = bucket{new(big.Rat).Set(one.level), one.at, one.holds}
	v.fill(new(big.Rat))
	v.passUntil(s.now)
	if v.passed > 0 && one.capacity.Cmp(most) == 0 && one.rate == rate { // or all calls would let them pass again
		v.commit()
		one.level.Set(v.level)
		one.at = v.at
	}
	return v, nil
}

// commit ends the holds that have come back, before the bucket is kept or its holds change.
func (v *view) commit() {
	if v.passed > 0 {
		v.holds.endExpired(v.at)
		v.passed = 0
	}
}

func (s *Store) keep(v *view) {
	v.commit()
	if v.level.Cmp(v.capacity) >= 0 && len(v.holds.of) == 0 {
		s.drop(v.key)
		return
	}
	one, ok := s.of[v.key]
	if !ok {
		one = &stored{key: v.key}
		s.of[v.key] = one
	}
	one.bucket, one.capacity, one.rate = v.bucket, v.capacity, v.rate
	if s.most > 0 {
		s.queueUp(one, ok, v.waitMs(v.capacity))
	}
}

// queueUp keeps a bucket in order of when it is full, and forgets another if there are too many.
func (s *Store) queueUp(one *stored, isQueued bool, fullInMs int64) {
	one.fullAtMs = math.MaxInt64
	if fullInMs != never {
		one.fullAtMs = s.now.Milliseconds() + fullInMs
	}
	if isQueued {
		heap.Fix(&s.queue, one.position)
		return
	}
	heap.Push(&s.queue, one)
	if len(s.queue) > s.most {
		s.drop(s.queue.firstBut(one).key)
	}
}

func joint(each []any) []any {
	binding := append([]any(nil), each[0].([]any)...)
	for _, reply := range each[1:] {
		for field, value := range reply.([]any) {
			binding[field] = tighter(field, binding[field].(int64), value.(int64))
		}
	}
	return append(binding, each)
}

// tighter is the smaller of what there is and the larger of waits, of which never is the largest.
func tighter(field int, one, other int64) int64 {
	isWait := field >= 2
	if isWait && (one == never || other == never) {
		return never
	}
	if (other > one) == isWait {
		return other
	}
	return one
}

func oneIf(condition bool) int64 {
	if condition {
		return 1
	}
	return 0
}
