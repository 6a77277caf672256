package tokenbucket_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
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

// stuck counts the calls that wait for it, until their deadline.
type stuck struct {
	asked atomic.Int64
	let   chan struct{}
}

func (s *stuck) Do(ctx context.Context, _ ...any) (any, error) {
	s.asked.Add(1)
	deadline, _ := ctx.Deadline()
	select {
	case <-s.let:
		return []any{int64(1), int64(9), int64(0), int64(0)}, nil
	case <-time.After(time.Until(deadline)):
		return nil, os.ErrDeadlineExceeded
	}
}

func TestNobodyWaitsForAServerThatIsAway(t *testing.T) {
	doer, log := &stuck{let: make(chan struct{})}, &realserver.Log{}
	const retryEvery = 2 * time.Second
	limits := tokenbucket.NewServer(doer, tokenbucket.RetryEvery(retryEvery), tokenbucket.LogTo(log.Printf))
	limiter := tokenbucket.NewLimiter(limits, hourly)
	began := time.Now()
	for i := 0; i < 1000; i++ {
		if got := must(t)(limiter.Take(ctx, "a", 1)); !got.Degraded {
			t.Fatalf("call %d: %+v", i, got)
		}
	}
	// The first is sent again, to make sure.
	if asked := doer.asked.Load(); asked > 2+2*int64(time.Since(began)/retryEvery) {
		t.Fatalf("%d asked within %v", asked, time.Since(began))
	}
	log.Expect(t, "cannot ask the server")
	close(doer.let)
	realserver.Eventually(t, "limiting", func() bool { return !must(t)(limiter.Take(ctx, "a", 1)).Degraded })
	log.Expect(t, "cannot ask the server", "the server is back")
}

// refusing is a server that nobody reaches before it is there.
type refusing struct{ isThere int64 }

func (r *refusing) Do(context.Context, ...any) (any, error) {
	if atomic.LoadInt64(&r.isThere) == 0 {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return []any{int64(1), int64(9), int64(0), int64(0)}, nil
}

func TestACallThatWasSentEndsWithItsReply(t *testing.T) {
	doer, log := &stuck{let: make(chan struct{})}, &realserver.Log{}
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(doer, tokenbucket.Timeout(time.Minute), tokenbucket.LogTo(log.Printf)), hourly)
	impatient, cancel := context.WithCancel(ctx)
	ended := make(chan tokenbucket.Decision)
	go func() {
		decision, _ := limiter.Take(impatient, "a", 1)
		ended <- decision
	}()
	realserver.Eventually(t, "it is sent", func() bool { return doer.asked.Load() == 1 })
	cancel()
	close(doer.let)
	if decision := <-ended; !decision.Allowed || decision.Degraded {
		t.Fatalf("%+v", decision)
	}
	if _, err := limiter.Take(impatient, "a", 1); !errors.Is(err, context.Canceled) || doer.asked.Load() != 1 {
		t.Fatal(err)
	}
	log.Expect(t)
}

func TestWhatAnErrorSays(t *testing.T) {
	says := func(line string) error { return errors.New(line) }
	dial := func(err error) error { return &net.OpError{Op: "dial", Err: err} }
	const isAway, isRefused, isWrong = "cannot ask the server", "does not decide a call", ""
	for _, c := range []struct {
		err  error
		want string
	}{
		{says("LOADING Redis is loading the dataset in memory"), isAway}, {dial(syscall.ECONNREFUSED), isAway},
		{says("OOM command not allowed"), isRefused}, {says("ERR max number of clients reached"), isRefused},
		{dial(syscall.EMFILE), isRefused}, {dial(syscall.EADDRNOTAVAIL), isRefused},
		{says("MOVED 7 127.0.0.1:7001"), isWrong}, {says("WRONGPASS invalid username-password pair"), isWrong},
		{x509.UnknownAuthorityError{}, isWrong}, {x509.HostnameError{Certificate: &x509.Certificate{}}, isWrong}, {tls.RecordHeaderError{}, isWrong},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}, isWrong}, {dial(&net.AddrError{Err: "missing port"}), isWrong},
	} {
		fake, log := tokenbuckettest.NewServer(), &realserver.Log{}
		limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(fake, tokenbucket.LogTo(log.Printf)), hourly)
		fake.Break(fmt.Errorf("take: %w", c.err))
		if got, err := limiter.Take(ctx, "a", 1); got.Degraded != (c.want != isWrong) || errors.Is(err, tokenbucket.ErrTokenBucket) == got.Degraded {
			t.Errorf("%v: %+v, %v", c.err, got, err)
		}
		fake.Break(nil)
		if got := must(t)(limiter.Take(ctx, "a", 1)); got.Degraded != (c.want == isAway) {
			t.Errorf("%v: the next is %+v", c.err, got)
		}
		if c.want == isWrong {
			log.Expect(t)
		} else {
			log.Expect(t, c.want)
		}
	}
}

