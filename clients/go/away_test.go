package tokenbucket_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"tokenbucket"
	"tokenbucket/internal/realserver"
	"tokenbucket/redigo"
	"tokenbucket/tokenbuckettest"
)

// lines are what was logged.
type lines struct {
	mutex sync.Mutex
	all   []string
}

func (l *lines) printf(format string, args ...any) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.all = append(l.all, fmt.Sprintf(format, args...))
}

// expect compares what has been logged with the beginnings of lines.
func (l *lines) expect(t *testing.T, parts ...string) {
	t.Helper()
	l.mutex.Lock()
	defer l.mutex.Unlock()
	matches := len(l.all) == len(parts)
	for i := 0; matches && i < len(parts); i++ {
		matches = strings.Contains(l.all[i], parts[i])
	}
	if !matches {
		t.Fatalf("logged %q, want %q", l.all, parts)
	}
}

// eventually asks until it is so: half a minute is long enough for any machine.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within half a minute", what)
		}
	}
}

func TestAnUnpluggedServer(t *testing.T) {
	const every = 50 * time.Millisecond
	server, log := realserver.Start(t), &lines{}
	limits := server.Limits(tokenbucket.RetryEvery(every), tokenbucket.LogTo(log.printf))
	open := tokenbucket.NewLimiter(limits, hourly)
	closed := tokenbucket.NewLimiter(limits, hourly, tokenbucket.OnError(tokenbucket.FailClosed))
	strict := tokenbucket.NewLimiter(limits, hourly, tokenbucket.OnError(tokenbucket.FailWithError))
	must(t)(open.Take(ctx, "a", 10))
	server.Stop()

	for i := 0; i < 3; i++ {
		if got := must(t)(open.Take(ctx, "a", 1)); !got.Allowed || !got.Degraded {
			t.Fatalf("open: %+v", got)
		}
		if got := must(t)(open.TakeUpTo(ctx, "a", 7)); got.Granted != 7 || !got.Degraded {
			t.Fatalf("open: %+v", got)
		}
		if got := must(t)(closed.Take(ctx, "a", 1)); got.Allowed || !got.Degraded || got.RetryAfter != every {
			t.Fatalf("closed: %+v", got)
		}
		if got := must(t)(closed.TakeUpTo(ctx, "a", 7)); got.Allowed || got.Granted != 0 {
			t.Fatalf("closed: %+v", got)
		}
		if _, err := strict.Take(ctx, "a", 1); !errors.Is(err, tokenbucket.ErrServerAway) {
			t.Fatalf("strict: %v", err)
		}
		time.Sleep(every) // so that some of them ask
	}
	log.expect(t, "cannot ask the server")

	server.Start()
	eventually(t, "limiting", func() bool { return !must(t)(open.Take(ctx, "b", 5)).Degraded })
	if got := must(t)(open.Take(ctx, "b", 6)); got.Allowed || got.Degraded {
		t.Fatalf("back, but not limiting: %+v", got)
	}
	log.expect(t, "cannot ask the server", "the server is back")
}

func TestARestartThatNobodyNoticedIsNone(t *testing.T) {
	server, log := realserver.Start(t), &lines{}
	limiter := tokenbucket.NewLimiter(server.Limits(tokenbucket.LogTo(log.printf)), hourly)
	var wait sync.WaitGroup
	for i := 0; i < 20; i++ { // several connections, which all die
		wait.Add(1)
		go func() { defer wait.Done(); must(t)(limiter.Take(ctx, "a", 1)) }()
	}
	wait.Wait()
	server.Stop()
	server.Start()
	if got := must(t)(limiter.Take(ctx, "a", 1)); got.Degraded || got.Remaining != 9 {
		t.Fatalf("%+v", got)
	}
	log.expect(t)
}

