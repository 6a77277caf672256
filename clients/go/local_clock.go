package tokenbucket

import (
	"context"
	"time"
)

// Clock is the time by which limiters wait and forget. A Doer that is one, as the fake server is, sets the clock of the
// Server, answers at once and is never silent.
type Clock interface {
	Now() time.Time
	// Sleep returns after duration, or with the context's error if that ends first.
	Sleep(ctx context.Context, duration time.Duration) error
}

type realClock struct{}

func (realClock) Now() time.Time { return time.Now() }

func (realClock) Sleep(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