// returning is a server that comes back while a call sleeps, whose context then ends.
type returning struct{ *tokenbuckettest.Server }

func (r returning) Sleep(context.Context, time.Duration) error {
	r.Break(nil)
	r.Advance(time.Second)
	return context.Canceled
}

func TestWaitGivesBackWhereItReserved(t *testing.T) {
	fake := returning{tokenbuckettest.NewServer()}
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(fake, tokenbucket.LogTo(t.Logf)), hourly)
	expectAllowed(t)(limiter.Take(ctx, "a", 10))
	fake.Break(errors.New("unplugged"))
	expectAllowed(t)(limiter.Take(ctx, "a", 10)) // here
	if _, err := limiter.Wait(ctx, "a", 5, time.Hour); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	expectRemaining(t, limiter, "a", 0)
	fake.Break(errors.New("unplugged"))
	expectRemaining(t, limiter, "a", 0)
}

// crowded has no connection for calls that wait.
type crowded struct {
	tokenbucket.Doer
	dial func() error
}

func (c crowded) Wait(context.Context, ...any) (any, error) { return nil, c.dial() }

func TestAWaitThatGetsNoConnectionAsksAgain(t *testing.T) {
	server := realserver.Start(t)
	for name, dial := range map[string]func() error{
		"refused": func() error { return &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED} },
		"panics":  func() error { panic("broken") },
	} {
		log := &realserver.Log{}
		limits := tokenbucket.NewServer(crowded{server.Doer(), dial}, tokenbucket.Timeout(5*time.Second), tokenbucket.LogTo(log.Printf))
		limiter := tokenbucket.NewLimiter(limits, tokenbucket.Limit{Capacity: 1, Rate: "1"})
		must(t)(limiter.Take(ctx, name, 1))
		if got := must(t)(limiter.Take(ctx, name, 1, tokenbucket.MaxWait(time.Minute))); !got.Allowed || got.Degraded {
			t.Fatalf("%s: %+v", name, got)
		}
		log.Expect(t)
	}
}

func TestARefusedConnectionIsNoSignOfLife(t *testing.T) {
	doer, log := &refusing{}, &realserver.Log{}
	limits := tokenbucket.NewServer(doer, tokenbucket.RetryEvery(0), tokenbucket.LogTo(log.Printf))
	limiter := tokenbucket.NewLimiter(limits, hourly)
	for i := 0; i < 100; i++ {
		must(t)(limiter.Take(ctx, "a", 1))
	}
	log.Expect(t, "cannot ask the server")
}

// fragile panics, or ends the goroutine of the call, until it is mended.
type fragile struct {
	refusing
	hook func()
}

func (f *fragile) Do(ctx context.Context, args ...any) (any, error) {
	if f.hook != nil {
		f.hook()
	}
	return f.refusing.Do(ctx, args...)
}

func TestTheNextCallWorksAfterAnyEnd(t *testing.T) {
	for name, hook := range map[string]func(){"panic": func() { panic("broken") }, "exit": runtime.Goexit} {
		doer := &fragile{refusing{isThere: 1}, hook}
		for kind, limiter := range map[string]*tokenbucket.Limiter{
			"plain": tokenbucket.NewLimiter(tokenbucket.NewServer(doer), hourly),
			"batch": tokenbucket.NewLimiter(tokenbucket.NewServer(doer), hourly, tokenbucket.Batch(2)),
		} {
			doer.hook = hook
			for i := 0; i < 100; i++ { // more than may ask at a time
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					defer func() { _ = recover() }()
					_, _ = limiter.Take(ctx, "a", 1)
				}()
				<-ended
			}
			doer.hook = nil
			if got := must(t)(limiter.Take(ctx, "a", 1)); !got.Allowed || got.Degraded {
				t.Errorf("%s, %s: %+v", name, kind, got)
			}
		}
	}
}

