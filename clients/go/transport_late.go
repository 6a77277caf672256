package tokenbucket

import (
	"context"
	"strconv"
	"time"
)

// giveBack returns what a call has taken whose caller has gone or was denied. A hold may have been granted although its
// reply was lost.
func (s *Server) giveBack(c command, reply any, err error) {
	if !c.undoes || s.synchronous {
		return
	}
	if err != nil {
		s.settleLost(c, err)
		return
	}
	if decision, err := parseDecision(reply); err == nil && decision.Allowed {
		for _, undo := range undoing(c.args, decision) {
			go s.ask(context.Background(), undo) //nolint:errcheck // what is not given back was used: never one token more
		}
	}
}

// settleLost settles later what the server may hold for nobody: a hold whose reply was lost, and one whose settlement could
// not be sent.
func (s *Server) settleLost(c command, err error) {
	away := awayOf(err)
	switch {
	case s.synchronous || away == nil:
	case c.args[0] == "TB.MHOLD" && c.undoes && away.mayBeHeld:
		s.settleLate(undoing(c.args, Decision{})[0])
	case c.args[0] == "TB.MSETTLE" && !away.lost:
		s.settleLate(c)
	}
}

// undoing lists the commands that return what a granted call has taken.
func undoing(args []any, decision Decision) []command {
	give := func(key, capacity, rate, amount any) command {
		return command{args: []any{"TB.GIVE", key, capacity, rate, amount}, key: key.(string), once: true}
	}
	switch args[0] {
	case "TB.TAKE", "TB.RESERVE":
		return []command{give(args[1], args[2], args[3], args[4])}
	case "TB.TAKEUPTO":
		return []command{give(args[1], args[2], args[3], tokens(float64(decision.Granted)))}
	case "TB.MTAKE":
		var all []command
		for group := args[2:]; len(group) >= 4; group = group[4:] {
			all = append(all, give(group[0], group[1], group[2], group[3]))
		}
		return all
	case "TB.MHOLD":
		settle := []any{"TB.MSETTLE", args[1], args[3]}
		for group := args[4:]; len(group) >= 4; group = group[4:] {
			settle = append(settle, group[0], group[1], group[2], "0")
		}
		ttlMs, _ := strconv.ParseInt(args[2].(string), 10, 64)
		return []command{{args: settle, key: args[4].(string), ttl: time.Duration(ttlMs) * time.Millisecond}}
	}
	return nil
}

// settleAgainAfter is how long a server may take to execute what it received on a connection that was closed.
const settleAgainAfter = time.Second

// settleLate ends the hold by its id as soon as the server can be asked, and once more a second later, unless its ttl is
// over before.
func (s *Server) settleLate(c command) {
	if s.late.Add(1) > mostNames {
		s.late.Add(-1)
		return // it ends with its ttl
	}
	go func() {
		defer s.late.Add(-1)
		until := time.Now().Add(c.ttl + settleAgainAfter)
		for hasSettled := false; time.Now().Before(until) && !s.closed.Load(); {
			_, err := s.ask(context.Background(), c)
			switch {
			case awayOf(err) != nil:
				time.Sleep(s.settings.retryEvery + time.Millisecond)
			case err != nil || hasSettled:
				return
			default:
				hasSettled = true
				time.Sleep(settleAgainAfter)
			}
		}
	}()
}
