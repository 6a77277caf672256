package tokenbucket

import (
	"container/list"
	"sync"
	"time"
)

// denial is the last one of a name.
type denial struct {
	part
	decision Decision
	// The server decided some time between the question and its reply. No call is refused for longer than if it was at the
	// question; what the refused are told counts from the reply, so that it is enough.
	asked, heard time.Time
}

// denials are the last one of each name.
type denials struct {
	recent[string, denial]
	forgotten time.Time // the last time: what was asked before may have been decided before the tokens came back
}

// recall returns the denial of a part if it still holds; one of cost 5 says nothing about cost 1.
func (s *settings) recall(p part, now time.Time) (Decision, bool) {
	s.denials.Lock()
	defer s.denials.Unlock()
	denied, ok := s.denials.get(p.name)
	if ok && now.Sub(denied.asked) >= denied.decision.RetryAfter {
		s.denials.remove(p.name)
		ok = false
	}
	if !ok || denied.limit != p.limit || !(p.amount >= denied.amount) { // also of no number
		return Decision{}, false
	}
	refusal, waited := denied.decision, now.Sub(denied.heard)
	refusal.RetryAfter = lessenedBy(refusal.RetryAfter, waited)
	refusal.ResetAfter = lessenedBy(refusal.ResetAfter, waited)
	return refusal, true
}

func (s *settings) remember(p part, decision Decision, asked time.Time) {
	if decision.Allowed || decision.Degraded || decision.RetryAfter <= 0 {
		return
	}
	s.denials.Lock()
	defer s.denials.Unlock()
	if asked.Before(s.denials.forgotten) {
		return
	}
	s.denials.set(p.name, denial{p, decision, asked, s.server.clock.Now()})
}

// forget removes what tokens that came back have made untrue. Call it after the server has put them back.
func (s *settings) forget(name string) {
	s.denials.Lock()
	defer s.denials.Unlock()
	s.denials.remove(name)
	s.denials.forgotten = s.server.clock.Now()
}

func (s *settings) forgetAll(parts []part) {
	for _, p := range parts {
		s.forget(p.name)
	}
}

// recent keeps a value for each key, up to a number of them: those used last. Its lock guards the values, too.
type recent[K comparable, T any] struct {
	sync.Mutex
	most  int
	order list.List // of kept, the last used first
	of    map[K]*list.Element
}

type kept[K comparable, T any] struct {
	key   K
	value T
}

func (r *recent[K, T]) get(key K) (value T, ok bool) {
	element, ok := r.of[key]
	if ok {
		r.order.MoveToFront(element)
		value = element.Value.(kept[K, T]).value
	}
	return value, ok
}

// set also returns what it replaced or what had to make room, if there was any.
func (r *recent[K, T]) set(key K, value T) (gone T) {
	gone = r.remove(key)
	if r.of == nil {
		r.of = map[K]*list.Element{}
	}
	r.of[key] = r.order.PushFront(kept[K, T]{key, value})
	if len(r.of) > r.most {
		gone = r.remove(r.order.Back().Value.(kept[K, T]).key)
	}
	return gone
}

func (r *recent[K, T]) remove(key K) (value T) {
	if element, ok := r.of[key]; ok {
		delete(r.of, key)
		value = r.order.Remove(element).(kept[K, T]).value
	}
	return value
}

// lessenedBy is in whole milliseconds, rounded up, as replies are. What was not over stays so.
func lessenedBy(duration, by time.Duration) time.Duration {
	if duration <= 0 {
		return duration
	}
	left := upToMs(duration - by)
	if left < time.Millisecond {
		return time.Millisecond
	}
	return left
}

func upToMs(duration time.Duration) time.Duration {
	return (duration + time.Millisecond - 1).Truncate(time.Millisecond)
}
