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
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tokenbucket"
	"tokenbucket/internal/realserver"
	"tokenbucket/tokenbuckettest"
)

// doing is a Doer.
type doing func(ctx context.Context, args ...any) (any, error)

func (d doing) Do(ctx context.Context, args ...any) (any, error) { return d(ctx, args...) }

// instead is a Doer but for one command.
func instead(of tokenbucket.Doer, name string, do doing) doing {
	return func(ctx context.Context, args ...any) (any, error) {
		if args[0] == name {
			return do(ctx, args...)
		}
		return of.Do(ctx, args...)
	}
}

func failing(err error) doing { return func(context.Context, ...any) (any, error) { return nil, err } }

// serverOf asks until the test ends, and lets a slow machine answer.
func serverOf(t *testing.T, doer tokenbucket.Doer) *tokenbucket.Server {
	limits := tokenbucket.NewServer(doer, tokenbucket.Timeout(5*time.Second), tokenbucket.RetryEvery(20*time.Millisecond), tokenbucket.LogTo(t.Logf))
	t.Cleanup(func() { limits.Close() })
	return limits
}

// waiting is a WaitingDoer.
type waiting struct {
	doing
	wait doing
}

func (w waiting) Wait(ctx context.Context, args ...any) (any, error) { return w.wait(ctx, args...) }

var (
	granted = []any{int64(1), int64(9), int64(0), int64(0)}
	denied  = []any{int64(0), int64(0), int64(60_000), int64(60_000)}
)

var refuse = failing(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})

// silent lets a call wait until it leaves.
func silent(ctx context.Context, _ ...any) (any, error) {
	<-ctx.Done()
	return nil, net.ErrClosed
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
		return granted, nil
	case <-time.After(time.Until(deadline)):
		return nil, os.ErrDeadlineExceeded
	}
}

func TestACallThatWasSentEndsWithItsReply(t *testing.T) {
	doer, log := &stuck{let: make(chan struct{})}, &realserver.Log{}
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(doer, tokenbucket.Timeout(time.Minute), tokenbucket.LogTo(log.Printf)), hourly)
	impatient, cancel := context.WithCancel(ctx)
	ended := begin(impatient, limiter)
	realserver.Eventually(t, "it is sent", func() bool { return doer.asked.Load() == 1 })
	cancel()
	close(doer.let)
	expectDecided(t, <-ended)
	if _, err := limiter.Take(impatient, "a", 1); !errors.Is(err, context.Canceled) || doer.asked.Load() != 1 {
		t.Fatal(err)
	}
	log.Expect(t)
}