func TestHooksThatPanicChangeNothing(t *testing.T) {
	broken := tokenbucket.LogTo(func(string, ...any) { panic("log") })
	told := tokenbucket.OnDecision(func(string, tokenbucket.Limit, tokenbucket.Decision, time.Duration) { panic("told") })
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(&refusing{}, broken), hourly, told)
	for i := int64(1); i <= 3; i++ {
		if got := must(t)(limiter.Take(ctx, "a", 1)); !got.Allowed || got.Remaining != 10-i {
			t.Fatalf("%+v", got)
		}
	}
}

// lossy executes what waits, and then loses its connection and its caller.
type lossy struct {
	tokenbucket.WaitingDoer
	leave context.CancelFunc
}

func (l lossy) Wait(ctx context.Context, args ...any) (any, error) {
	_, _ = l.WaitingDoer.Wait(ctx, args...)
	l.leave()
	return nil, io.EOF
}

func TestAHoldThatAWaitMayHaveMadeIsSettled(t *testing.T) {
	server := realserver.Start(t)
	impatient, leave := context.WithCancel(ctx)
	doer := lossy{server.Doer().(tokenbucket.WaitingDoer), leave}
	limits := tokenbucket.NewServer(doer, tokenbucket.Timeout(5*time.Second), tokenbucket.RetryEvery(20*time.Millisecond), tokenbucket.LogTo(t.Logf))
	defer limits.Close()
	limiter := tokenbucket.NewLimiter(limits, tokenbucket.Limit{Capacity: 1, Rate: "0"})
	first := hold(t, limiter, 1, time.Hour)
	ended := make(chan error)
	go func() {
		_, err := limiter.Hold(impatient, "a", 1, time.Hour, tokenbucket.MaxWait(time.Hour))
		ended <- err
	}()
	realserver.Eventually(t, "it waits", func() bool {
		return strings.Contains(fmt.Sprint(server.Do("INFO", "everything")), "tokenbucket_waiting:1\r\n")
	})
	settle(t, first)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	realserver.Eventually(t, "it is settled", func() bool { return remaining(t, limiter, "a") == 1 })
}

// nodes is a cluster of one node that answers as a test says.
type nodes struct {
	nodeOf func(context.Context) error
	do     func(ctx context.Context, name any) error
}

func (n *nodes) Do(ctx context.Context, args ...any) (any, error) {
	return []any{int64(1), int64(9), int64(0), int64(0)}, n.do(ctx, args[0])
}
func (n *nodes) DoFor(ctx context.Context, _ string, args ...any) (any, error) {
	return n.Do(ctx, args...)
}
func (n *nodes) NodeOf(ctx context.Context, _ string) (tokenbucket.Doer, error) {
	return n, n.nodeOf(ctx)
}

func fine(context.Context, any) error { return nil }

func TestOneReplyThatDoesNotComeIsNoOutage(t *testing.T) {
	for name, c := range map[string]struct {
		lost error
		call func(*tokenbucket.Limiter, context.Context) (tokenbucket.Decision, error)
	}{
		"late, and its caller left": {os.ErrDeadlineExceeded, func(l *tokenbucket.Limiter, ctx context.Context) (tokenbucket.Decision, error) {
			return l.Take(ctx, "a", 1)
		}},
		"late, of what must happen once": {os.ErrDeadlineExceeded, func(l *tokenbucket.Limiter, _ context.Context) (tokenbucket.Decision, error) {
			return l.Give(ctx, "a", 1)
		}},
		"lost, of what must happen once": {io.EOF, func(l *tokenbucket.Limiter, _ context.Context) (tokenbucket.Decision, error) {
			return l.Charge(ctx, "a", 1)
		}},
	} {
		leaving, leave := context.WithCancel(ctx)
		doer, log := &nodes{}, &realserver.Log{}
		doer.nodeOf = func(context.Context) error { return nil }
		doer.do = func(_ context.Context, command any) error {
			if command == "PING" || leaving.Err() != nil {
				return nil
			}
			leave()
			return c.lost
		}
		limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(doer, tokenbucket.LogTo(log.Printf)), hourly)
		_, _ = c.call(limiter, leaving)
		if got := must(t)(limiter.Take(ctx, "a", 1)); got.Degraded {
			t.Errorf("%s: %+v", name, got)
		}
		log.Expect(t, "does not decide a call")
	}
}