func TestWhatIsGivenIsNotGivenTwice(t *testing.T) {
	doer := &breaking{Server: tokenbuckettest.NewServer()}
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(doer, tokenbucket.LogTo(t.Logf)), hourly)
	must(t)(limiter.Take(ctx, "a", 8))
	doer.breakAfter = "TB.GIVE"
	if got := must(t)(limiter.Give(ctx, "a", 2)); !got.Degraded {
		t.Fatalf("%+v", got)
	}
	doer.Advance(time.Second)
	if got := must(t)(limiter.Peek(ctx, "a", 0)); got.Remaining != 4 {
		t.Fatalf("%+v", got)
	}
	doer.breakAfter = "TB.TAKE"
	if got := must(t)(limiter.Take(ctx, "a", 1)); got.Degraded || got.Remaining != 2 {
		t.Fatalf("a take is repeated, and pays twice: %+v", got)
	}
}

func TestWhatIsGivenAfterAnOutageArrives(t *testing.T) {
	doer := &breaking{Server: tokenbuckettest.NewServer()}
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(doer, tokenbucket.LogTo(t.Logf)), hourly)
	must(t)(limiter.Take(ctx, "a", 8))
	doer.Break(errors.New("no route"))
	must(t)(limiter.Take(ctx, "a", 1))
	doer.Break(nil)
	doer.Advance(time.Second)
	doer.dead = 3
	if got := must(t)(limiter.Give(ctx, "a", 2)); got.Degraded || got.Remaining != 4 {
		t.Fatalf("%+v", got)
	}
}

// breaking executes a command, and loses the connection before its reply.
type breaking struct {
	*tokenbuckettest.Server
	breakAfter string
	dead       int // connections, of which the next so many commands take one each
}

func (b *breaking) Do(ctx context.Context, args ...any) (any, error) {
	if b.dead > 0 {
		b.dead--
		return nil, net.ErrClosed
	}
	reply, err := b.Server.Do(ctx, args...)
	if args[0] == b.breakAfter {
		b.breakAfter = ""
		return nil, net.ErrClosed
	}
	return reply, err
}

// silent accepts connections and never answers.
func silent(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			if _, err := listener.Accept(); err != nil {
				return
			}
		}
	}()
	return listener.Addr().String()
}

func TestASilentServerIsWaitedForOnce(t *testing.T) {
	address, log := silent(t), &lines{}
	pool := &redis.Pool{Dial: func() (redis.Conn, error) { return redis.Dial("tcp", address) }}
	const timeout = 300 * time.Millisecond
	limits := tokenbucket.NewServer(redigo.From(pool), tokenbucket.Timeout(timeout), tokenbucket.RetryEvery(time.Hour), tokenbucket.LogTo(log.printf))
	limiter := tokenbucket.NewLimiter(limits, hourly)

	began := time.Now()
	must(t)(limiter.Take(ctx, "a", 1))
	if passed := time.Since(began); passed < timeout || passed > 20*timeout {
		t.Errorf("the first call took %v of a deadline of %v", passed, timeout)
	}
	began = time.Now()
	for i := 0; i < 1000; i++ {
		must(t)(limiter.Take(ctx, "a", 1))
	}
	if passed := time.Since(began); passed > 1000*timeout/10 {
		t.Errorf("1000 more calls took %v", passed)
	}
	log.expect(t, "cannot ask the server")
}

// stuck counts who waits for it, and heeds no context.
type stuck struct {
	asked int64
	let   chan struct{}
}

func (s *stuck) Do(context.Context, ...any) (any, error) {
	atomic.AddInt64(&s.asked, 1)
	<-s.let
	return nil, errors.New("no answer")
}

func TestOneCallAtATimeLooksWhetherTheServerIsBack(t *testing.T) {
	doer := &stuck{let: make(chan struct{})}
	defer close(doer.let)
	limits := tokenbucket.NewServer(doer, tokenbucket.Timeout(200*time.Millisecond), tokenbucket.RetryEvery(0), tokenbucket.LogTo(t.Logf))
	limiter := tokenbucket.NewLimiter(limits, hourly)
	must(t)(limiter.Take(ctx, "a", 1)) // the deadline holds although the client does not heed it
	before := atomic.LoadInt64(&doer.asked)
	var wait sync.WaitGroup
	began := time.Now()
	for i := 0; i < 50; i++ {
		wait.Add(1)
		go func() { defer wait.Done(); must(t)(limiter.Take(ctx, "a", 1)) }()
	}
	wait.Wait()
	// One probe lasts 200 ms, and only when it is over may another begin.
	most := 1 + int64(time.Since(began)/(200*time.Millisecond))
	if asked := atomic.LoadInt64(&doer.asked) - before; asked < 1 || asked > most {
		t.Fatalf("%d asked at the same time, want 1 to %d", asked, most)
	}
}

