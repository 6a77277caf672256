package tokenbucket

import (
	"sync/atomic"
	"time"
)

const betweenRefusalsLogged = time.Minute

// circuit keeps calls from waiting for a node that is away; one at a time finds out whether it is back. Times are of the
// server's clock, in Unix nanoseconds.
type circuit struct {
	away        atomic.Bool
	nextProbe   atomic.Int64
	nextRefusal atomic.Int64 // when one is logged again
}

// admits tells whether to ask, and whether that is to find out if the node is back.
func (n *node) admits() (probing, admitted bool) {
	c := &n.circuit
	if !c.away.Load() {
		return false, true
	}
	now, next := n.server.clock.Now(), c.nextProbe.Load()
	if now.UnixNano() < next {
		return false, false
	}
	// If the probe fails, the time is set anew; if its caller leaves before it is sent, it is this.
	after := now.Add(n.server.settings.retryEvery + n.server.settings.timeout)
	isFirst := c.nextProbe.CompareAndSwap(next, after.UnixNano())
	return isFirst, isFirst
}

func (n *node) answered() {
	if n.circuit.away.Load() && n.setAway(false) {
		n.server.settings.logf("tokenbucket: %s is back, limiting again", n.who)
	}
}

func (n *node) failed(err error) {
	n.isThere.Store(false)
	if n.server.cluster != nil {
		go n.server.cluster.learn()
	}
	if n.setAway(true) {
		n.server.settings.logf("tokenbucket: cannot ask %s, every limit does as its OnError says: %v", n.who, err)
	}
}

// setAway returns whether that is new.
func (n *node) setAway(away bool) bool {
	n.circuit.nextProbe.Store(n.server.clock.Now().Add(n.server.settings.retryEvery).UnixNano())
	return n.circuit.away.Swap(away) != away
}

// refused: the server is there, and did not decide this call.
func (n *node) refused(err error) {
	n.answered()
	now, next := n.server.clock.Now(), n.circuit.nextRefusal.Load()
	if now.UnixNano() >= next && n.circuit.nextRefusal.CompareAndSwap(next, now.Add(betweenRefusalsLogged).UnixNano()) {
		n.server.settings.logf("tokenbucket: %s refuses, OnError decides such calls: %v", n.who, err)
	}
}
