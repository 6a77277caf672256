package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// naiveTake is how NOT to do it: the bucket is read, computed here and written back. Between the read and the write
// another goroutine, process or machine reads the same level, and the same tokens are granted again.
func naiveTake(ctx context.Context, client *redis.Client, key string, capacity, perSecond int64) (bool, error) {
	now := time.Now().UnixNano()
	level, refilledAt := float64(capacity), now
	state, err := client.Get(ctx, key).Result()
	switch {
	case errors.Is(err, redis.Nil): // no bucket yet: a full one
	case err != nil:
		return false, fmt.Errorf("GET: %w", err)
	default:
		if _, err := fmt.Sscanf(state, "%g@%d", &level, &refilledAt); err != nil {
			return false, fmt.Errorf("GET %s: %w", key, err)
		}
	}

	if now > refilledAt {
		level += float64(now-refilledAt) / 1e9 * float64(perSecond)
	}
	if level > float64(capacity) {
		level = float64(capacity)
	}
	if level < 1 {
		return false, nil
	}
	if err := client.Set(ctx, key, fmt.Sprintf("%g@%d", level-1, now), time.Minute).Err(); err != nil {
		return false, fmt.Errorf("SET: %w", err)
	}
	return true, nil
}
