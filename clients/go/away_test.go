package tokenbucket_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tokenbucket"
	"tokenbucket/internal/realserver"
	"tokenbucket/tokenbuckettest"
)

func TestEachPolicyWhileTheServerIsAway(t *testing.T) {
	fake, log := tokenbuckettest.NewServer(), &realserver.Log{}
	limits := tokenbucket.NewServer(fake, tokenbucket.LogTo(log.Printf))
	fake.Break(errors.New("unplugged"))
	type decision = tokenbucket.Decision
	full := decision{Allowed: true, Granted: 1, Degraded: true}
	retry := decision{RetryAfter: 500 * time.Millisecond, Degraded: true}
	sixth := decision{Allowed: true, Granted: 1, Remaining: 4, ResetAfter: 36 * time.Minute, Degraded: true}
	last := decision{Allowed: true, Granted: 4, ResetAfter: time.Hour, Degraded: true}
	for policy, want := range map[tokenbucket.Policy][2]decision{
		tokenbucket.FailLocal:  {sixth, last},
		tokenbucket.FailOpen:   {full, {Allowed: true, Granted: 7, Degraded: true}},
		tokenbucket.FailClosed: {retry, retry},
	} {
		limiter := tokenbucket.NewLimiter(limits, hourly, tokenbucket.OnError(policy))
		if got := must(t)(limiter.Take(ctx, "a", 6)); got != want[0] {
			t.Errorf("policy %d: %+v, want %+v", policy, got, want[0])
		}
		if got := must(t)(limiter.TakeUpTo(ctx, "a", 7)); got != want[1] {
			t.Errorf("policy %d: %+v, want %+v", policy, got, want[1])
		}
	}
	strict := tokenbucket.NewLimiter(limits, hourly, tokenbucket.OnError(tokenbucket.FailWithError))
	if got, err := strict.Take(ctx, "a", 1); !errors.Is(err, tokenbucket.ErrServerAway) || !errors.Is(err, tokenbucket.ErrTokenBucket) || got.Allowed {
		t.Errorf("strict: %+v, %v", got, err)
	}
	if count := limits.DegradedCount(); count != 7 {
		t.Errorf("%d decisions were made without the server", count)
	}
	fake.Break(nil)
	fake.Advance(time.Second)
	if got := must(t)(strict.Take(ctx, "a", 1)); got.Remaining != 9 {
		t.Errorf("the server's bucket: %+v", got)
	}
	log.Expect(t, "cannot ask the server", "the server is back")
}

// All that a limiter does, it does here too while the server is away.
func TestAnOutageCostsOneBucket(t *testing.T) {
	fake := tokenbuckettest.NewServer()
	limits := tokenbucket.NewServer(fake, tokenbucket.LogTo(t.Logf))
	joint := tokenbucket.NewJointLimiter(limits, map[string]tokenbucket.Limit{"r": hourly, "t": hourly})
	for outage := 0; outage < 3; outage++ {
		fake.Break(errors.New("unplugged"))
		for i := 0; i < 5; i++ {
			decision, err := joint.TakeAll(ctx, "a", map[string]float64{"r": 1, "t": 3})
			if allowed := outage == 0 && i < 3; err != nil || decision.Allowed != allowed || !decision.Each["t"].Degraded {
				t.Fatalf("outage %d, call %d: %+v, %v", outage, i, decision, err)
			}
		}
		fake.Break(nil)
		fake.Advance(time.Second)
		if decision, err := joint.TakeAll(ctx, "b", map[string]float64{"r": 1}); err != nil || decision.Degraded {
			t.Fatalf("%+v, %v", decision, err)
		}
	}
}

// breaking executes a command, and loses the connection before its reply.
type breaking struct {
	*tokenbuckettest.Server
	breakAfter string
}

func (b *breaking) Do(ctx context.Context, args ...any) (any, error) {
	reply, err := b.Server.Do(ctx, args...)
	if args[0] == b.breakAfter {
		b.breakAfter = ""
		return nil, net.ErrClosed
	}
	return reply, err
}

