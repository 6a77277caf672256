package tokenbucket

import (
	"context"
	"strconv"
	"time"

	"tokenbucket/internal/rules"
)

// betweenEnds is the pause after a wait that ended without a reply.
const betweenEnds = 200 * time.Millisecond

// askInTurn lets the server keep the call until its turn, if it cannot be granted at once. Where the server cannot keep it, it
// asks again, each time when the last decision says.
func (s *Server) askInTurn(ctx context.Context, c command) (reply any, err error) {
	until := s.clock.Now().Add(c.maxWait)
	c.maxWait = 0
	for canKeep := true; ; {
		reply, err = s.ask(ctx, c)
		decision, wrong := parseDecision(reply, err)
		left := until.Sub(s.clock.Now())
		if wrong != nil || decision.Allowed || decision.RetryAfter == Never || left <= 0 {
			break
		}
		if canKeep {
			var kept any
			if kept, canKeep, err = s.keep(ctx, c, left); kept != nil || err != nil {
				return kept, err
			}
			if canKeep {
				c.doubt() // the server may have granted it at that moment
			}
		}
		pause := decision.RetryAfter
		if canKeep {
			pause = betweenEnds
		} else if s.byScript && pause > left {
			break
		}
		if pause > left {
			pause = left
		}
		if err = s.clock.Sleep(ctx, pause); err != nil {
			break
		}
	}
	return reply, err
}

// keep returns neither a reply nor an error when the server keeps the call no longer, or cannot.
func (s *Server) keep(ctx context.Context, c command, left time.Duration) (reply any, canKeep bool, err error) {
	n, err := s.nodeOf(ctx, c.key)
	if err != nil {
		return nil, true, err
	}
	doer, ok := n.doer.(WaitingDoer)
	if ok = ok && !s.byScript; ok {
		reply, err = n.wait(ctx, doer, waitingForm(c, left), left)
	}
	switch {
	case !ok || isUnknownCommand(err):
		return nil, false, nil
	case err == nil:
		n.answered()
		return reply, true, nil
	case faultOf(err) == faultOfCaller && !s.isMoving(err):
		return nil, true, n.wrong(err)
	}
	return nil, true, nil // asking tells whether the server is there, and where the key is
}

// wait ends with the reply, with the context, when nothing came in time, when the Server is closed, or when an outage has begun:
// its connection may lead to a server that another has replaced. A server grants nothing to a client that has gone.
func (n *node) wait(ctx context.Context, doer WaitingDoer, args []any, left time.Duration) (reply any, err error) {
	ctx, leave := context.WithTimeout(ctx, left+rules.ConnectWithin)
	defer leave()
	outages := n.outages.Load()
	go func() {
		defer leave()
		pulse := time.NewTicker(rules.Pulse)
		defer pulse.Stop()
		for n.awayUntil.Load() == 0 && n.outages.Load() == outages {
			select {
			case <-ctx.Done():
				return
			case <-n.server.life.Done():
				return
			case <-pulse.C:
				go guarded(n.beat)
			}
		}
	}()
	err = errSilent // of a Doer that panics
	guarded(func() { reply, err = doer.Wait(ctx, args...) })
	return reply, err
}

// beat asks whether the server is there, if it has said nothing lately, and no other wait does so.
func (n *node) beat() {
	if n.server.timeout > 0 && n.server.now()-n.heard.Load() >= int64(rules.Pulse) && n.pulse.TryLock() {
		defer n.pulse.Unlock()
		_, _ = n.call(n.server.life, ping)
	}
}

// waitingForm returns the command that waits at most so long for what the given one would be denied. Only those of one bucket
// have shares.
func waitingForm(c command, maxWait time.Duration) []any {
	ms := strconv.FormatInt(upToMs(maxWait).Milliseconds(), 10)
	name, args := c.args[0], c.args[1:]
	switch isHold := name == "TB.MHOLD"; {
	case isHold && c.share == nil:
		return joined([]any{"TB.BMHOLD"}, args[:3], []any{ms}, args[3:])
	case isHold:
		return joined([]any{"TB.BHOLD"}, args[3:], args[1:3], []any{ms}, c.share)
	case name == "TB.MTAKE" && c.share == nil:
		return joined([]any{"TB.BMTAKE", args[0], ms}, args[1:])
	case name == "TB.MTAKE":
		args = args[1:]
	}
	return joined([]any{"TB.BTAKE"}, args, []any{ms}, c.share)
}

func joined(lists ...[]any) (all []any) {
	for _, list := range lists {
		all = append(all, list...)
	}
	return all
}
