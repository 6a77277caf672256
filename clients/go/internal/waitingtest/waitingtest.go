// Package waitingtest tests that calls wait in the server by a client library.
package waitingtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"tokenbucket"
	"tokenbucket/internal/realserver"
)

var (
	ctx  = context.Background()
	slot = tokenbucket.Limit{Capacity: 1, Rate: "0"}
	// still never flows noticeably during a test.
	still = tokenbucket.Limit{Capacity: 1, Rate: "1/h"}
	long  = tokenbucket.MaxWait(time.Hour)
)

// patient lets a slow machine answer.
const patient = 20 * time.Second

// Doers make the Doer to test, of a server at that address. Its client has time-outs of 50 ms and at most two connections.
type Doers func(t testing.TB, address string) tokenbucket.Doer

// Run runs all tests.
func Run(t *testing.T, doers Doers) {
	for name, test := range map[string]func(*setup){
		"time is over": timeIsOver, "longer than a time-out": longerThanATimeout, "at once": atOnce, "shares": shares,
		"wrong shares": wrongShares, "joint": joint, "cancelled": cancelled, "late holds": lateHolds, "beside the others": besideTheOthers,
		"unblocked": unblocked, "killed": killed, "demoted": demoted, "stopped": stopped, "silent": silent, "closed": closed,
	} {
		t.Run(name, func(t *testing.T) { run(t, doers, test) })
	}
}

type setup struct {
	*testing.T
	server *realserver.Server
	log    *realserver.Log
	doer   tokenbucket.Doer
}

func run(t *testing.T, doers Doers, test func(*setup)) {
	server := realserver.Start(t)
	test(&setup{t, server, &realserver.Log{}, doers(t, server.Address())})
}

func (s *setup) limits(timeout time.Duration) *tokenbucket.Server {
	limits := tokenbucket.NewServer(s.doer, tokenbucket.Timeout(timeout), tokenbucket.LogTo(s.log.Printf))
	s.Cleanup(func() { limits.Close() })
	return limits
}

func (s *setup) limiter(limit tokenbucket.Limit, timeout time.Duration) *tokenbucket.Limiter {
	return tokenbucket.NewLimiter(s.limits(timeout), limit, tokenbucket.OnError(tokenbucket.FailClosed))
}

// waiting waits until so many calls wait in the server.
func (s *setup) waiting(calls int) {
	s.Helper()
	line := fmt.Sprintf("tokenbucket_waiting:%d\r\n", calls)
	realserver.Eventually(s, line, func() bool {
		return strings.Contains(fmt.Sprint(s.server.Do("INFO", "everything")), line)
	})
}

func (s *setup) give(name string) {
	s.Helper()
	s.server.Do("TB.GIVE", "tb:"+name, "1", "1/h", "1")
}

func (s *setup) empty(name string) {
	s.Helper()
	s.server.Do("TB.TAKE", "tb:"+name, "1", "1/h", "1")
}

// result is how a call ended.
type result struct {
	decision tokenbucket.Decision
	err      error
}

func (s *setup) expect(got result, allowed, degraded bool) {
	s.Helper()
	if got.err != nil || got.decision.Allowed != allowed || got.decision.Degraded != degraded {
		s.Fatalf("%+v, %v", got.decision, got.err)
	}
}

// takes waits for a token in the background, and returns when the server has the call.
func (s *setup) takes(ctx context.Context, limiter *tokenbucket.Limiter) chan result {
	ended := make(chan result, 1)
	go func() {
		decision, err := limiter.Take(ctx, "a", 1, long)
		ended <- result{decision, err}
	}()
	s.waiting(1)
	return ended
}

func shares(s *setup) {
	loud := tokenbucket.Share("loud", 1)
	limiter := s.limiter(still, patient)
	s.empty("b")
	decision, err := limiter.Take(ctx, "b", 1, loud, tokenbucket.MaxWait(time.Millisecond))
	s.expect(result{decision, err}, false, false)
	s.give("b")
	decision, err = limiter.Take(ctx, "b", 1, loud, long)
	s.expect(result{decision, err}, true, false)

	hold, err := s.limiter(slot, patient).Hold(ctx, "c", 1, time.Minute)
	if err != nil {
		s.Fatal(err)
	}
	impatient, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := s.limiter(slot, patient).Hold(impatient, "c", 1, time.Minute, loud, long)
		ended <- err
	}()
	s.waiting(1)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		s.Fatal(err)
	}
	s.waiting(0)
	if _, err := hold.Settle(); err != nil {
		s.Fatal(err)
	}
}

