package local

import (
	"math"
	"math/big"
	"math/rand"
	"time"
)

// holds are those of a bucket that have not ended, in the order in which they expire: a treap, whose nodes know the sum of what
// those below them hold. Nodes never change. Amounts are in millionths of a token.
type holds struct {
	root *held
	byID map[string]*held // as they were set
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

// with is the node above others.
func (h held) with(left, right *held) *held {
	h.left, h.right = left, right
	h.sum = sum(sum(left.total(), h.micro), right.total())
	return &h
}

// split parts a tree into the nodes in front, and the others.
func split(h *held, isFront func(*held) bool) (front, others *held) {
	switch {
	case h == nil:
		return nil, nil
	case isFront(h):
		between, others := split(h.right, isFront)
		return h.with(h.left, between), others
	default:
		front, between := split(h.left, isFront)
		return front, h.with(between, h.right)
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

// last is when the last hold ends; 0 if there is none.
func (h *holds) last() (ends time.Duration) {
	for one := h.root; one != nil; one = one.right {
		ends = one.expires
	}
	return ends
}

// amountOf returns none if there is no hold of that id.
func (h *holds) amountOf(id string) *big.Rat {
	if one := h.byID[id]; one != nil {
		return tokens(one.micro)
	}
	return none
}

// set replaces the hold of that id. An amount of 0 ends it.
func (h *holds) set(id string, amount *big.Rat, expires time.Duration) {
	if old := h.byID[id]; old != nil {
		h.end(old)
	}
	if amount.Sign() == 0 {
		return
	}
	if h.byID == nil {
		h.byID = map[string]*held{}
	}
	one := &held{id: id, micro: floor(new(big.Rat).Mul(amount, millions)), expires: expires, priority: rand.Uint32()}
	h.byID[id] = one
	front, others := split(h.root, func(other *held) bool { return other.isBefore(one) })
	h.root = joined(joined(front, one.with(nil, nil)), others)
}

func (h *holds) end(one *held) {
	h.root = h.without(one)
	delete(h.byID, one.id)
}

// without returns the tree of the others.
func (h *holds) without(one *held) *held {
	front, others := split(h.root, func(other *held) bool { return other.isBefore(one) })
	_, behind := split(others, func(other *held) bool { return other.id == one.id })
	return joined(front, behind)
}

// endBy ends the holds that have expired by a moment, and returns what they held.
func (h *holds) endBy(moment time.Duration) (micro int64) {
	ended, others := split(h.root, func(one *held) bool { return one.expires <= moment })
	if ended != nil {
		h.root = others
		h.forget(ended)
	}
	return ended.total()
}

func (h *holds) forget(ended *held) {
	if ended != nil {
		delete(h.byID, ended.id)
		h.forget(ended.left)
		h.forget(ended.right)
	}
}

// reaching returns the first hold by whose expiry there is enough, and what those before it hold; nil if there is none.
func (h *holds) reaching(enough func(micro int64, at time.Duration) bool) (found *held, before int64) {
	for one := h.root; one != nil; {
		with := sum(sum(before, one.left.total()), one.micro)
		if enough(with, one.expires) {
			found, one = one, one.left
		} else {
			before, one = with, one.right
		}
	}
	return found, before
}

func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
