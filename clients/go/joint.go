package tokenbucket

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"time"
)

// JointLimiter is several limits, each under a name of its own, that are taken all together or not at all. The buckets of
// one name share a hash tag, hence a slot of a cluster: Prefix + {name}:limit.
type JointLimiter struct {
	server *Server
	limits map[string]Limit
	settings
}

// NewJointLimiter asks nothing yet. Denials are not remembered and batches not made of several limits.
func NewJointLimiter(server *Server, limits map[string]Limit, options ...LimiterOption) *JointLimiter {
	return &JointLimiter{server, limits, newSettings(options)}
}

// TakeAll takes every cost, by the names of the limits, or none.
func (l *JointLimiter) TakeAll(ctx context.Context, name string, costs map[string]float64) (JointDecision, error) {
	parts, err := l.parts(name, costs)
	if err != nil {
		return JointDecision{}, err
	}
	return decideAll(ctx, l.server, l.settings, parts, command{words: []string{"TB.MTAKE", strconv.Itoa(len(parts))}})
}

// Hold takes every amount until the hold is settled, or for ttl if its holder is gone, or takes none: see Hold.
func (l *JointLimiter) Hold(ctx context.Context, name string, amounts map[string]float64, ttl time.Duration) (*Hold, error) {
	parts, err := l.parts(name, amounts)
	if err != nil {
		return nil, err
	}
	return newHold(ctx, l.server, l.settings, parts, ttl)
}

func (l *JointLimiter) parts(name string, amounts map[string]float64) ([]part, error) {
	if len(amounts) == 0 {
		return nil, errors.New("tokenbucket: no limit is named")
	}
	parts := make([]part, 0, len(amounts))
	for which, amount := range amounts {
		limit, ok := l.limits[which]
		if !ok {
			return nil, fmt.Errorf("tokenbucket: there is no limit %q", which)
		}
		parts = append(parts, part{which, fmt.Sprintf("{%s}:%s", name, which), limit, amount})
	}
	sort.Slice(parts, func(i, j int) bool { return parts[i].which < parts[j].which })
	return parts, nil
}

// part is one of several buckets that a command is about.
type part struct {
	which  string // the limit's name; of a single limit ""
	name   string
	limit  Limit
	amount float64
}

// decideAll asks the command, followed by the arguments of each part.
func decideAll(ctx context.Context, server *Server, s settings, parts []part, c command) (JointDecision, error) {
	began := server.clock.Now()
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.which
		c.words = append(append(append(c.words, s.prefix+p.name), p.limit.words()...), tokens(p.amount))
	}
	reply, err := server.ask(ctx, c)
	var joint JointDecision
	switch {
	case errors.Is(err, ErrServerAway):
		joint.Decision, err = s.decided(server, err)
	case err == nil:
		joint, err = parseJointDecision(reply, names)
	}
	if err != nil {
		return joint, err
	}
	for _, p := range parts {
		own, ok := joint.Each[p.which]
		if !ok {
			own = joint.Decision
		}
		s.tell(server, p.name, p.limit, own, began)
	}
	return joint, nil
}