func TestACallersDeadlineIsNoTimeoutOfTheServer(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Hour} {
		log := &realserver.Log{}
		limits := tokenbucket.NewServer(doing(func(ctx context.Context, _ ...any) (any, error) {
			deadline, ok := ctx.Deadline()
			if ok != (timeout > 0) || ok && time.Until(deadline) < 30*time.Minute {
				return nil, os.ErrDeadlineExceeded
			}
			return granted, nil
		}), tokenbucket.Timeout(timeout), tokenbucket.LogTo(log.Printf))
		hurried, end := context.WithTimeout(ctx, 20*time.Minute)
		if got := must(t)(tokenbucket.NewLimiter(limits, hourly).Take(hurried, "a", 1)); got.Degraded {
			t.Errorf("timeout %v: %+v", timeout, got)
		}
		end()
		log.Expect(t)
	}
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
		{dial(says("A socket operation was attempted to an unreachable network.")), isAway}, {&net.OpError{Op: "read", Err: says("A reset.")}, isAway},
		{tokenbucket.Unsent(says("VPN tunnel is down")), isAway}, {tokenbucket.Unanswered(says("VPN tunnel is down")), isAway},
		{says("CLUSTERDOWN The cluster is down"), isAway}, {says("CLUSTERDOWN Hash slot not served"), isRefused},
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
		} else if !got.Degraded && !errors.Is(err, c.err) {
			t.Errorf("%v hides the client's own error %v", err, c.err)
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

func TestAWaitThatGetsNoConnectionAsksAgain(t *testing.T) {
	server := realserver.Start(t)
	for name, wait := range map[string]doing{
		"refused": refuse,
		"panics":  func(context.Context, ...any) (any, error) { panic("broken") },
	} {
		log := &realserver.Log{}
		limits := tokenbucket.NewServer(waiting{server.Doer().Do, wait}, tokenbucket.Timeout(5*time.Second), tokenbucket.LogTo(log.Printf))
		limiter := tokenbucket.NewLimiter(limits, tokenbucket.Limit{Capacity: 1, Rate: "1"})
		must(t)(limiter.Take(ctx, name, 1))
		if got := must(t)(limiter.Take(ctx, name, 1, tokenbucket.MaxWait(time.Minute))); !got.Allowed || got.Degraded {
			t.Fatalf("%s: %+v", name, got)
		}
		log.Expect(t)
	}
}

func TestARefusedConnectionIsNoSignOfLife(t *testing.T) {
	log := &realserver.Log{}
	limits := tokenbucket.NewServer(refuse, tokenbucket.RetryEvery(0), tokenbucket.LogTo(log.Printf))
	limiter := tokenbucket.NewLimiter(limits, hourly)
	for i := 0; i < 100; i++ {
		must(t)(limiter.Take(ctx, "a", 1))
	}
	log.Expect(t, "cannot ask the server")
}

func TestTheNextCallWorksAfterAnyEnd(t *testing.T) {
	for name, hook := range map[string]func(){"panic": func() { panic("broken") }, "exit": runtime.Goexit} {
		isBroken := false
		doer := doing(func(context.Context, ...any) (any, error) {
			if isBroken {
				hook()
			}
			return granted, nil
		})
		for kind, limiter := range map[string]*tokenbucket.Limiter{
			"plain": tokenbucket.NewLimiter(tokenbucket.NewServer(doer), hourly),
			"batch": tokenbucket.NewLimiter(tokenbucket.NewServer(doer), hourly, tokenbucket.Batch(2)),
		} {
			isBroken = true
			for i := 0; i < 100; i++ { // more than may ask at a time
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					defer func() { _ = recover() }()
					_, _ = limiter.Take(ctx, "a", 1)
				}()
				<-ended
			}
			isBroken = false
			if got := must(t)(limiter.Take(ctx, "a", 1)); !got.Allowed || got.Degraded {
				t.Errorf("%s, %s: %+v", name, kind, got)
			}
		}
	}
}

func TestHooksThatPanicChangeNothing(t *testing.T) {
	broken := tokenbucket.LogTo(func(string, ...any) { panic("log") })
	told := tokenbucket.OnDecision(func(string, tokenbucket.Limit, tokenbucket.Decision, time.Duration) { panic("told") })
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(refuse, broken), hourly, told)
	for i := int64(1); i <= 3; i++ {
		if got := must(t)(limiter.Take(ctx, "a", 1)); !got.Allowed || got.Remaining != 10-i {
			t.Fatalf("%+v", got)
		}
	}
}

func TestAHoldThatAWaitMayHaveMadeIsSettled(t *testing.T) {
	server := realserver.Start(t)
	impatient, leave := context.WithCancel(ctx)
	doer := waiting{server.Doer().Do, func(ctx context.Context, args ...any) (any, error) {
		_, _ = server.Doer().Do(ctx, args...)
		leave()
		return nil, io.EOF // when it was executed
	}}
	limiter := tokenbucket.NewLimiter(serverOf(t, doer), slot)
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
	do func(ctx context.Context, name any) error
}

func (n *nodes) Do(ctx context.Context, args ...any) (any, error) {
	return granted, n.do(ctx, args[0])
}
func (n *nodes) DoFor(ctx context.Context, _ string, args ...any) (any, error) {
	return n.Do(ctx, args...)
}
func (n *nodes) NodeOf(ctx context.Context, _ string) (tokenbucket.Doer, error) {
	return n, nil
}

func (n *nodes) Has(tokenbucket.Doer) bool { return true }

func TestARefusedGiveIsNotLost(t *testing.T) {
	for _, c := range []struct {
		err    error
		isLost bool
	}{
		{errors.New("NOREPLICAS Not enough good replicas to write."), false}, {errors.New("BUSY Redis is busy running a script."), false}, {io.EOF, true},
	} {
		server := func() *tokenbucket.Server { return tokenbucket.NewServer(failing(c.err), tokenbucket.LogTo(t.Logf)) }
		if got := must(t)(tokenbucket.NewLimiter(server(), hourly).Give(ctx, "a", 1)); !got.Degraded || got.Lost != c.isLost {
			t.Errorf("%v: %+v", c.err, got)
		}
		_, err := tokenbucket.NewLimiter(server(), hourly, tokenbucket.OnError(tokenbucket.FailWithError)).Charge(ctx, "a", 1)
		if errors.Is(err, tokenbucket.ErrReplyLost) != c.isLost || errors.Is(err, tokenbucket.ErrServerAway) == c.isLost {
			t.Errorf("%v: %v", c.err, err)
		}
	}
}

