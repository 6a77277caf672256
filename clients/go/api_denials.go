package tokenbucket

import (
	"container/list"
	"sync"
	"time"
)

type denial struct {
	cost     float64
	decision Decision
	// The server decided some time between the question and its reply. Nobody is refused for longer than if it was at the
	// question; what the refused are told counts from the reply, so that it is enough.
	asked, heard time.Time
}

// denials are the last ones of so many buckets. The nil denials remember nothing.
type denials struct {
	size   int
	mutex  sync.Mutex
	recent *list.List // of remembered, the latest first
	of     map[bucket]*list.Element
}

type remembered struct {
	bucket bucket
	denial denial
}

func newDenials(size int) *denials {
	return &denials{size: size, recent: list.New(), of: map[bucket]*list.Element{}}
}

// recall is the denial that still holds for such a cost; one of cost 5 says nothing about cost 1.
func (d *denials) recall(of bucket, cost float64, now time.Time) (Decision, bool) {
	if d == nil {
		return Decision{}, false
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	element, ok := d.of[of]
	if !ok {
		return Decision{}, false
	}
	denied := element.Value.(remembered).denial
	if now.Sub(denied.asked) >= denied.decision.RetryAfter {
		d.remove(element)
		return Decision{}, false
	}
	if cost < denied.cost {
		return Decision{}, false
	}
	refusal, waited := denied.decision, now.Sub(denied.heard)
	refusal.RetryAfter = lessenedBy(refusal.RetryAfter, waited)
	refusal.ResetAfter = lessenedBy(refusal.ResetAfter, waited)
	return refusal, true
}

func (d *denials) remember(of bucket, denied denial) {
	decision := denied.decision
	if d == nil || decision.Allowed || decision.Degraded || decision.RetryAfter <= 0 {
		return
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if element, ok := d.of[of]; ok {
		d.remove(element)
	}
	d.of[of] = d.recent.PushFront(remembered{of, denied})
	if d.recent.Len() > d.size {
		d.remove(d.recent.Back())
	}
}

// forget: tokens came back, the denial may no longer hold.
func (d *denials) forget(of bucket) {
	if d == nil {
		return
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if element, ok := d.of[of]; ok {
		d.remove(element)
	}
}

func (d *denials) remove(element *list.Element) {
	d.recent.Remove(element)
	delete(d.of, element.Value.(remembered).bucket)
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
