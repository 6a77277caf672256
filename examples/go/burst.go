package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
)

// errOverGranted is what burst exists to look for.
var errOverGranted = errors.New("more tokens were granted than the bucket ever held")

// burst lets many goroutines ask for one bucket at once, as fast as they can, and counts what they were granted.
// It does so twice: with TB.TAKE, and with the read-compute-write that a limiter inside an application does.
func burst(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("burst", flag.ExitOnError)
	address := flags.String("addr", defaultAddress(), "host:port of the server")
	goroutines := flags.Int("goroutines", 50, "callers at the same time")
	connections := flags.Int("connections", 10, "connections that they share")
	capacity := flags.Int64("capacity", 100, "tokens in a full bucket")
	perSecond := flags.Int64("per-second", 50, "tokens that flow in per second")
	duration := flags.Duration("duration", 2*time.Second, "how long to ask")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *goroutines < 1 || *connections < 1 || *capacity < 1 || *perSecond < 1 || *duration <= 0 {
		return errors.New("burst: every number must be above 0")
	}

	client := newClient(*address, *connections)
	defer client.Close()
	silent := tokenbucket.LogTo(func(string, ...any) {}) // an error ends the test, and is printed
	limiter, err := newLimiter(client, tokenbucket.Limit{Capacity: float64(*capacity), Rate: fmt.Sprint(*perSecond)}, silent)
	if err != nil {
		return err
	}
	key := fmt.Sprintf("burst:%d", time.Now().UnixNano()) // a bucket that nobody has touched yet is full

	fmt.Fprintf(out, "%d goroutines on %d connections, a bucket of %d refilled at %d/s, for %v\n",
		*goroutines, *connections, *capacity, *perSecond, *duration)

	var overGranted error
	for _, way := range []struct {
		name string
		take func(context.Context) (bool, error)
	}{
		{"TB.TAKE", func(ctx context.Context) (bool, error) {
			decision, err := limiter.Take(ctx, key, 1)
			return decision.Allowed, err
		}},
		{"read-compute-write", func(ctx context.Context) (bool, error) {
			return naiveTake(ctx, client, key+":naive", *capacity, *perSecond)
		}},
	} {
		result, err := hammer(ctx, client, *goroutines, *duration, way.take)
		if err != nil {
			return err
		}
		bound := mostPossible(*capacity, *perSecond, result.elapsed)
		verdict := "ok"
		if result.granted > bound {
			verdict = fmt.Sprintf("over by %d", result.granted-bound)
			if way.name == "TB.TAKE" {
				overGranted = errOverGranted
			}
		}
		fmt.Fprintf(out, "%-18s  asked %d  granted %d  possible %d  %s\n",
			way.name, result.asked, result.granted, bound, verdict)
	}
	return overGranted
}

type hammerResult struct {
	asked, granted int64
	elapsed        time.Duration // by the server's clock, from before the first call to after the last
}

// hammer calls take from all goroutines until the time is over or one of them meets an error.
func hammer(ctx context.Context, client *redis.Client, goroutines int, duration time.Duration,
	take func(context.Context) (bool, error)) (hammerResult, error) {
	start, err := serverTime(ctx, client)
	if err != nil {
		return hammerResult{}, err
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wait     sync.WaitGroup
		once     sync.Once
		firstErr error
		result   hammerResult
		deadline = time.Now().Add(duration)
	)
	for i := 0; i < goroutines; i++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for ctx.Err() == nil && time.Now().Before(deadline) {
				allowed, err := take(ctx)
				if err != nil {
					once.Do(func() { firstErr = err; cancel() })
					return
				}
				atomic.AddInt64(&result.asked, 1)
				if allowed {
					atomic.AddInt64(&result.granted, 1)
				}
			}
		}()
	}
	wait.Wait()
	if firstErr != nil {
		return hammerResult{}, firstErr
	}
	if err := ctx.Err(); err != nil {
		return hammerResult{}, err
	}

	end, err := serverTime(ctx, client)
	if err != nil {
		return hammerResult{}, err
	}
	result.elapsed = end.Sub(start)
	return result, nil
}

// mostPossible is what a bucket that was full at the start can have given away since.
func mostPossible(capacity, perSecond int64, elapsed time.Duration) int64 {
	return capacity + perSecond*elapsed.Microseconds()/1_000_000
}

// serverTime asks the clock that the buckets go by. Comparing with a clock of our own would add its error.
func serverTime(ctx context.Context, client *redis.Client) (time.Time, error) {
	now, err := client.Time(ctx).Result()
	if err != nil {
		return time.Time{}, fmt.Errorf("TIME: %w", err)
	}
	return now, nil
}
