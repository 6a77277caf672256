package tokenbucket

import (
	"sync"
	"time"
)

const (
	// mostUnsettled bounds the holds that wait to be settled. The oldest makes room: it ends with its ttl.
	mostUnsettled = 1000
	// settledAgainAfter is how long a server may take to execute what it received on a connection that was closed.
	settledAgainAfter = 500 * time.Millisecond
	settledAtATime    = 16
	// leastRetry keeps a Server without RetryEvery from asking all the time.
	leastRetry = 50 * time.Millisecond
)

// unsettled are holds that could not be settled, or that the server may have made for a call that has ended. They are settled
// by their ids once the server answers.
type unsettled struct {
	mutex     sync.Mutex
	waiting   []settlement
	isWaiting bool // for the timer
}

type settlement struct {
	command
	due, until int64 // of the steady clock
	isLast     bool
}

// settleInDoubt ends the hold that a TB.MHOLD may have made.
func (s *Server) settleInDoubt(c command) {
	if c.args[0] == "TB.MHOLD" && !c.renews {
		c.args = joined([]any{"TB.MSETTLE", c.args[1], c.args[3]}, c.args[4:])
		s.settleLater(withoutUse(c))
	}
}

// settleLater keeps a settlement until the server answers, unless the ttl of the hold is over before.
func (s *Server) settleLater(c command) {
	if c.ttl == 0 || s.clock != Clock(realClock{}) {
		return // the server never had the hold, or time is not that of timers
	}
	now := s.now()
	c.once = false // by its id, it charges nothing twice
	s.unsettled.mutex.Lock()
	defer s.unsettled.mutex.Unlock()
	s.unsettled.add(settlement{command: c, due: now, until: now + int64(c.ttl)})
	s.settleSoon()
}

func (u *unsettled) add(one settlement) {
	if len(u.waiting) >= mostUnsettled {
		u.waiting = u.waiting[1:]
	}
	u.waiting = append(u.waiting, one)
}

// settleSoon begins the one timer. The caller has the lock.
func (s *Server) settleSoon() {
	u := &s.unsettled
	if u.isWaiting || len(u.waiting) == 0 || s.isClosed() {
		return
	}
	every := s.retryEvery
	if every < leastRetry {
		every = leastRetry
	}
	u.isWaiting = true
	time.AfterFunc(every, func() {
		s.settle(false)
		u.mutex.Lock()
		defer u.mutex.Unlock()
		u.isWaiting = false
		s.settleSoon()
	})
}

// settle settles those that are due, or all for the last time, some at a time.
func (s *Server) settle(all bool) {
	u := &s.unsettled
	u.mutex.Lock()
	waiting := make(chan settlement, len(u.waiting))
	for _, one := range u.waiting {
		waiting <- one
	}
	u.waiting = nil
	u.mutex.Unlock()
	close(waiting)
	var over sync.WaitGroup
	for i := 0; i < settledAtATime && i < len(waiting); i++ {
		over.Add(1)
		go func() {
			defer over.Done()
			for one := range waiting {
				guarded(func() { s.settleOne(one, all) })
			}
		}()
	}
	over.Wait()
}

func (s *Server) settleOne(one settlement, isLastTry bool) {
	now := s.now()
	if now >= one.until {
		return
	}
	if now >= one.due || isLastTry {
		_, _, err := s.call(s.life, one.command)
		if awayOf(err) == nil {
			if err != nil || one.isLast {
				return
			}
			one.command, one.due, one.isLast = withoutUse(one.command), s.now()+int64(settledAgainAfter), true
		}
	}
	s.unsettled.mutex.Lock()
	defer s.unsettled.mutex.Unlock()
	s.unsettled.add(one)
}

// withoutUse returns a settlement that charges nothing. The use was charged: what a late hold has taken since comes back.
func withoutUse(settle command) command {
	settle.args = append([]any(nil), settle.args...)
	for at := 6; at < len(settle.args); at += 4 {
		settle.args[at] = "0"
	}
	return settle
}
