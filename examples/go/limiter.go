package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Limit is what one key may spend. It travels with every call: change it here and the next call uses it.
type Limit struct {
	Capacity int64  // tokens that a full bucket holds: the largest burst
	Rate     string // how it refills: "5" tokens per second, "100/m", "10/10s", "5000/h"
}

// Never is the RetryAfter of a call that can never be allowed, because it costs more than the capacity.
const Never = -time.Millisecond

// Decision is what the server replies.
type Decision struct {
	Allowed    bool
	Remaining  int64         // whole tokens left; negative while the bucket is in debt
	RetryAfter time.Duration // when to call again (Take) or to act (Reserve)
	ResetAfter time.Duration // until the bucket is full
}

// Limiter takes tokens from buckets that live in Redis or Valkey. It is safe for concurrent use.
type Limiter struct {
	pool *redis.Pool
}

// NewLimiter connects lazily: a server that is away is an error of the first call, not of this one.
//
// The timeout holds for each step, connecting, writing and reading, because a limiter that hangs is worse than one that fails.
// At most maxConnections are open; callers beyond that wait for one that is free.
func NewLimiter(address string, maxConnections int, timeout time.Duration) *Limiter {
	return &Limiter{pool: &redis.Pool{
		MaxActive:   maxConnections,
		MaxIdle:     maxConnections,
		IdleTimeout: 5 * time.Minute,
		Wait:        true,
		DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, "tcp", address,
				redis.DialConnectTimeout(timeout), redis.DialReadTimeout(timeout), redis.DialWriteTimeout(timeout))
		},
	}}
}

// Close closes the connections.
func (l *Limiter) Close() error { return l.pool.Close() }

// Take takes cost tokens if the bucket holds them, else none.
func (l *Limiter) Take(ctx context.Context, key string, limit Limit, cost int64) (Decision, error) {
	return l.decide(ctx, "TB.TAKE", key, limit.Capacity, limit.Rate, cost)
}

// Reserve takes cost tokens now, out of the future if need be, provided that the wait for them is at most maxWait.
// The caller owns them and acts after RetryAfter. Denied: RetryAfter is how long that wait would have been.
func (l *Limiter) Reserve(ctx context.Context, key string, limit Limit, cost int64, maxWait time.Duration) (Decision, error) {
	return l.decide(ctx, "TB.RESERVE", key, limit.Capacity, limit.Rate, cost, maxWait.Milliseconds())
}

// Give puts tokens back, for example those of a reservation that will not be used.
func (l *Limiter) Give(ctx context.Context, key string, limit Limit, amount int64) (Decision, error) {
	return l.decide(ctx, "TB.GIVE", key, limit.Capacity, limit.Rate, amount)
}

func (l *Limiter) decide(ctx context.Context, command string, args ...any) (Decision, error) {
	conn, err := l.pool.GetContext(ctx)
	if err != nil {
		return Decision{}, fmt.Errorf("%s: %w", command, err)
	}
	defer conn.Close() // gives it back to the pool, or drops it if it broke

	reply, err := redis.Int64s(conn.Do(command, args...))
	if err != nil {
		return Decision{}, fmt.Errorf("%s: %w", command, err)
	}
	if len(reply) != 4 {
		return Decision{}, fmt.Errorf("%s: %d numbers instead of 4", command, len(reply))
	}
	return Decision{
		Allowed:    reply[0] == 1,
		Remaining:  reply[1],
		RetryAfter: milliseconds(reply[2]),
		ResetAfter: milliseconds(reply[3]),
	}, nil
}

// milliseconds saturates, as the server does: a wait can be longer than a Duration can hold (292 years).
func milliseconds(ms int64) time.Duration {
	const max = int64(1<<63-1) / int64(time.Millisecond)
	if ms > max {
		ms = max
	}
	return time.Duration(ms) * time.Millisecond
}
