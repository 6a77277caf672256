package tokenbucket

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"tokenbucket/internal/local"
	"tokenbucket/internal/rules"
)

// Hold reserves tokens for one piece of work whose cost is known only afterwards, or that occupies something while it
// lasts. It renews itself until it is settled or lost, or the context that it was made with is over. If its holder is gone,
// the tokens come back after the ttl.
//
// Work admitted during an outage gets a hold in this process. The first renewal after reconnecting acquires it on the
// server, if there is room, and Settle charges what was used in any case.
type Hold struct {
	settings settings
	held     []part // those that hold more than nothing, which the server forgets at once
	ttl      time.Duration
	id       string
	isKnown  bool // whether the server has had the hold
	isSent   bool // whether the server may have it

	decision atomic.Pointer[Decision]

	mutex sync.Mutex // guards what the work used of each
	used  []part

	sending sync.Mutex         // a renewal on its way could take anew what is settled
	late    []part             // what the server may yet take for a call that got no reply
	stop    context.CancelFunc // ends renewing
	lost    chan struct{}      // closed when the server no longer has the hold
	settled sync.Once
	result  Decision // of Settle, like err; before that, the first decision
	err     error
}

// newHold makes a hold of all parts or, if each is above 0, of those of the alternative that is granted.
func newHold(ctx context.Context, s settings, parts []part, each int, ttl time.Duration, options []CallOption) (*Hold, error) {
	h := &Hold{settings: s, ttl: ttl, lost: make(chan struct{})}
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, err
	}
	h.id = fmt.Sprintf("%x", random)
	began := s.server.clock.Now()
	decision, isInDoubt, err := h.set(ctx, parts, each, options...)
	granted := command{each: each}.chosen(parts, decision.Granted)
	switch {
	case isInDoubt && (err != nil || !decision.Allowed):
		h.endOthers(parts, nil)
	case isInDoubt && each > 0 && decision.Degraded:
		h.endOthers(parts, granted)
	}
	if err != nil {
		return nil, err
	}
	h.keep(granted, each > 0)
	decision = s.report(granted, decision, 1, began)
	h.decision.Store(&decision)
	h.result = decision
	if decision.isGranted() {
		ctx, h.stop = context.WithCancel(ctx)
		if len(h.held) > 0 {
			go h.renew(ctx)
		}
	}
	return h, nil
}

// keep notes what is held, and what counts as used unless the work says. What fills up an alternative has no hold.
func (h *Hold) keep(parts []part, isAlternative bool) {
	for _, p := range parts {
		if !isNothing(p.amount) {
			h.held = append(h.held, p)
		} else if isAlternative {
			continue
		}
		if local.IsPool(p.limit.Rate) {
			p.amount = 0
		}
		h.used = append(h.used, p)
	}
}

// endOthers ends the hold, which the server may have, where it was not granted: in each bucket once.
func (h *Hold) endOthers(all, granted []part) {
	kept := map[string]bool{}
	for _, p := range granted {
		kept[h.settings.prefix+p.name] = !isNothing(p.amount)
	}
	var others []part
	for _, p := range all {
		if key := h.settings.prefix + p.name; !kept[key] {
			kept[key] = true
			others = append(others, p)
		}
	}
	if len(others) > 0 {
		settle := h.settlement(others)
		settle.ttl = h.ttl
		h.settings.server.settleLater(withoutUse(settle))
	}
}

// Lost returns a channel that is closed when the server no longer has the hold: the process was suspended for longer than
// the ttl, the server was away until it was nearly over, every renewal for all of it failed with an error such as NOPERM, or a
// failover lost it. Others may have the tokens, so the work should stop. The next renewal finds out, within a third of the ttl,
// or when the server is back or accepts writes again. A lost hold is not taken anew.
func (h *Hold) Lost() <-chan struct{} { return h.lost }

// Decision returns the first decision, then that of the last renewal. Granted stays that of the first.
func (h *Hold) Decision() Decision { return *h.decision.Load() }

// Used sets what the work used, for Settle: see UsedOf. The hold is that of a Limiter.
func (h *Hold) Used(amount float64) error { return h.UsedOf("", amount) }

