package tokenbucket

import (
	"context"
	"sort"
	"strconv"
	"strings"
	"time"
)

// JointLimiter is several limits, each under a name of its own, that are taken all together or not at all. The buckets of
// one name share a hash tag, hence a slot of a cluster: Prefix + {name}:limit.
type JointLimiter struct {
	limits map[string]Limit
	settings
}

// NewJointLimiter makes a limiter of a server and named limits. It sends nothing. RememberDenials and Batch do not apply.
func NewJointLimiter(server *Server, limits map[string]Limit, options ...LimiterOption) *JointLimiter {
	return &JointLimiter{limits, newSettings(server, options)}
}

// TakeAll takes every cost, by the names of the limits, or nothing. With MaxWait it waits for its turn.
func (l *JointLimiter) TakeAll(ctx context.Context, name string, costs map[string]float64, options ...CallOption) (Decision, error) {
	parts, err := l.parts(name, costs)
	if err != nil {
		return Decision{}, err
	}
	take := l.command([]any{"TB.MTAKE", strconv.Itoa(len(parts))}, parts...).with(options)
	return l.reporting(1, func() (Decision, error) { return l.ask(ctx, take, parts...) }, parts...)
}

// TakeAny takes the first of several alternatives that allows it, each as TakeAll would: an account or the next one, the quota of
// a plan and then credits. Granted is its number, from 1, and Each has its limits; a denial has no Each. All alternatives name
// the same number of limits: fill one up with an amount of 0. Such a call does not wait.
func (l *JointLimiter) TakeAny(ctx context.Context, name string, alternatives []map[string]float64) (Decision, error) {
	parts, each, err := l.alternatives(name, alternatives)
	if err != nil {
		return Decision{}, err
	}
	began := l.server.clock.Now()
	take := l.command([]any{"TB.TAKEANY", strconv.Itoa(len(parts)), strconv.Itoa(each)}, parts...)
	take.each = each
	decision, err := l.ask(ctx, take, parts...)
	if err != nil {
		return decision, err
	}
	return l.report(take.chosen(parts, decision.Granted), decision, 1, began), nil
}

// HoldAny holds the amounts of the first alternative that allows it: see TakeAny. The hold has the limits of that alternative.
func (l *JointLimiter) HoldAny(ctx context.Context, name string, alternatives []map[string]float64, ttl time.Duration) (*Hold, error) {
	parts, each, err := l.alternatives(name, alternatives)
	if err != nil {
		return nil, err
	}
	return newHold(ctx, l.settings, parts, each, ttl, nil)
}

// alternatives returns all parts, and how many each alternative has.
func (l *JointLimiter) alternatives(name string, alternatives []map[string]float64) (all []part, each int, err error) {
	for _, amounts := range alternatives {
		parts, err := l.parts(name, amounts)
		if err != nil {
			return nil, 0, err
		}
		if each = len(parts); len(amounts) != len(alternatives[0]) {
			return nil, 0, badArgument("alternatives: all must name the same number of limits: name a limit with amount 0 to fill one up")
		}
		all = append(all, parts...)
	}
	if len(all) == 0 {
		return nil, 0, badArgument("no limit is named")
	}
	return all, each, nil
}

// Reset makes the buckets of a name full, and forgets their holds.
func (l *JointLimiter) Reset(ctx context.Context, name string) error {
	for which := range l.limits {
		if err := l.server.delete(ctx, l.prefix+jointName(name, which)); err != nil {
			return err
		}
	}
	return nil
}

// Hold takes every amount, or nothing, until the hold is settled: see Limiter.Hold.
func (l *JointLimiter) Hold(ctx context.Context, name string, amounts map[string]float64, ttl time.Duration, options ...CallOption) (*Hold, error) {
	parts, err := l.parts(name, amounts)
	if err != nil {
		return nil, err
	}
	return newHold(ctx, l.settings, parts, 0, ttl, options)
}

func (l *JointLimiter) parts(name string, amounts map[string]float64) ([]part, error) {
	if len(amounts) == 0 {
		return nil, badArgument("no limit is named")
	}
	parts := make([]part, 0, len(amounts))
	for which, amount := range amounts {
		limit, ok := l.limits[which]
		if !ok {
			return nil, badArgument("there is no limit %q", which)
		}
		parts = append(parts, part{which, bucket{jointName(name, which), limit}, limit.words(), amount})
	}
	sort.Slice(parts, func(i, j int) bool { return parts[i].which < parts[j].which })
	return parts, nil
}

var escaped = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")

// jointName has the name as its hash tag, encoded so that no name ends the tag or leaves it empty.
func jointName(name, which string) string {
	if name == "" {
		return "{%}:" + which
	}
	return "{" + escaped.Replace(name) + "}:" + which
}
