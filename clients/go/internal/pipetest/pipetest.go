// Package pipetest tests that takes share one connection of a client library, and what becomes of them when it ends.
package pipetest

import (
	"context"
	"errors"
	"math/rand"
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
		"exact": exact, "killed": killed, "caller gone": callerGone, "callers gone": callersGone, "silent": silent, "wrong": wrong,
	} {
		t.Run(name, func(t *testing.T) {
			server := realserver.Start(t)
			doer := &counting{PipeliningDoer: doers(t, server.Address()).(tokenbucket.PipeliningDoer)}
			s := &setup{T: t, server: server, doer: doer}
			s.limit(patient)
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

// limit makes a limiter that lets the server be silent for so long, and that uses a pipe.
func (s *setup) limit(timeout time.Duration, options ...tokenbucket.LimiterOption) {
	s.Helper()
	limits := tokenbucket.NewServer(s.doer, tokenbucket.Timeout(timeout), tokenbucket.LogTo(s.Logf))
	s.Cleanup(func() { limits.Close() })
	s.limiter = tokenbucket.NewLimiter(limits, still, options...)
	s.usesPipe()
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
	const soon = 20 * time.Millisecond
	expiring := func() (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, soon) }
	cancelled := func() (context.Context, context.CancelFunc) {
		gone, cancel := context.WithCancel(ctx)
		time.AfterFunc(soon, cancel)
		return gone, cancel
	}
	for _, leaving := range []func() (context.Context, context.CancelFunc){expiring, cancelled} {
		before := s.doer.asked.Load()
		s.pause()
		gone, cancel := leaving()
		defer cancel()
		if _, err := s.limiter.Take(gone, "a", 10); err == nil || err != gone.Err() {
			s.Fatal(err)
		}
		s.goOn()
		s.goesBack("a", 1000)
		if s.doer.asked.Load() == before {
			s.Fatal("nothing was given back")
		}
	}
}

// pause makes the server reply to no take.
func (s *setup) pause() {
	s.Helper()
	s.server.Do("CLIENT", "PAUSE", 3600000, "WRITE")
}

func (s *setup) goOn() {
	s.Helper()
	s.server.Do("CLIENT", "UNPAUSE")
}

func (s *setup) goesBack(name string, remaining int64) {
	s.Helper()
	realserver.Eventually(s, "the tokens are back", func() bool {
		decision, err := s.limiter.Peek(ctx, name, 0)
		return err == nil && !decision.Degraded && decision.Remaining == remaining
	})
}

// callersGone: some go while others read for them, or they for others.
func callersGone(s *setup) {
	var over sync.WaitGroup
	var granted atomic.Int64
	for callers := 4; callers > 0; callers-- {
		over.Add(1)
		go func(random *rand.Rand) {
			defer over.Done()
			for i := 0; i < 200; i++ {
				mayGo, cancel := context.WithCancel(ctx)
				leaving := time.AfterFunc(time.Duration(random.Intn(500))*time.Microsecond, cancel)
				decision, err := s.limiter.Take(mayGo, "a", 1)
				if err != nil && err != context.Canceled || decision.Degraded {
					s.Error(decision, err)
				}
				granted.Add(decision.Granted)
				leaving.Stop()
				cancel()
			}
		}(rand.New(rand.NewSource(int64(callers))))
	}
	over.Wait()
	s.goesBack("a", 1000-granted.Load())
}

// silent: a caller that is alone goes on without the server, before its connection is given up, and a late grant goes back.
func silent(s *setup) {
	const timeout = time.Second
	s.limit(timeout, tokenbucket.OnError(tokenbucket.FailClosed))
	s.pause()
	began := time.Now()
	decision, err := s.limiter.Take(ctx, "a", 10)
	if took := time.Since(began); err != nil || !decision.Degraded || decision.Allowed || took > 5*timeout {
		s.Fatal(decision, err, took)
	}
	s.goOn()
	s.goesBack("a", 1000)
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
