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

// recall returns the denial of a part if it still holds; one of cost 5 says nothing about cost 1.
func (s *settings) recall(p part, now time.Time) (Decision, bool) {
	s.denials.Lock()
	defer s.denials.Unlock()
	denied, ok := s.denials.get(p.name)
	if ok && now.Sub(denied.asked) >= denied.decision.RetryAfter {
		s.denials.remove(p.name)
		ok = false
	}
	if !ok || denied.limit != p.limit || p.amount < denied.amount {
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
	s.denials.set(p.name, denial{p, decision, asked, s.server.clock.Now()})
}

// recent keeps something for so many names, those that were used last. Its lock guards what it keeps, too.
type recent[T any] struct {
	sync.Mutex
	most  int
	order list.List // of kept, the last used first
	of    map[string]*list.Element
}

type kept[T any] struct {
	name  string
	value T
}

func (r *recent[T]) get(name string) (value T, ok bool) {
	element, ok := r.of[name]
	if ok {
		r.order.MoveToFront(element)
		value = element.Value.(kept[T]).value
	}
	return value, ok
}

// set also returns what it replaced or what had to make room, if there was any.
func (r *recent[T]) set(name string, value T) (gone T) {
	gone = r.remove(name)
	if r.of == nil {
		r.of = map[string]*list.Element{}
	}
	r.of[name] = r.order.PushFront(kept[T]{name, value})
	if len(r.of) > r.most {
		gone = r.remove(r.order.Back().Value.(kept[T]).name)
	}
	return gone
}

func (r *recent[T]) remove(name string) (value T) {
	if element, ok := r.of[name]; ok {
		delete(r.of, name)
		value = r.order.Remove(element).(kept[T]).value
	}
	return value
}

// forget removes what a change of the bucket has made untrue.
func (r *recent[T]) forget(name string) {
	r.Lock()
	defer r.Unlock()
	r.remove(name)
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
