package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"
)

// retryWhenAway is how soon a worker that lost the server asks again. Well under a second, so that work goes on soon.
const retryWhenAway = 100 * time.Millisecond

// worker works through jobs no faster than a limit that all workers, here and on other machines, share. Each job reserves
// its token first and is told when to act, so nobody polls and nobody is turned away.
func worker(ctx context.Context, args []string, out io.Writer) error {
	flags := newFlags("worker")
	address := flags.String("addr", defaultAddress(), "host:port of the server")
	key := flags.String("key", "upstream-api", "the bucket that all workers share")
	capacity := flags.Int64("capacity", 5, "calls that may go out at once")
	rate := flags.String("rate", "10", `calls per second, or "100/m", "5000/h"`)
	jobs := flags.Int("jobs", 20, "how many jobs there are")
	workers := flags.Int("workers", 4, "jobs worked on at the same time")
	maxWait := flags.Duration("max-wait", time.Second, "how far ahead a worker may reserve")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *jobs < 0 || *workers < 1 || *maxWait < 0 {
		return usageError{"worker: jobs and max-wait must not be negative, workers must be above 0"}
	}

	limiter := NewLimiter(*address, *workers, time.Second)
	defer limiter.Close()
	pacer := &Pacer{Limiter: limiter, Key: *key, Limit: Limit{*capacity, *rate}, MaxWait: *maxWait}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wait     sync.WaitGroup
		mutex    sync.Mutex // guards out and the two below
		firstErr error
		away     bool
		queue    = make(chan int)
		start    = time.Now()
	)
	pacer.OnAway = func(err error) {
		mutex.Lock()
		defer mutex.Unlock()
		if !away { // once an outage, not once a try
			fmt.Fprintf(out, "%6d ms  waiting for the server: %v\n", time.Since(start).Milliseconds(), err)
		}
		away = true
	}
	for i := 1; i <= *workers; i++ {
		name := fmt.Sprintf("worker %d", i)
		wait.Add(1)
		go func() {
			defer wait.Done()
			for job := range queue {
				err := pacer.Wait(ctx)
				mutex.Lock()
				if err == nil {
					away = false
					fmt.Fprintf(out, "%6d ms  job %d  %s\n", time.Since(start).Milliseconds(), job, name) // the call goes out here
				} else if firstErr == nil {
					firstErr = err
				}
				mutex.Unlock()
				if err != nil {
					cancel()
					return
				}
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
	Limiter *Limiter
	Key     string
	Limit   Limit
	MaxWait time.Duration   // the longest reservation: it bounds how much of the future one process can claim
	OnAway  func(err error) // called when the server cannot be asked; may be nil
}

// Wait returns when the caller may act. A server that is away holds the work up (paced work can wait, unlike a
// request), any other error is returned. When ctx ends first, the token that was reserved goes back.
func (p *Pacer) Wait(ctx context.Context) error {
	for {
		decision, err := p.Limiter.Reserve(ctx, p.Key, p.Limit, 1, p.MaxWait)
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case isAway(err):
			if p.OnAway != nil {
				p.OnAway(err)
			}
			if err := sleep(ctx, retryWhenAway); err != nil {
				return err
			}
		case err != nil:
			return err
		case decision.Allowed:
			err := sleep(ctx, decision.RetryAfter)
			if err != nil {
				p.giveBack()
			}
			return err
		case decision.RetryAfter == Never:
			return fmt.Errorf("%s: a capacity of %d never allows one call", p.Key, p.Limit.Capacity)
		default:
			// The queue is longer than MaxWait. By then it has become short enough.
			if err := sleep(ctx, decision.RetryAfter-p.MaxWait); err != nil {
				return err
			}
		}
	}
}

// giveBack needs a context of its own: the caller's has ended.
func (p *Pacer) giveBack() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	// Should it fail, the bucket refills by itself: one token less was used, never one more.
	_, _ = p.Limiter.Give(ctx, p.Key, p.Limit, 1)
}

// isAway tells a server that cannot be asked now, or still loads its data, from one that answered with an error.
func isAway(err error) bool {
	var network net.Error
	if errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return true
	}
	var answer redis.Error
	return errors.As(err, &answer) && strings.HasPrefix(string(answer), "LOADING ")
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
