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
func (l *JointLimiter) TakeAll(ctx context.Context, name string, costs map[string]float64, options ...CallOption) (JointDecision, error) {
	parts, err := l.parts(name, costs)
	if err != nil {
		return JointDecision{}, err
	}
	began, take := l.server.clock.Now(), command{args: []any{"TB.MTAKE", strconv.Itoa(len(parts))}}
	joint, err := l.askAll(ctx, parts, take.with(options))
	if err == nil {
		l.tellAll(parts, joint, began)
	}
	return joint, err
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

// WithHold runs work under a hold, and settles it: see Limiter.WithHold.
func (l *JointLimiter) WithHold(ctx context.Context, name string, amounts map[string]float64, ttl time.Duration, work func(*Hold) error, options ...CallOption) error {
	hold, err := l.Hold(ctx, name, amounts, ttl, options...)
	return hold.during(err, work)
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
		parts = append(parts, part{which, bucket{jointName(name, which), limit, limit.words()}, amount})
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

// part is one of several buckets that a command is about.
type part struct {
	which string // the limit's name; of a single limit ""
	bucket
	amount float64
}

// words appends the arguments of each part.
func (s *settings) words(args []any, parts ...part) []any {
	for _, p := range parts {
		args = append(args, s.prefix+p.name, p.words[0], p.words[1], tokens(p.amount))
	}
	return args
}

// askAll asks the command, followed by the arguments of each part.
func (s *settings) askAll(ctx context.Context, parts []part, c command) (JointDecision, error) {
	if c.share != nil && len(parts) > 1 {
		return JointDecision{}, badArgument("share: a call of several buckets has none")
	}
	if s.wrong != nil {
		c.wrong = s.wrong
	}
	c.args, c.key = s.words(c.args, parts...), s.prefix+parts[0].name
	joint, err := s.ask(ctx, c, parts)
	if err != nil || c.args[0] == "TB.MSETTLE" { // which denies nothing
		return joint, err
	}
	joint.Decision = s.passing(joint.Decision, 1)
	for which, own := range joint.Each {
		joint.Each[which] = s.passing(own, 1)
	}
	return joint, nil
}

// tellAll tells OnDecision what was decided about each part.
func (s *settings) tellAll(parts []part, joint JointDecision, began time.Time) {
	for _, p := range parts {
		own, ok := joint.Each[p.which]
		if !ok {
			own = joint.Decision
		}
		for _, call := range s.onDecision {
			guarded(func() { call(p.name, p.limit, own, s.server.clock.Now().Sub(began)) })
		}
	}
}
