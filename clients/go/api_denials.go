package tokenbucket

import (
	"container/list"
	"sync"
	"time"
)

type denial struct {
	cost     float64
	decision Decision
	// The server decided some time between the question and its reply. No call is refused for longer than if it was at the
	// question; what the refused are told counts from the reply, so that it is enough.
	asked, heard time.Time
}

// denials are the last ones of so many buckets.
type denials struct{ recent[denial] }

// recall is the denial that still holds for such a cost; one of cost 5 says nothing about cost 1.
func (d *denials) recall(of bucket, cost float64, now time.Time) (Decision, bool) {
	d.Lock()
	defer d.Unlock()
	denied, ok := d.get(of)
	if ok && now.Sub(denied.asked) >= denied.decision.RetryAfter {
		d.remove(of)
		ok = false
	}
	if !ok || cost < denied.cost {
		return Decision{}, false
	}
	refusal, waited := denied.decision, now.Sub(denied.heard)
	refusal.RetryAfter = lessenedBy(refusal.RetryAfter, waited)
	refusal.ResetAfter = lessenedBy(refusal.ResetAfter, waited)
	return refusal, true
}

func (d *denials) remember(of bucket, denied denial) {
	if decision := denied.decision; decision.Allowed || decision.Degraded || decision.RetryAfter <= 0 {
		return
	}
	d.Lock()
	defer d.Unlock()
	d.remove(of)
	d.add(of, denied)
}

// forget: tokens came back, the denial may no longer hold.
func (d *denials) forget(of bucket) {
	d.Lock()
	defer d.Unlock()
	d.remove(of)
}

// recent keeps something for so many buckets, those that were used last. Its lock guards what it keeps, too.
type recent[T any] struct {
	sync.Mutex
	most  int
	order list.List // of kept, the last used first
	of    map[bucket]*list.Element
}

type kept[T any] struct {
	bucket bucket
	value  T
}

func (r *recent[T]) get(of bucket) (value T, ok bool) {
	element, ok := r.of[of]
	if ok {
		r.order.MoveToFront(element)
		value = element.Value.(kept[T]).value
	}
	return value, ok
}

// add also returns what had to make room, if anything had to.
func (r *recent[T]) add(of bucket, value T) (evicted T) {
	if r.of == nil {
		r.of = map[bucket]*list.Element{}
	}
	r.of[of] = r.order.PushFront(kept[T]{of, value})
	if len(r.of) > r.most {
		evicted, _ = r.remove(r.order.Back().Value.(kept[T]).bucket)
	}
	return evicted
}

func (r *recent[T]) remove(of bucket) (value T, ok bool) {
	element, ok := r.of[of]
	if ok {
		delete(r.of, of)
		value = r.order.Remove(element).(kept[T]).value
	}
	return value, ok
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