func wrongShares(s *setup) {
	limits := s.limits(patient)
	limiter := tokenbucket.NewLimiter(limits, still)
	for i, right := range []tokenbucket.CallOption{
		tokenbucket.Share("a", 0.001), tokenbucket.Share("a", 1000), tokenbucket.Share(strings.Repeat("a", 128), 999.999),
	} {
		decision, err := limiter.Take(ctx, fmt.Sprint(i), 1, right, long)
		s.expect(result{decision, err}, true, false)
	}
	for _, wrong := range []tokenbucket.CallOption{
		tokenbucket.Share("", 1), tokenbucket.Share(strings.Repeat("a", 129), 1), tokenbucket.Share("a", 0), tokenbucket.Share("a", 0.0005),
		tokenbucket.Share("a", 1000.001), tokenbucket.Share("a", math.NaN()),
	} {
		_, takes := limiter.Take(ctx, "a", 1, wrong)
		_, waits := limiter.Take(ctx, "a", 1, long, wrong)
		_, holds := limiter.Hold(ctx, "a", 1, time.Minute, long, wrong)
		for _, err := range []error{takes, waits, holds} {
			if !errors.Is(err, tokenbucket.ErrBadArgument) {
				s.Fatal(err)
			}
		}
	}
	both := tokenbucket.NewJointLimiter(limits, map[string]tokenbucket.Limit{"jobs": slot, "tokens": still})
	share := tokenbucket.Share("a", 1)
	_, err := both.TakeAll(ctx, "a", map[string]float64{"jobs": 1, "tokens": 1}, share, long)
	if !errors.Is(err, tokenbucket.ErrBadArgument) || !strings.Contains(err.Error(), "several buckets") {
		s.Fatal(err)
	}
	decision, err := both.TakeAll(ctx, "a", map[string]float64{"tokens": 1}, share, long)
	s.expect(result{decision.Decision, err}, true, false)
}

func timeIsOver(s *setup) {
	const maxWait = 700 * time.Millisecond
	limiter := s.limiter(still, 50*time.Millisecond)
	s.empty("a")
	began := time.Now()
	decision, err := limiter.Take(ctx, "a", 1, tokenbucket.MaxWait(maxWait))
	if s.expect(result{decision, err}, false, false); decision.RetryAfter < 50*time.Minute || time.Since(began) < maxWait {
		s.Fatalf("%+v after %v", decision, time.Since(began))
	}
	s.log.Expect(s)
}

func longerThanATimeout(s *setup) {
	limiter := s.limiter(still, patient)
	s.empty("a")
	ended := s.takes(ctx, limiter)
	time.Sleep(300 * time.Millisecond) // the client's time-outs are over
	s.waiting(1)
	s.give("a")
	s.expect(<-ended, true, false)
	s.log.Expect(s)
}

func atOnce(s *setup) {
	limiter := s.limiter(still, patient)
	for i := 0; i < 10; i++ {
		decision, err := limiter.Take(ctx, fmt.Sprint(i), 1, long)
		s.expect(result{decision, err}, true, false)
	}
	decision, err := limiter.Take(ctx, "a", 2, long)
	if s.expect(result{decision, err}, false, false); decision.RetryAfter != tokenbucket.Never {
		s.Fatalf("%+v", decision)
	}
	if _, err := limiter.Take(ctx, "a", 1, tokenbucket.MaxWait(1000*time.Hour)); !errors.Is(err, tokenbucket.ErrBadArgument) {
		s.Fatal(err)
	}
	s.server.Do("CONFIG", "SET", "tokenbucket.max-waiters", "0")
	s.empty("b")
	decision, err = limiter.Take(ctx, "b", 1, long)
	s.expect(result{decision, err}, false, false)
}

func joint(s *setup) {
	limits := s.limits(patient)
	both := tokenbucket.NewJointLimiter(limits, map[string]tokenbucket.Limit{"jobs": slot, "tokens": still})
	held, err := both.Hold(ctx, "a", map[string]float64{"jobs": 1}, time.Minute)
	if err != nil {
		s.Fatal(err)
	}
	ended := make(chan result, 1)
	go func() {
		hold, err := both.Hold(ctx, "a", map[string]float64{"jobs": 1, "tokens": 1}, time.Minute, long)
		if err == nil {
			_, err = hold.Settle()
		}
		ended <- result{hold.Decision().Decision, err}
	}()
	s.waiting(1)
	if _, err := held.Settle(); err != nil {
		s.Fatal(err)
	}
	s.expect(<-ended, true, false)

	s.empty("{a}:tokens")
	go func() {
		decision, err := both.TakeAll(ctx, "a", map[string]float64{"tokens": 1}, long)
		ended <- result{decision.Decision, err}
	}()
	s.waiting(1)
	s.give("{a}:tokens")
	s.expect(<-ended, true, false)
}

func cancelled(s *setup) {
	limiter := s.limiter(still, patient)
	s.empty("a")
	impatient, cancel := context.WithCancel(ctx)
	ended := s.takes(impatient, limiter)
	cancel()
	if got := <-ended; !errors.Is(got.err, context.Canceled) {
		s.Fatal(got)
	}
	s.waiting(0)
	s.give("a")
	decision, err := limiter.Take(ctx, "a", 1)
	s.expect(result{decision, err}, true, false)
	s.log.Expect(s)
}

