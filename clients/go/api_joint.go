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
	return newHold(ctx, l.settings, parts, ttl, options)
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