func TestALostReplyIsTold(t *testing.T) {
	doer := &breaking{Server: tokenbuckettest.NewServer()}
	limits := tokenbucket.NewServer(doer, tokenbucket.LogTo(t.Logf))
	limiter := tokenbucket.NewLimiter(limits, hourly)
	strict := tokenbucket.NewLimiter(limits, hourly, tokenbucket.OnError(tokenbucket.FailWithError))
	doer.breakAfter = "TB.CHARGE"
	if got, err := strict.Charge(ctx, "a", 2); !errors.Is(err, tokenbucket.ErrReplyLost) || errors.Is(err, tokenbucket.ErrServerAway) || !got.Lost {
		t.Fatalf("%+v, %v", got, err)
	}
	doer.Advance(time.Second)
	expectRemaining(t, limiter, "a", 8)
	doer.breakAfter = "TB.TAKE"
	if got := must(t)(limiter.Take(ctx, "a", 1)); got.Degraded || got.Remaining != 6 {
		t.Fatalf("a take is repeated, and pays twice: %+v", got)
	}
}

// stuck counts the calls that wait for it. It heeds no context.
type stuck struct {
	asked int64
	let   chan struct{}
}

func (s *stuck) Do(context.Context, ...any) (any, error) {
	atomic.AddInt64(&s.asked, 1)
	<-s.let
	return []any{int64(1), int64(9), int64(0), int64(0)}, nil
}

func TestASilentServerIsWaitedForByOneCallAtATime(t *testing.T) {
	doer, log, opened := &stuck{let: make(chan struct{})}, &realserver.Log{}, make(chan struct{}, 1)
	const timeout = 200 * time.Millisecond
	logf := func(format string, args ...any) {
		log.Printf(format, args...)
		select {
		case opened <- struct{}{}:
		default:
		}
	}
	limits := tokenbucket.NewServer(doer, tokenbucket.Timeout(timeout), tokenbucket.RetryEvery(0), tokenbucket.LogTo(logf))
	limiter := tokenbucket.NewLimiter(limits, hourly)
	began := time.Now()
	if got := must(t)(limiter.Take(ctx, "a", 1)); !got.Degraded || time.Since(began) < timeout {
		t.Fatalf("%+v after %v", got, time.Since(began))
	}
	<-opened
	before := atomic.LoadInt64(&doer.asked)
	var wait sync.WaitGroup
	began = time.Now()
	for i := 0; i < 50; i++ {
		wait.Add(1)
		go func() { defer wait.Done(); must(t)(limiter.Take(ctx, "a", 1)) }()
	}
	wait.Wait()
	// A probe lasts 200 ms, and only when it is over may another begin.
	most := 1 + int64(time.Since(began)/timeout)
	if asked := atomic.LoadInt64(&doer.asked) - before; asked > most {
		t.Fatalf("%d asked at the same time, want at most %d", asked, most)
	}
	log.Expect(t, "cannot ask the server")
	close(doer.let)
	realserver.Eventually(t, "limiting", func() bool { return !must(t)(limiter.Take(ctx, "a", 1)).Degraded })
	log.Expect(t, "cannot ask the server", "the server is back")
}

func TestAProbeWhoseCallerHangsUpIsFollowedByAnother(t *testing.T) {
	doer := &refusing{}
	limits := tokenbucket.NewServer(doer, tokenbucket.Timeout(time.Minute), tokenbucket.RetryEvery(0), tokenbucket.LogTo(t.Logf))
	limiter := tokenbucket.NewLimiter(limits, hourly)
	must(t)(limiter.Take(ctx, "a", 1))
	before := runtime.GOMAXPROCS(1) // so that the caller goes before the probe does
	_, _ = limiter.Take(&hangingUp{Context: ctx}, "a", 1)
	runtime.GOMAXPROCS(before)
	atomic.StoreInt64(&doer.isThere, 1)
	realserver.Eventually(t, "limiting", func() bool { return !must(t)(limiter.Take(ctx, "a", 1)).Degraded })
}

