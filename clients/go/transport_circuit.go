package tokenbucket

import (
	"sync"
	"sync/atomic"
	"time"
)

const betweenRefusalsLogged = time.Minute

// circuit keeps calls from waiting for a node that is away; one at a time finds out whether it is back.
type circuit struct {
	away        atomic.Bool // set under the mutex
	mutex       sync.Mutex
	nextProbe   time.Time
	nextRefusal time.Time // when one is logged again
}

// admits tells whether to ask, and whether that is to find out if the node is back.
func (n *node) admits() (probing, admitted bool) {
	c := &n.circuit
	if !c.away.Load() {
		return false, true
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	now := n.server.clock.Now()
	switch {
	case !c.away.Load():
		return false, true
	case now.Before(c.nextProbe):
		return false, false
	}
	// If the probe fails, the time is set anew; if its caller leaves before it is sent, it is this.
	c.nextProbe = now.Add(n.server.settings.retryEvery + n.server.settings.timeout)
	return true, true
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
	n.circuit.mutex.Lock()
	defer n.circuit.mutex.Unlock()
	n.circuit.nextProbe = n.server.clock.Now().Add(n.server.settings.retryEvery)
	return n.circuit.away.Swap(away) != away
}

// refused: the server is there, and did not decide this call.
func (n *node) refused(err error) {
	n.answered()
	n.circuit.mutex.Lock()
	now := n.server.clock.Now()
	logs := !now.Before(n.circuit.nextRefusal)
	if logs {
		n.circuit.nextRefusal = now.Add(betweenRefusalsLogged)
	}
	n.circuit.mutex.Unlock()
	if logs {
		n.server.settings.logf("tokenbucket: %s refuses, OnError decides such calls: %v", n.who, err)
	}
}
