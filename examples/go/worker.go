package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync"
	"time"

	"tokenbucket"
)

// worker works through jobs no faster than a limit that all workers, here and on other machines, share. Each job reserves
// its token first and is told when to act, so nobody polls and nobody is turned away.
func worker(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("worker", flag.ExitOnError)
	address := flags.String("addr", defaultAddress(), "host:port of the server")
	key := flags.String("key", "upstream-api", "the bucket that all workers share")
	capacity := flags.Float64("capacity", 5, "calls that may go out at once")
	rate := flags.String("rate", "10", `calls per second, or "100/m", "5000/h"`)
	jobs := flags.Int("jobs", 20, "how many jobs there are")
	workers := flags.Int("workers", 4, "jobs worked on at the same time")
	maxWait := flags.Duration("max-wait", time.Second, "how far ahead a worker may reserve")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *jobs < 0 || *workers < 1 || *maxWait < 0 {
		return errors.New("worker: jobs and max-wait must not be negative, workers must be above 0")
	}

	client := newClient(*address, *workers)
	defer client.Close()
	var (
		wait     sync.WaitGroup
		mutex    sync.Mutex // guards out and firstErr
		firstErr error
		queue    = make(chan int)
		start    = time.Now()
	)
	log := func(format string, args ...any) {
		mutex.Lock()
		defer mutex.Unlock()
		fmt.Fprintf(out, "%6d ms  %s\n", time.Since(start).Milliseconds(), fmt.Sprintf(format, args...))
	}
	limiter, err := newLimiter(client, tokenbucket.Limit{Capacity: *capacity, Rate: *rate}, tokenbucket.LogTo(log))
	if err != nil {
		return err
	}
	pacer := &Pacer{Limiter: limiter, Key: *key, MaxWait: *maxWait}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i := 1; i <= *workers; i++ {
		name := fmt.Sprintf("worker %d", i)
		wait.Add(1)
		go func() {
			defer wait.Done()
			for job := range queue {
				err := pacer.Wait(ctx)
				if err == nil {
					log("job %d  %s", job, name) // the call goes out here
					continue
				}
				mutex.Lock()
				if firstErr == nil {
					firstErr = err
				}
				mutex.Unlock()
				cancel()
				return
			}
		}()
	}
feed:
	for job := 1; job <= *jobs; job++ {
		select {
		case queue <- job:
		case <-ctx.Done():
			break feed
		}
	}
	close(queue)
	wait.Wait()
	if firstErr != nil {
		return firstErr
	}
	if err := ctx.Err(); err != nil { // interrupted while no worker was waiting
		return err
	}
	fmt.Fprintf(out, "%d jobs in %d ms\n", *jobs, time.Since(start).Milliseconds())
	return nil
}

// Pacer makes its callers wait for their turn.
type Pacer struct {
	Limiter *tokenbucket.Limiter
	Key     string
	MaxWait time.Duration // the longest reservation: it bounds how much of the future one process can claim
}

// Wait returns when the caller may act. A server that is away holds the work up (paced work can wait, unlike a
// request), any other error is returned. When ctx ends first, the token that was reserved goes back.
func (p *Pacer) Wait(ctx context.Context) error {
	for {
		decision, err := p.Limiter.Wait(ctx, p.Key, 1, p.MaxWait)
		pause := decision.RetryAfter - p.MaxWait
		switch {
		case errors.Is(err, tokenbucket.ErrServerAway):
			pause = retryWhenAway
		case err != nil || decision.Allowed:
			return err
		case decision.RetryAfter == tokenbucket.Never:
			return fmt.Errorf("%s: a capacity of %v never allows one call", p.Key, p.Limiter.Limit().Capacity)
		}
		// Or the queue is longer than MaxWait. By then it has become short enough.
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, duration time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
