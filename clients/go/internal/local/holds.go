package local

import (
	"math"
	"math/rand"
	"time"
)

// holds are those of a bucket, by their ids and in the order in which they expire: a treap, whose nodes know the sum of what
// those below them hold. Amounts are in millionths of a token.
type holds struct {
	of   map[string]*held
	root *held
}

type held struct {
	id      string
	micro   int64
	expires time.Duration

	left, right *held
	priority    uint32 // that of no node below is higher
	sum         int64
}

func (h *held) isBefore(other *held) bool {
	return h.expires < other.expires || h.expires == other.expires && h.id < other.id
}

func (h *held) total() int64 {
	if h == nil {
		return 0
	}
	return h.sum
}

// with sets what is below a node.
func (h *held) with(left, right *held) *held {
	h.left, h.right = left, right
	h.sum = saturated(saturated(left.total(), h.micro), right.total())
	return h
}

// split parts a tree into the first nodes, of which that is so, and the others.
func split(h *held, isFirst func(*held) bool) (first, others *held) {
	switch {
	case h == nil:
		return nil, nil
	case isFirst(h):
		between, others := split(h.right, isFirst)
		return h.with(h.left, between), others
	default:
		first, between := split(h.left, isFirst)
		return first, h.with(between, h.right)
	}
}

// joined is a tree of two, of which all in the first are before all in the other.
func joined(first, others *held) *held {
	switch {
	case first == nil:
		return others
	case others == nil:
		return first
	case first.priority > others.priority:
		return first.with(first.left, joined(first.right, others))
	default:
		return others.with(joined(first, others.left), others.right)
	}
}

// set replaces the hold of that id. An amount of 0 ends it.
func (h *holds) set(id string, micro int64, expires time.Duration) {
	h.end(id)
	if micro == 0 {
		return
	}
	if h.of == nil {
		h.of = map[string]*held{}
	}
	one := &held{id: id, micro: micro, expires: expires, priority: rand.Uint32()}
	h.of[id] = one
	first, others := split(h.root, func(other *held) bool { return other.isBefore(one) })
	h.root = joined(joined(first, one.with(nil, nil)), others)
}

func (h *holds) end(id string) {
	one, ok := h.of[id]
	if !ok {
		return
	}
	delete(h.of, id)
	first, others := split(h.root, func(other *held) bool { return other.isBefore(one) })
	_, others = split(others, func(other *held) bool { return other == one })
	h.root = joined(first, others)
}

// expired calls the function for each that has expired by then, the first to expire first.
func (h *holds) expired(moment time.Duration, do func(*held)) { h.root.expired(moment, do) }

func (h *held) expired(moment time.Duration, do func(*held)) {
	if h == nil {
		return
	}
	if h.left.expired(moment, do); h.expires <= moment {
		do(h)
		h.right.expired(moment, do)
	}
}

// endExpired ends those that have expired by then.
func (h *holds) endExpired(moment time.Duration) {
	h.expired(moment, func(one *held) { delete(h.of, one.id) })
	_, h.root = split(h.root, func(one *held) bool { return one.expires <= moment })
}

// reaching returns the first hold that expires after a moment and by whose expiry there is enough, and what those before it
// hold that expire after the moment too; false if there is none.
func (h *holds) reaching(after time.Duration, enough func(micro int64, at time.Duration) bool) (expires time.Duration, before int64, ok bool) {
	var past int64 // of those that do not count
	for one := h.root; one != nil; {
		if one.expires > after {
			one = one.left
		} else {
			past, one = saturated(past, saturated(one.left.total(), one.micro)), one.right
		}
	}
	sum := -past
	for one := h.root; one != nil; {
		with := saturated(saturated(sum, one.left.total()), one.micro)
		if one.expires > after && enough(with, one.expires) {
			expires, before, ok, one = one.expires, with-one.micro, true, one.left
		} else {
			sum, one = with, one.right
		}
	}
	if !ok {
		before = sum
	}
	return expires, before, ok
}

func saturated(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
