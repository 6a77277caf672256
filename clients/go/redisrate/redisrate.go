// Package redisrate has the API of redis_rate, and lets token buckets decide. The package's README says where they
// decide differently.
package redisrate

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"tokenbucket"
	"tokenbucket/internal/rules"
)

// Never is the RetryAfter of a call of more events than the burst: waiting does not help.
const Never = time.Duration(math.MaxInt64)

// Limit allows Rate events per Period, and Burst events at once.
type Limit struct {
	Rate   int
	Burst  int
	Period time.Duration
}

// PerSecond returns a limit of rate events a second, with a burst of as many.
func PerSecond(rate int) Limit { return Limit{rate, rate, time.Second} }

// PerMinute returns a limit of rate events a minute, with a burst of as many.
func PerMinute(rate int) Limit { return Limit{rate, rate, time.Minute} }

// PerHour returns a limit of rate events an hour, with a burst of as many.
func PerHour(rate int) Limit { return Limit{rate, rate, time.Hour} }

var units = map[time.Duration]string{time.Second: "s", time.Minute: "m", time.Hour: "h"}

// String returns text like "10 req/s (burst 10)".
func (l Limit) String() string {
	unit, ok := units[l.Period]
	if !ok {
		unit = l.Period.String()
	}
	return fmt.Sprintf("%d req/%s (burst %d)", l.Rate, unit, l.Burst)
}

// IsZero returns whether the limit is not set.
func (l Limit) IsZero() bool { return l == Limit{} }

func (l Limit) bucket() tokenbucket.Limit {
	period := strconv.FormatFloat(l.Period.Seconds(), 'f', -1, 64)
	return tokenbucket.Limit{Capacity: math.Min(math.Max(float64(l.Burst), 0), rules.MostTokens), Rate: fmt.Sprintf("%d/%ss", l.Rate, period)}
}

// Result is the decision about a call.
type Result struct {
	Limit      Limit
	Allowed    int           // events that may happen now
	Remaining  int           // events that could happen at once after these
	RetryAfter time.Duration // -1 if allowed; until the same call is allowed; or Never
	ResetAfter time.Duration // until as many as the burst could happen at once
}

// Limiter decides how often events may happen.
type Limiter struct{ buckets *tokenbucket.Limiter }

// NewLimiter stands in for redis_rate's. Keys begin with "tb:rate:", so that none is one that redis_rate has written. While the server is away, each
// process enforces the same limits alone; with tokenbucket.OnError(tokenbucket.FailWithError) calls return an error, as redis_rate's do.
func NewLimiter(server *tokenbucket.Server, options ...tokenbucket.LimiterOption) *Limiter {
	as := append([]tokenbucket.LimiterOption{tokenbucket.Prefix("tb:rate:")}, options...)
	return &Limiter{tokenbucket.NewLimiter(server, tokenbucket.Limit{}, as...)}
}

// Allow decides whether one event may happen now.
func (l *Limiter) Allow(ctx context.Context, key string, limit Limit) (*Result, error) {
	return l.AllowN(ctx, key, limit, 1)
}

// AllowN decides whether n events may happen now: all or none.
func (l *Limiter) AllowN(ctx context.Context, key string, limit Limit, n int) (*Result, error) {
	decision, err := l.buckets.With(limit.bucket()).Take(ctx, key, float64(n))
	allowed := 0
	if decision.Allowed {
		allowed = n
	}
	return result(limit, decision, allowed, err)
}

// AllowAtMost decides how many of n events may happen now.
func (l *Limiter) AllowAtMost(ctx context.Context, key string, limit Limit, n int) (*Result, error) {
	if n == 0 {
		return l.AllowN(ctx, key, limit, 0)
	}
	decision, err := l.buckets.With(limit.bucket()).TakeUpTo(ctx, key, int64(math.Min(float64(n), rules.MostTokens)))
	return result(limit, decision, int(decision.Granted), err)
}

// Reset makes the bucket of a key full.
func (l *Limiter) Reset(ctx context.Context, key string) error { return l.buckets.Reset(ctx, key) }

func result(limit Limit, decision tokenbucket.Decision, allowed int, err error) (*Result, error) {
	if err != nil {
		return nil, err
	}
	r := &Result{limit, allowed, int(decision.Remaining), decision.RetryAfter, decision.ResetAfter}
	switch {
	case decision.Allowed:
		r.RetryAfter = -1
	case decision.RetryAfter == tokenbucket.Never:
		r.RetryAfter = Never
	}
	if r.Remaining < 0 { // in debt, by other commands on the same bucket
		r.Remaining = 0
	}
	return r, nil
}