func TestASlotThatMovesForLongIsNoMistake(t *testing.T) {
	moving := &nodes{nodeOf: func(context.Context) error { return nil }}
	moving.do = func(context.Context, any) error { return errors.New("ASK 7 127.0.0.1:7001") }
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(moving, tokenbucket.LogTo(t.Logf)), hourly, tokenbucket.OnError(tokenbucket.FailClosed))
	if got := must(t)(limiter.Take(ctx, "a", 1)); got.Allowed || !got.Degraded {
		t.Fatalf("%+v", got)
	}
}

func TestEachOutageHasItsTwoLines(t *testing.T) {
	fake, log := tokenbuckettest.NewServer(), &realserver.Log{}
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(fake, tokenbucket.LogTo(log.Printf)), hourly)
	var want []string
	for outage := 0; outage < 3; outage++ {
		for _, broken := range []error{errors.New("unplugged"), nil} {
			fake.Break(broken)
			for i := 0; i < 3; i++ {
				fake.Advance(time.Second)
				must(t)(limiter.Take(ctx, "a", 0))
			}
		}
		want = append(want, "cannot ask the server", "the server is back")
	}
	log.Expect(t, want...)
}

// mute is a server that denies one call, lets it wait, and then falls silent.
type mute struct{ asked atomic.Int64 }

func (m *mute) Do(context.Context, ...any) (any, error) {
	if m.asked.Add(1) > 1 {
		return nil, os.ErrDeadlineExceeded
	}
	return []any{int64(0), int64(0), int64(60_000), int64(60_000)}, nil
}

func (m *mute) Wait(ctx context.Context, _ ...any) (any, error) {
	<-ctx.Done()
	return nil, net.ErrClosed
}

// replaced is a server that denies one call and lets it wait for ever, as one does that another has replaced.
type replaced struct {
	mute
	isAway, isWaiting atomic.Bool
}

func (r *replaced) Wait(ctx context.Context, args ...any) (any, error) {
	r.isWaiting.Store(true)
	return r.mute.Wait(ctx, args...)
}

func (r *replaced) Do(context.Context, ...any) (any, error) {
	if r.isAway.Load() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	granted := r.asked.Add(1) - 1
	return []any{granted, int64(0), int64(60_000), int64(60_000)}, nil
}

func TestAWaitLeavesAServerThatWasAway(t *testing.T) {
	doer := &replaced{}
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(doer, tokenbucket.RetryEvery(0), tokenbucket.LogTo(t.Logf)), hourly)
	ended := make(chan tokenbucket.Decision, 1)
	go func() {
		decision, _ := limiter.Take(ctx, "a", 1, tokenbucket.MaxWait(time.Hour))
		ended <- decision
	}()
	realserver.Eventually(t, "it waits", doer.isWaiting.Load)
	for _, isAway := range []bool{true, false} { // for less than a pulse
		doer.isAway.Store(isAway)
		if got := must(t)(limiter.Take(ctx, "b", 1)); got.Degraded != isAway {
			t.Fatalf("%+v", got)
		}
	}
	realserver.Eventually(t, "it asks again", func() bool { return len(ended) == 1 })
	if decision := <-ended; !decision.Allowed || decision.Degraded {
		t.Fatalf("%+v", decision)
	}
}

func TestALogThatBlocksHoldsUpNoWait(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	blocks := tokenbucket.LogTo(func(string, ...any) { <-never })
	limits := tokenbucket.NewServer(&mute{}, blocks)
	limiter := tokenbucket.NewLimiter(limits, hourly, tokenbucket.OnError(tokenbucket.FailClosed))
	ended := make(chan tokenbucket.Decision, 1)
	go func() {
		decision, _ := limiter.Take(ctx, "a", 1, tokenbucket.MaxWait(time.Hour))
		ended <- decision
	}()
	realserver.Eventually(t, "the wait ends", func() bool { return len(ended) == 1 })
	if decision := <-ended; !decision.Degraded {
		t.Fatalf("%+v", decision)
	}
}
