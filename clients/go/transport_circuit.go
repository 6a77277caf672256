package tokenbucket

import (
	"sync"
	"sync/atomic"
	"time"
)

const betweenRefusalsLogged = time.Minute

// circuit keeps calls from waiting for a server that is away; one at a time finds out whether it is back.
type circuit struct {
	who        string
	timeout    time.Duration // of a probe
	retryEvery time.Duration
	logf       func(format string, args ...any)

	away        atomic.Bool // set under the mutex
	mutex       sync.Mutex
	nextProbe   time.Time
	nextRefusal time.Time // when one is logged again
}

// admits tells whether to ask, and whether that is to find out if the server is back.
func (c *circuit) admits(clock Clock) (probing, admitted bool) {
	if !c.away.Load() {
		return false, true
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	now := clock.Now()
	switch {
	case !c.away.Load():
		return false, true
	case now.Before(c.nextProbe):
		return false, false
	}
	// If the probe fails, the time is set anew; if its caller leaves before it is sent, it is this.
	c.nextProbe = now.Add(c.retryEvery + c.timeout)
	return true, true
}

func (c *circuit) answered() {
	if !c.away.Load() {
		return
	}
	c.mutex.Lock()
	wasAway := c.away.Swap(false)
	c.mutex.Unlock()
	if wasAway {
		c.logf("tokenbucket: %s is back, limiting again", c.who)
	}
}

func (c *circuit) failed(now time.Time, err error) {
	c.mutex.Lock()
	wasAway := c.away.Swap(true)
	c.nextProbe = now.Add(c.retryEvery)
	c.mutex.Unlock()
	if !wasAway {
		c.logf("tokenbucket: cannot ask %s, every limit does as its OnError says: %v", c.who, err)
	}
}

// refused: the server is there, and did not decide this call.
func (c *circuit) refused(now time.Time, err error) {
	c.answered()
	c.mutex.Lock()
	silent := now.Before(c.nextRefusal)
	if !silent {
		c.nextRefusal = now.Add(betweenRefusalsLogged)
	}
	c.mutex.Unlock()
	if !silent {
		c.logf("tokenbucket: %s refuses, OnError decides such calls: %v", c.who, err)
	}
}