func TestOneReplyThatDoesNotComeIsNoOutage(t *testing.T) {
	for name, call := range map[string]func(*tokenbucket.Limiter, context.Context) (tokenbucket.Decision, error){
		"its caller left": func(l *tokenbucket.Limiter, ctx context.Context) (tokenbucket.Decision, error) {
			return l.Take(ctx, "a", 1)
		},
		"it must happen once": func(l *tokenbucket.Limiter, _ context.Context) (tokenbucket.Decision, error) {
			return l.Give(ctx, "a", 1)
		},
	} {
		leaving, leave := context.WithCancel(ctx)
		log, doer := &realserver.Log{}, &nodes{func(_ context.Context, command any) error {
			if command == "PING" || leaving.Err() != nil {
				return nil
			}
			leave()
			return os.ErrDeadlineExceeded
		}}
		limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(doer, tokenbucket.LogTo(log.Printf)), hourly)
		_, _ = call(limiter, leaving)
		if got := must(t)(limiter.Take(ctx, "a", 1)); got.Degraded {
			t.Errorf("%s: %+v", name, got)
		}
		log.Expect(t, "does not decide a call")
	}
}

// timed is a cluster whose time passes only when calls sleep, and with each reply.
type timed struct {
	*nodes
	*tokenbuckettest.Server
}

func (c timed) Do(ctx context.Context, args ...any) (any, error) { return c.nodes.Do(ctx, args...) }

// Its nodes reply to PING as ever.
func TestANodeOfAClusterThatIsDownIsAway(t *testing.T) {
	log, down := &realserver.Log{}, &nodes{func(_ context.Context, command any) error {
		if command == "PING" {
			return nil
		}
		return errors.New("CLUSTERDOWN The cluster is down")
	}}
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(down, tokenbucket.LogTo(log.Printf)), hourly)
	must(t)(limiter.Take(ctx, "a", 1))
	log.Expect(t, "cannot ask the node")
}

func TestASlotThatMovesForLongIsNoMistake(t *testing.T) {
	for _, c := range []struct {
		timeout, latency time.Duration
		sent             int
	}{
		{timeout: 100 * time.Millisecond, sent: 10},
		{timeout: 100 * time.Millisecond, latency: 40 * time.Millisecond, sent: 3},
		{timeout: 0, sent: 10},
	} {
		sent, fake := 0, tokenbuckettest.NewServer()
		began := fake.Now()
		moving := timed{&nodes{func(context.Context, any) error {
			sent++
			fake.Advance(c.latency)
			return errors.New("ASK 7 127.0.0.1:7001")
		}}, fake}
		limits := tokenbucket.NewServer(moving, tokenbucket.Timeout(c.timeout), tokenbucket.LogTo(t.Logf))
		limiter := tokenbucket.NewLimiter(limits, hourly, tokenbucket.OnError(tokenbucket.FailClosed))
		if got := must(t)(limiter.Take(ctx, "a", 1)); got.Allowed || !got.Degraded || sent != c.sent {
			t.Errorf("%+v: %+v, sent %d times", c, got, sent)
		}
		if took := fake.Now().Sub(began); took < 90*time.Millisecond || took > 140*time.Millisecond {
			t.Errorf("%+v: took %v", c, took)
		}
	}
}

