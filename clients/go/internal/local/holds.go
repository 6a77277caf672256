package local

import (
	"math"
	"sort"
	"time"
)

// holds are those of a bucket, in the order in which they expire. Amounts are in millionths of a token.
type holds struct {
	of    map[string]held
	order []held
	sums  []int64 // sums[i] is what those before the i-th hold, from some start on; as long as it was needed
}

type held struct {
	id      string
	micro   int64
	expires time.Duration
}

func (h held) isBefore(other held) bool {
	return h.expires < other.expires || h.expires == other.expires && h.id < other.id
}

// set replaces the hold of that id. An amount of 0 ends it.
func (h *holds) set(id string, micro int64, expires time.Duration) {
	h.end(id)
	if micro == 0 {
		return
	}
	if h.of == nil {
		h.of = map[string]held{}
	}
	one := held{id, micro, expires}
	h.of[id] = one
	at := h.place(one)
	h.order = append(h.order, held{})
	copy(h.order[at+1:], h.order[at:])
	h.order[at] = one
	h.changed(at)
}

func (h *holds) end(id string) {
	one, ok := h.of[id]
	if !ok {
		return
	}
	delete(h.of, id)
	at := h.place(one)
	h.order = append(h.order[:at], h.order[at+1:]...)
	h.changed(at)
}

// endFirst ends so many, the first to expire.
func (h *holds) endFirst(count int) {
	for _, one := range h.order[:count] {
		delete(h.of, one.id)
	}
	h.order = h.order[count:]
	if len(h.sums) > count {
		h.sums = h.sums[count:] // differences stay
	} else {
		h.sums = nil
	}
}

func (h *holds) place(one held) int {
	return sort.Search(len(h.order), func(at int) bool { return !h.order[at].isBefore(one) })
}

// changed forgets the sums behind a place.
func (h *holds) changed(at int) {
	if len(h.sums) > at+1 {
		h.sums = h.sums[:at+1]
	}
}

// expired returns how many have expired by then.
func (h *holds) expired(moment time.Duration) int {
	return sort.Search(len(h.order), func(at int) bool { return h.order[at].expires > moment })
}

// reaching returns the first hold, from the given place on, by whose expiry there is enough, and what those before it hold;
// false if there is none.
func (h *holds) reaching(from int, enough func(micro int64, at time.Duration) bool) (expires time.Duration, before int64, ok bool) {
	if len(h.sums) == 0 {
		h.sums = append(h.sums, 0)
	}
	for at := len(h.sums) - 1; at < len(h.order); at++ {
		h.sums = append(h.sums, saturated(h.sums[at], h.order[at].micro))
	}
	sum := func(at int) int64 { return h.sums[at] - h.sums[from] }
	at := from + sort.Search(len(h.order)-from, func(at int) bool {
		return enough(sum(from+at+1), h.order[from+at].expires)
	})
	if at == len(h.order) {
		return 0, sum(at), false
	}
	return h.order[at].expires, sum(at), true
}

func saturated(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