// lateHolds cancels calls when their turn comes: each holds, or nobody does.
func lateHolds(s *setup) {
	limiter := s.limiter(slot, patient)
	for round := 0; round < 30; round++ {
		first, err := limiter.Hold(ctx, "a", 1, time.Hour)
		if err != nil || !first.Decision().Allowed {
			s.Fatal(first, err)
		}
		impatient, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if hold, err := limiter.Hold(impatient, "a", 1, time.Hour, long); err == nil {
				_, _ = hold.Settle()
			}
		}()
		s.waiting(1)
		go cancel()
		if _, err := first.Settle(); err != nil {
			s.Fatal(err)
		}
		<-ended
		s.full(limiter)
	}
}

func (s *setup) full(limiter *tokenbucket.Limiter) {
	s.Helper()
	realserver.Eventually(s, "the token is back", func() bool {
		decision, err := limiter.Peek(ctx, "a", 0)
		return err == nil && decision.Remaining == 1
	})
}

// besideTheOthers has more calls that wait than the client has connections, and takes none of them.
func besideTheOthers(s *setup) {
	limiter := s.limiter(slot, patient)
	holds := make([]*tokenbucket.Hold, 10)
	for i := range holds {
		var err error
		if holds[i], err = limiter.Hold(ctx, fmt.Sprint(i), 1, time.Minute); err != nil {
			s.Fatal(err)
		}
	}
	for round := 0; round < 3; round++ {
		var over sync.WaitGroup
		for i := range holds {
			over.Add(1)
			go func(i int) {
				defer over.Done()
				hold, err := limiter.Hold(ctx, fmt.Sprint(i), 1, time.Minute, long)
				if err != nil || !hold.Decision().Allowed || hold.Decision().Degraded {
					s.Error(hold, err)
				}
				holds[i] = hold
			}(i)
		}
		s.waiting(len(holds))
		waited := append([]*tokenbucket.Hold(nil), holds...)
		for _, hold := range waited {
			if _, err := hold.Settle(); err != nil {
				s.Fatal(err)
			}
		}
		over.Wait()
	}
}

func unblocked(s *setup) {
	limiter := s.limiter(still, patient)
	s.empty("a")
	ended := s.takes(ctx, limiter)
	s.server.Do("CLIENT", "UNBLOCK", s.blocked(""), "ERROR")
	s.blocked("again")
	s.give("a")
	s.expect(<-ended, true, false)
}

// blocked is the id of the client that waits, as soon as one has given up its wait or lost it when again is said.
func (s *setup) blocked(again string) (id string) {
	s.Helper()
	realserver.Eventually(s, "a client waits", func() bool {
		if again != "" && !strings.Contains(fmt.Sprint(s.server.Do("INFO", "everything")), "tokenbucket_gave_up_waiting:1\r\n") {
			return false
		}
		for _, line := range strings.Split(fmt.Sprint(s.server.Do("CLIENT", "LIST")), "\n") {
			if strings.Contains(strings.ToLower(line), "cmd=tb.btake") && strings.Contains(line, "flags=b") {
				_, _ = fmt.Sscanf(line, "id=%s", &id)
				return true
			}
		}
		return false
	})
	return id
}

func killed(s *setup) {
	limiter := s.limiter(still, patient)
	s.empty("a")
	ended := s.takes(ctx, limiter)
	s.server.Do("CLIENT", "KILL", "ID", s.blocked(""))
	s.waiting(1)
	s.give("a")
	s.expect(<-ended, true, false)
}

func demoted(s *setup) {
	limiter := s.limiter(still, patient)
	s.empty("a")
	ended := s.takes(ctx, limiter)
	s.server.Do("REPLICAOF", "127.0.0.1", "1")
	s.expect(<-ended, false, true)
}

func stopped(s *setup) {
	limiter := s.limiter(still, patient)
	s.empty("a")
	ended := s.takes(ctx, limiter)
	s.server.Stop()
	s.expect(<-ended, false, true)
	decision, err := limiter.Take(ctx, "a", 1, long)
	s.expect(result{decision, err}, false, true)
	s.server.Start()
	realserver.Eventually(s, "limiting", func() bool {
		decision, err := limiter.Take(ctx, "a", 1, tokenbucket.MaxWait(time.Millisecond))
		return err == nil && !decision.Degraded
	})
}

// silent is a server that keeps its connections, and says nothing to anybody.
func silent(s *setup) {
	limiter := s.limiter(still, time.Second)
	s.empty("a")
	ended := s.takes(ctx, limiter)
	s.server.Do("CLIENT", "PAUSE", "3600000", "ALL")
	s.expect(<-ended, false, true)
	realserver.Eventually(s, "the outage is logged", func() bool { return s.log.Len() > 0 })
	s.log.Expect(s, "cannot ask")
}

func closed(s *setup) {
	limits := s.limits(patient)
	s.empty("a")
	ended := s.takes(ctx, tokenbucket.NewLimiter(limits, still))
	if err := limits.Close(); err != nil {
		s.Fatal(err)
	}
	if got := <-ended; !errors.Is(got.err, tokenbucket.ErrClosed) {
		s.Fatal(got)
	}
	s.waiting(0)
}
