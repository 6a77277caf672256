package tokenbucket

import (
	"sync"
	"time"

	"tokenbucket/internal/rules"
)

const settledAtATime = 16

// unsettled are holds that could not be settled, or that the server may have made for a call that has ended. They are settled
// by their ids once the server answers, and then once more.
type unsettled struct {
	mutex      sync.Mutex
	waiting    []settlement
	isSettling bool // now and then, until none waits
}

type settlement struct {
	command
	until  int64 // when its hold ends, by the steady clock
	isLast bool
}

// settleLater keeps a settlement until the server answers, unless the ttl of the hold is over before.
func (s *Server) settleLater(c command) {
	if c.ttl == 0 || s.clock != Clock(realClock{}) {
		return // the server never had the hold, or time is not that of timers
	}
	c.once = false // by its id, it charges nothing twice, unless a late command takes the hold anew in between
	s.keepUnsettled(settlement{command: c, until: s.now() + int64(c.ttl)})
}

func (s *Server) keepUnsettled(one settlement) {
	u := &s.unsettled
	u.mutex.Lock()
	defer u.mutex.Unlock()
	if len(u.waiting) >= rules.MostUnsettled {
		u.waiting = u.waiting[1:]
	}
	u.waiting = append(u.waiting, one)
	if !u.isSettling {
		u.isSettling = true
		go func() {
			for s.clock.Sleep(s.life, rules.SettledAgainAfter) == nil && s.settle() {
			}
		}()
	}
}

// settle tries each once, some at a time, and returns whether any is left.
func (s *Server) settle() bool {
	u := &s.unsettled
	u.mutex.Lock()
	waiting := u.waiting
	u.waiting = nil
	u.mutex.Unlock()
	permits := make(chan struct{}, settledAtATime)
	for _, one := range waiting {
		permits <- struct{}{}
		go func(one settlement) {
			defer func() { <-permits }()
			guarded(func() { s.settleOne(one) })
		}(one)
	}
	for i := 0; i < settledAtATime; i++ {
		permits <- struct{}{} // all are over
	}
	u.mutex.Lock()
	defer u.mutex.Unlock()
	u.isSettling = len(u.waiting) > 0
	return u.isSettling
}

// settleLast tries each once more, also at a server that counts as away: no other call may come to find out. Without a timeout, one
// that is silent would keep it for ever.
func (s *Server) settleLast() {
	s.home.admitAll()
	s.nodes.Range(func(_, one any) bool { one.(*node).admitAll(); return true })
	var late <-chan time.Time
	over := make(chan struct{})
	go func() { defer close(over); s.settle() }()
	if s.timeout <= 0 {
		late = time.After(rules.ConnectWithin)
	}
	select {
	case <-over:
	case <-late:
	}
}

func (s *Server) settleOne(one settlement) {
	if s.now() >= one.until {
		return
	}
	if _, _, err := s.call(s.life, one.command); awayOf(err) == nil {
		if err == nil {
			one.settled()
		}
		if err != nil || one.isLast {
			return
		}
		one.command, one.isLast = withoutUse(one.command), true
	}
	s.keepUnsettled(one)
}

// withoutUse returns a settlement that charges nothing. The use was charged: what a late hold has taken since comes back.
func withoutUse(settle command) command {
	settle.args = append([]any(nil), settle.args...)
	for at := 6; at < len(settle.args); at += 4 {
		settle.args[at] = "0"
	}
	return settle
}