// The first reply is lost, then the slot moves, and the caller leaves while it does.
func TestAHoldWhoseSlotMovesAfterALostReplyIsSettled(t *testing.T) {
	leaving, leave := context.WithCancel(ctx)
	asked, settled := 0, make(chan any, 10)
	moving := &nodes{func(_ context.Context, name any) error {
		switch name {
		case "TB.MSETTLE":
			settled <- name
		case "TB.HOLDANY":
			if asked++; asked == 1 {
				return io.EOF // when it was executed
			}
			leave()
			return errors.New("TRYAGAIN the slot moves")
		}
		return nil
	}}
	limits := tokenbucket.NewServer(moving, tokenbucket.Timeout(time.Hour), tokenbucket.LogTo(t.Logf))
	defer limits.Close()
	joint := tokenbucket.NewJointLimiter(limits, map[string]tokenbucket.Limit{"a": slot, "b": slot})
	if _, err := joint.HoldAny(leaving, "x", []map[string]float64{{"a": 1}, {"b": 1}}, time.Hour); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	realserver.Eventually(t, "the hold that the server may have is settled", func() bool { return len(settled) > 0 })
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

// crowded makes further calls while it is asked, time passing before each.
type crowded struct {
	*tokenbuckettest.Server
	connections int
	next        func()
	asked       int
}

func (c *crowded) Address() string  { return "" }
func (c *crowded) Connections() int { return c.connections }
func (c *crowded) Close() error     { return nil }
func (c *crowded) Do(ctx context.Context, args ...any) (any, error) {
	if args[0] != "PING" {
		c.asked++
		c.next()
	}
	return c.Server.Do(ctx, args...)
}

// split is a server with one connection, which has some keys of a slot that moves.
type split struct{ crowded }

func (s *split) Do(ctx context.Context, args ...any) (any, error) {
	if args[0] == "TB.MTAKE" {
		s.next()
		return nil, errors.New("TRYAGAIN Multiple keys request during rehashing of slot")
	}
	return s.Server.Do(ctx, args...)
}

func TestCallsThatAreTriedAgainWhileASlotMovesKeepNoConnection(t *testing.T) {
	tried := make(chan bool, 100)
	server := &split{crowded{Server: tokenbuckettest.NewServer(), connections: 1, next: func() { tried <- true }}}
	limits := tokenbucket.NewServer(struct{ tokenbucket.PooledDoer }{server}, tokenbucket.Timeout(time.Hour), tokenbucket.LogTo(t.Logf))
	within, leave := context.WithCancel(ctx)
	ended := make(chan error)
	go func() {
		_, err := tokenbucket.NewJointLimiter(limits, map[string]tokenbucket.Limit{"a": slot}).TakeAll(within, "x", map[string]float64{"a": 1})
		ended <- err
	}()
	<-tried
	if decision := must(t)(tokenbucket.NewLimiter(limits, hourly).Take(ctx, "other", 1)); decision.Degraded {
		t.Fatalf("%+v", decision)
	}
	leave()
	if err := <-ended; err != context.Canceled {
		t.Fatal(err)
	}
}

func TestHowManyCallsTryAServerThatIsAway(t *testing.T) {
	const calls = 10
	for name, c := range map[string]struct {
		connections  int
		pause, steps time.Duration
		asked        int
	}{
		"it has just failed":             {calls, 0, 0, 0},
		"time to try":                    {calls, 500 * time.Millisecond, 0, 1},
		"not yet as long again":          {calls, 999 * time.Millisecond, 0, 1},
		"nobody has tried for long":      {calls, time.Second, 0, calls},
		"a steady stream":                {calls, 500 * time.Millisecond, 300 * time.Millisecond, 4},
		"a try has the only connection":  {1, 500 * time.Millisecond, 0, 1},
		"a long one has it, in a stream": {1, 500 * time.Millisecond, 300 * time.Millisecond, 1},
	} {
		for _, isBack := range []bool{true, false} {
			log, server := &realserver.Log{}, &crowded{Server: tokenbuckettest.NewServer(), connections: c.connections, next: func() {}}
			limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(server, tokenbucket.LogTo(log.Printf)), hourly)
			server.Break(errors.New("unplugged"))
			must(t)(limiter.Take(ctx, "a", 0))
			if isBack {
				server.Break(nil)
			}
			server.Advance(c.pause)
			left := calls
			server.next = func() {
				for left > 0 {
					left--
					must(t)(limiter.Take(ctx, "a", 0))
					server.Advance(c.steps)
				}
			}
			server.asked = 0
			if server.next(); server.asked != c.asked {
				t.Errorf("%s: %d calls asked, want %d", name, server.asked, c.asked)
			}
			if want := []string{"cannot ask the server", "the server is back"}; isBack && c.asked > 0 {
				log.Expect(t, want...)
			} else {
				log.Expect(t, want[0])
			}
		}
	}
}

func begin(ctx context.Context, limiter *tokenbucket.Limiter, options ...tokenbucket.CallOption) (ended chan tokenbucket.Decision) {
	ended = make(chan tokenbucket.Decision, 1)
	go func() {
		decision, _ := limiter.Take(ctx, "a", 1, options...)
		ended <- decision
	}()
	return ended
}

