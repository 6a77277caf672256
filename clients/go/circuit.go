package tokenbucket

import (
	"sync"
	"time"
)

const betweenRefusalsLogged = time.Minute

// circuit keeps calls from waiting for a server that is away; one at a time finds out whether it is back.
type circuit struct {
	who        string
	retryEvery time.Duration
	logf       func(format string, args ...any)

	mutex         sync.Mutex
	away, probing bool
	nextProbe     time.Time
	nextRefusal   time.Time // when one is logged again
}

// admits tells whether to ask, and whether that is to find out if the server is back.
func (c *circuit) admits(now time.Time) (probing, admitted bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if !c.away {
		return false, true
	}
	if c.probing || now.Before(c.nextProbe) {
		return false, false
	}
	c.probing = true
	return true, true
}

func (c *circuit) answered() {
	c.mutex.Lock()
	wasAway := c.away
	c.away, c.probing = false, false
	c.mutex.Unlock()
	if wasAway {
		c.logf("tokenbucket: %s is back, limiting again", c.who)
	}
}

func (c *circuit) failed(now time.Time, err error) {
	c.mutex.Lock()
	wasAway := c.away
	c.away, c.probing, c.nextProbe = true, false, now.Add(c.retryEvery)
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

// abandoned: whoever asked went away before there was an answer.
func (c *circuit) abandoned(probing bool) {
	if !probing {
		return
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.probing = false
}