func TestACallerWhoGoesAwaySaysNothingAboutTheServer(t *testing.T) {
	doer := &stuck{let: make(chan struct{})}
	defer close(doer.let)
	log := &lines{}
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(doer, tokenbucket.Timeout(time.Minute), tokenbucket.LogTo(log.printf)), hourly)
	impatient, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if _, err := limiter.Take(impatient, "a", 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	log.expect(t)
}

func TestAProbeThatItsCallerBreaksOffIsFollowedByAnother(t *testing.T) {
	fake := &sometimesStuck{Server: tokenbuckettest.NewServer()}
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(fake, tokenbucket.LogTo(t.Logf)), hourly)
	fake.Break(errors.New("unplugged"))
	must(t)(limiter.Take(ctx, "a", 1))
	fake.Advance(time.Second)
	atomic.StoreInt32(&fake.stuck, 1)
	impatient, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if _, err := limiter.Take(impatient, "a", 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	atomic.StoreInt32(&fake.stuck, 0)
	fake.Break(nil)
	if got := must(t)(limiter.Take(ctx, "a", 1)); got.Degraded {
		t.Fatalf("%+v", got)
	}
}

type sometimesStuck struct {
	*tokenbuckettest.Server
	stuck int32 // 1 or 0
}

func (s *sometimesStuck) Do(ctx context.Context, args ...any) (any, error) {
	if atomic.LoadInt32(&s.stuck) == 1 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Server.Do(ctx, args...)
}

func TestAServerThatRefusesWritesIsNotAway(t *testing.T) {
	server, log := realserver.Start(t), &lines{}
	limiter := tokenbucket.NewLimiter(server.Limits(tokenbucket.LogTo(log.printf)), hourly)
	server.Do("CONFIG", "SET", "maxmemory", "1")
	for i := 0; i < 3; i++ {
		if got := must(t)(limiter.Take(ctx, "a", 1)); !got.Allowed || !got.Degraded {
			t.Fatalf("%+v", got)
		}
	}
	if got := must(t)(limiter.Peek(ctx, "a", 1)); got.Degraded {
		t.Fatalf("peeking writes nothing: %+v", got)
	}
	log.expect(t, "the server refuses, OnError decides such calls: OOM")
}

func TestAServerThatEndsEveryConnectionIsAway(t *testing.T) {
	fake := tokenbuckettest.NewServer()
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(fake, tokenbucket.LogTo(t.Logf)), hourly)
	fake.Break(io.EOF)
	if got := must(t)(limiter.Take(ctx, "a", 1)); !got.Degraded {
		t.Fatalf("%+v", got)
	}
}

func TestWhatServersSay(t *testing.T) {
	for line, degraded := range map[string]bool{
		"LOADING Redis is loading the dataset in memory": true,
		"CLUSTERDOWN The cluster is down":                true,
		"ERR max number of clients reached":              true,
		"READONLY You can't write against a read only":   true,
		"MISCONF Redis is configured to save":            true,
		"NOPERM this user has no permissions":            false,
		"WRONGPASS invalid username-password pair":       false,
		"ERR cost must be a decimal number":              false,
	} {
		fake := tokenbuckettest.NewServer()
		limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(fake, tokenbucket.LogTo(t.Logf)), hourly)
		fake.Break(fmt.Errorf("take: %w", tokenbuckettest.Error(line)))
		if got, err := limiter.Take(ctx, "a", 1); got.Degraded != degraded || (err == nil) != degraded {
			t.Errorf("%s: %+v, %v", line, got, err)
		}
	}
}