// refusing is a server that nobody reaches before it is there.
type refusing struct{ isThere int64 }

func (r *refusing) Do(context.Context, ...any) (any, error) {
	if atomic.LoadInt64(&r.isThere) == 0 {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return []any{int64(1), int64(9), int64(0), int64(0)}, nil
}

// hangingUp is over as soon as somebody waits for it.
type hangingUp struct {
	context.Context
	isOver bool
}

func (h *hangingUp) Done() <-chan struct{} {
	h.isOver = true
	over := make(chan struct{})
	close(over)
	return over
}

func (h *hangingUp) Err() error {
	if h.isOver {
		return context.Canceled
	}
	return nil
}

// slow lets a reply wait for the test.
type slow struct {
	stuck
	commands chan any
}

func (s *slow) Do(ctx context.Context, args ...any) (any, error) {
	if s.commands <- args[0]; args[0] == "TB.TAKE" {
		return s.stuck.Do(ctx, args...)
	}
	return []any{int64(1), int64(9), int64(0), int64(0)}, nil
}

func TestACallerWhoseContextEndsMeanwhileKeepsNothing(t *testing.T) {
	doer, log := &slow{stuck{let: make(chan struct{})}, make(chan any, 9)}, &realserver.Log{}
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(doer, tokenbucket.Timeout(time.Minute), tokenbucket.LogTo(log.Printf)), hourly)
	impatient, cancel := context.WithCancel(ctx)
	ended := make(chan error)
	go func() {
		_, err := limiter.Take(impatient, "a", 1)
		ended <- err
	}()
	for command := range doer.commands {
		if command == "TB.TAKE" {
			break
		}
	}
	cancel()
	close(doer.let)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if command := <-doer.commands; command != "TB.GIVE" {
		t.Fatal(command)
	}
	log.Expect(t)
}

func TestEveryErrorIsOfThisPackage(t *testing.T) {
	odd := &slow{stuck{}, make(chan any, 9)}
	limits := tokenbucket.NewServer(odd, tokenbucket.Timeout(time.Minute))
	_, noDecision := tokenbucket.NewJointLimiter(limits, map[string]tokenbucket.Limit{"x": hourly}).TakeAll(ctx, "a", map[string]float64{"x": 1})
	if err := limits.Close(); err != nil {
		t.Fatal(err)
	}
	_, closed := tokenbucket.NewLimiter(limits, hourly, tokenbucket.OnError(tokenbucket.FailOpen)).Take(ctx, "a", 1)
	if !errors.Is(closed, tokenbucket.ErrClosed) || limits.DegradedCount() != 0 {
		t.Error(closed)
	}
	for _, err := range []error{noDecision, closed} {
		if !errors.Is(err, tokenbucket.ErrTokenBucket) {
			t.Error(err)
		}
	}
}

func TestWhatServersSay(t *testing.T) {
	for line, degraded := range map[string]bool{
		"LOADING Redis is loading the dataset in memory":  true,
		"CLUSTERDOWN The cluster is down":                 true,
		"ERR max number of clients reached":               true,
		"READONLY You can't write against a read only":    true,
		"OOM command not allowed":                         true,
		"TRYAGAIN Multiple keys request during rehashing": true,
		"MOVED 7 127.0.0.1:7001":                          false,
		"NOPERM this user has no permissions":             false,
		"WRONGPASS invalid username-password pair":        false,
		"ERR cost must be a decimal number":               false,
	} {
		fake := tokenbuckettest.NewServer()
		limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(fake, tokenbucket.LogTo(t.Logf)), hourly)
		fake.Break(fmt.Errorf("take: %w", tokenbuckettest.Error(line)))
		if got, err := limiter.Take(ctx, "a", 1); got.Degraded != degraded || (err == nil) != degraded {
			t.Errorf("%s: %+v, %v", line, got, err)
		}
	}
}