// UsedOf sets what the work used of one limit of a JointLimiter, for Settle. A limit that the hold does not have, an amount
// that no bucket can hold, or more than 0 of a pool, is ErrBadArgument and changes nothing.
func (h *Hold) UsedOf(limit string, amount float64) error {
	if !(amount >= 0 && amount <= rules.MostTokens) {
		return badArgument("used: %v is not a number of tokens from 0 to 1e12", amount)
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for i := range h.used {
		used := &h.used[i]
		switch {
		case used.which != limit:
			continue
		case amount > 0 && local.IsPool(used.limit.Rate):
			return badArgument("used: %v of a pool (rate 0), whose slots all come back", amount)
		}
		used.amount = amount
		return nil
	}
	return badArgument("used: the hold has no limit %q (name one of several by UsedOf)", limit)
}

// Settle ends the hold: it returns what was not used and charges what was used beyond the hold. Without a call of Used, the
// work counts as having used what it held; of a pool (rate 0) the slots come back.
//
// It is final: a second call returns the first result and sends nothing. It asks even when the context of the hold is over.
// A hold that cannot be settled is settled by its id once the server answers, unless its ttl is over before. Lost says that
// the reply did not come.
func (h *Hold) Settle() (Decision, error) {
	began, isNew := h.settings.server.clock.Now(), false
	h.mutex.Lock()
	parts := append([]part(nil), h.used...)
	h.mutex.Unlock()
	h.settled.Do(func() {
		if h.result.isGranted() {
			h.stop()
			h.sending.Lock()
			defer h.sending.Unlock()
			h.result, h.err = h.settle(parts)
			isNew = h.err == nil
		}
	})
	if isNew { // outside of Do: a hook may call Settle
		h.settings.report(parts, h.result, 0, began)
	}
	return h.result, h.err
}

func (h *Hold) settlement(parts []part) command {
	settle := h.settings.command([]any{"TB.MSETTLE", strconv.Itoa(len(parts)), h.id}, parts...)
	settle.settled = func() { h.settings.forgetAll(parts) }
	return settle
}

func (h *Hold) settle(parts []part) (Decision, error) {
	if len(parts) == 0 { // an alternative that wants nothing
		return Decision{Allowed: true, Granted: 1}, nil
	}
	ctx, server := context.Background(), h.settings.server
	settle := h.settlement(parts)
	if h.isSent {
		settle.ttl = h.ttl
	}
	decision, err := h.settings.ask(ctx, settle, parts...)
	h.settings.forgetAll(parts)
	if err != nil {
		return decision, err
	}
	if decision.Degraded { // what is held is settled later anyway
		h.endOthers(h.late, h.held)
		return decision, nil
	}
	h.endOthers(h.late, nil)
	if server.degraded.Load() > 0 { // it may be in this process too
		_, _ = server.decideLocally(settle.args)
	}
	for _, p := range parts {
		if own, ok := decision.Each[p.which]; !ok || own.Allowed || isNothing(p.amount) {
			continue
		}
		if _, chargeErr := server.ask(ctx, h.settings.command([]any{"TB.CHARGE"}, p)); awayOf(chargeErr) != nil {
			decision.Lost = true
		} else if chargeErr != nil && err == nil {
			err = fmt.Errorf("what the lost hold used: %w", chargeErr)
		}
	}
	return decision, err
}

// set makes the hold last ttl from now, and takes it if the server has never had it. It also returns whether the server may have
// granted a call that it did not answer.
func (h *Hold) set(ctx context.Context, parts []part, each int, options ...CallOption) (decision Decision, isInDoubt bool, err error) {
	h.sending.Lock()
	defer h.sending.Unlock()
	ttlMs := strconv.FormatInt(h.ttl.Milliseconds(), 10)
	words := []any{"TB.MHOLD", strconv.Itoa(len(parts)), ttlMs, h.id}
	if each > 0 {
		words = []any{"TB.HOLDANY", words[1], strconv.Itoa(each), ttlMs, h.id}
	}
	c := h.settings.command(words, parts...).with(options)
	c.renews, c.each, c.inDoubt = h.isKnown, each, &isInDoubt
	decision, err = h.settings.ask(ctx, c, parts...)
	h.isKnown = h.isKnown || err == nil && decision.Allowed && !decision.Degraded
	h.isSent = h.isSent || h.isKnown || isInDoubt
	if isInDoubt && !c.renews && h.late == nil {
		h.late = parts
	}
	return decision, isInDoubt, err
}

// renew renews the hold three times a ttl. While the server does not decide, it tries ten times, so that a hold outlasts an outage
// that ends before its ttl is nearly over.
func (h *Hold) renew(ctx context.Context) {
	timer, renewed := time.NewTimer(h.ttl/3), h.settings.server.clock.Now()
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.settings.server.life.Done():
			return
		case <-timer.C:
		}
		began := h.settings.server.clock.Now()
		var decision Decision
		err := errAway // if a function of the program panics
		guarded(func() { decision, _, err = h.set(ctx, h.held, 0) })
		every := h.ttl / 3
		if decision.Degraded {
			every = h.ttl / 10
		}
		timer.Reset(every)
		if err != nil {
			if awayOf(err) == nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) {
				h.settings.server.logf("tokenbucket: a hold was not renewed: %v", err)
				if h.isKnown && h.settings.server.clock.Now().Sub(renewed) >= h.ttl {
					close(h.lost)
					return
				}
			}
			continue
		}
		if decision.Allowed && !decision.Degraded {
			renewed = began
		}
		decision = h.settings.report(h.held, decision, 1, began)
		decision.Granted = h.Decision().Granted
		h.decision.Store(&decision)
		if h.isKnown && !decision.Allowed && !decision.Degraded {
			close(h.lost)
			return
		}
	}
}
