// Package pipetest tests that takes share one connection of a client library, and what becomes of them when it ends.
package pipetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tokenbucket"
	"tokenbucket/internal/realserver"
)

var (
	ctx = context.Background()
	// still never flows noticeably during a test.
	still = tokenbucket.Limit{Capacity: 1000, Rate: "1/h"}
)

// patient lets a slow machine answer.
const patient = 20 * time.Second

// Doers make the Doer to test, of a server at that address.
type Doers func(t testing.TB, address string) tokenbucket.Doer

// Run runs all tests.
func Run(t *testing.T, doers Doers) {
	for name, test := range map[string]func(*setup){
		"exact": exact, "killed": killed, "caller gone": callerGone, "wrong": wrong,
	} {
		t.Run(name, func(t *testing.T) {
			server := realserver.Start(t)
			doer := &counting{PipeliningDoer: doers(t, server.Address()).(tokenbucket.PipeliningDoer)}
			limits := tokenbucket.NewServer(doer, tokenbucket.Timeout(patient), tokenbucket.LogTo(t.Logf))
			defer limits.Close()
			s := &setup{t, server, doer, tokenbucket.NewLimiter(limits, still)}
			s.usesPipe()
			test(s)
		})
	}
}

// counting knows how many commands do not go through the pipe.
type counting struct {
	tokenbucket.PipeliningDoer
	asked atomic.Int64
}

func (c *counting) Do(ctx context.Context, args ...any) (any, error) {
	c.asked.Add(1)
	return c.PipeliningDoer.Do(ctx, args...)
}

type setup struct {
	*testing.T
	server  *realserver.Server
	doer    *counting
	limiter *tokenbucket.Limiter
}

func (s *setup) take(name string) tokenbucket.Decision {
	s.Helper()
	decision, err := s.limiter.Take(ctx, name, 1)
	if err != nil || decision.Degraded {
		s.Fatal(decision, err)
	}
	return decision
}

// usesPipe returns when takes go through a pipe.
func (s *setup) usesPipe() {
	s.Helper()
	realserver.Eventually(s, "a pipe", func() bool {
		before := s.doer.asked.Load()
		s.take("warm")
		return s.doer.asked.Load() == before
	})
}

// takes makes calls by many callers at a time, and returns how many were allowed.
func (s *setup) takes(callers, each int, name string) (allowed int64) {
	var over sync.WaitGroup
	for ; callers > 0; callers-- {
		over.Add(1)
		go func() {
			defer over.Done()
			for i := 0; i < each; i++ {
				decision, err := s.limiter.Take(ctx, name, 1)
				if err != nil || decision.Degraded {
					s.Error(decision, err)
				}
				atomic.AddInt64(&allowed, decision.Granted)
			}
		}()
	}
	over.Wait()
	return allowed
}

// More at a time than a pipe carries.
func exact(s *setup) {
	if allowed := s.takes(300, 5, "a"); allowed != 1000 {
		s.Fatalf("%d of 1000", allowed)
	}
	if asked := s.doer.asked.Load(); asked > 1000 {
		s.Fatalf("%d of 1500 did not go through the pipe", asked)
	}
}

// killed: what was under way is sent again. It may have taken twice by then.
func killed(s *setup) {
	for i := 0; i < 5; i++ {
		s.server.Do("CLIENT", "KILL", "TYPE", "normal")
		s.takes(20, 10, "a")
		s.usesPipe()
	}
}

// callerGone: the grant that comes when nobody waits for it goes back.
func callerGone(s *setup) {
	before := s.doer.asked.Load()
	s.server.Do("CLIENT", "PAUSE", 500)
	gone, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := s.limiter.Take(gone, "a", 10); !errors.Is(err, context.DeadlineExceeded) {
		s.Fatal(err)
	}
	realserver.Eventually(s, "the tokens are back", func() bool {
		decision, err := s.limiter.Peek(ctx, "a", 0)
		return err == nil && decision.Remaining == 1000 && s.doer.asked.Load() > before
	})
}

func wrong(s *setup) {
	if _, err := s.limiter.Take(ctx, "a", -1); !errors.Is(err, tokenbucket.ErrBadArgument) {
		s.Fatal(err)
	}
	before := s.doer.asked.Load()
	s.take("a")
	if s.doer.asked.Load() != before {
		s.Fatal("an error of the server has ended the pipe")
	}
}