func TestAWaitLeavesAServerThatWasAway(t *testing.T) {
	var isAway, isWaiting atomic.Bool
	doer := waiting{
		func(ctx context.Context, args ...any) (any, error) {
			switch {
			case isAway.Load():
				return refuse(ctx, args...)
			case isWaiting.Load(): // at a server that this one has replaced
				return granted, nil
			}
			return denied, nil
		},
		func(ctx context.Context, args ...any) (any, error) {
			isWaiting.Store(true)
			return silent(ctx, args...)
		},
	}
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(doer, tokenbucket.RetryEvery(0), tokenbucket.LogTo(t.Logf)), hourly)
	ended := begin(ctx, limiter, tokenbucket.MaxWait(time.Hour))
	realserver.Eventually(t, "it waits", isWaiting.Load)
	for _, away := range []bool{true, false} { // for less than a pulse
		isAway.Store(away)
		if got := must(t)(limiter.Take(ctx, "b", 1)); got.Degraded != away {
			t.Fatalf("%+v", got)
		}
	}
	expectDecided(t, <-ended)
}

func TestALogThatBlocksHoldsUpNoWait(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	var asked atomic.Int64
	doer := waiting{func(context.Context, ...any) (any, error) {
		if asked.Add(1) > 1 {
			return nil, os.ErrDeadlineExceeded
		}
		return denied, nil
	}, silent}
	limits := tokenbucket.NewServer(doer, tokenbucket.LogTo(func(string, ...any) { <-never }))
	limiter := tokenbucket.NewLimiter(limits, hourly, tokenbucket.OnError(tokenbucket.FailClosed))
	if decision := <-begin(ctx, limiter, tokenbucket.MaxWait(time.Hour)); !decision.Degraded {
		t.Fatalf("%+v", decision)
	}
}

// An attacker who has more names than the local limiter keeps buckets gets back none that is empty.
func TestManyNamesDoNotRefillABucketOfTheLocalLimiter(t *testing.T) {
	fake := tokenbuckettest.NewServer()
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(fake, tokenbucket.LogTo(t.Logf)), hourly)
	fake.Break(errors.New("unplugged"))
	expectAllowed(t)(limiter.Take(ctx, "a", 10))
	for i := 0; i < 10_001; i++ {
		expectAllowed(t)(limiter.Take(ctx, fmt.Sprint(i), 1))
	}
	if got := must(t)(limiter.Take(ctx, "a", 1)); got.Allowed || !got.Degraded {
		t.Fatalf("%+v", got)
	}
	for i := 0; i < 10; i++ { // a name that finds no room is limited while it is used
		if got := must(t)(limiter.Take(ctx, "new", 5)); got.Allowed != (i < 2) {
			t.Fatalf("call %d: %+v", i, got)
		}
	}
}

// dealt is a cluster whose nodes have a name each.
type dealt map[string]*stuck

func (d dealt) Do(context.Context, ...any) (any, error) { return nil, errors.New("no node is named") }
func (d dealt) DoFor(ctx context.Context, key string, args ...any) (any, error) {
	return d[key].Do(ctx, args...)
}
func (d dealt) NodeOf(_ context.Context, key string) (tokenbucket.Doer, error) { return d[key], nil }

func (d dealt) Has(tokenbucket.Doer) bool { return true }

func TestASlowNodeTakesNoTurnsOfOthers(t *testing.T) {
	slow, fast := &stuck{let: make(chan struct{})}, &stuck{let: make(chan struct{})}
	close(fast.let)
	limits := tokenbucket.NewServer(dealt{"slow": slow, "fast": fast}, tokenbucket.Timeout(time.Minute), tokenbucket.LogTo(t.Logf))
	limiter := tokenbucket.NewLimiter(limits, hourly, tokenbucket.Prefix(""))
	const calls = 100
	var over sync.WaitGroup
	for i := 0; i < calls; i++ {
		over.Add(1)
		go func() {
			defer over.Done()
			_, _ = limiter.Take(ctx, "slow", 1)
		}()
	}
	realserver.Eventually(t, "its turns are taken", func() bool { return slow.asked.Load() == 64 })
	if got := must(t)(limiter.Take(ctx, "fast", 1)); got.Degraded {
		t.Errorf("%+v", got)
	}
	close(slow.let)
	over.Wait()
}
