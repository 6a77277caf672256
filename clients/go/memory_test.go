package tokenbucket_test

import (
	"context"
	"errors"
	"io"
	"math"
	"strconv"
	"testing"
	"time"

	"tokenbucket"
	"tokenbucket/tokenbuckettest"
)

// counted is the fake, and how often it was asked.
type counted struct {
	*tokenbuckettest.Server
	calls int
}

func (c *counted) Do(ctx context.Context, args ...any) (any, error) {
	c.calls++
	return c.Server.Do(ctx, args...)
}

func counting(t *testing.T, limit tokenbucket.Limit, options ...tokenbucket.LimiterOption) (*counted, *tokenbucket.Limiter) {
	fake := &counted{Server: tokenbuckettest.NewServer()}
	return fake, tokenbucket.NewLimiter(tokenbucket.NewServer(fake, tokenbucket.LogTo(t.Logf)), limit, options...)
}

func (c *counted) expect(t *testing.T, calls int) {
	t.Helper()
	if c.calls != calls {
		t.Fatalf("the server was asked %d times, want %d", c.calls, calls)
	}
}

func TestADenialIsRememberedForAsLongAsItHolds(t *testing.T) {
	fake, limiter := counting(t, tokenbucket.Limit{Capacity: 5, Rate: "1"}, tokenbucket.RememberDenials(10))
	must(t)(limiter.Take(ctx, "a", 5))
	denied := must(t)(limiter.Take(ctx, "a", 2))
	if err := errorOf(limiter.Take(ctx, "a", math.NaN())); !errors.Is(err, tokenbucket.ErrBadArgument) {
		t.Fatal(err)
	}
	fake.expect(t, 3)
	for waited := time.Duration(0); waited < denied.RetryAfter; waited += 500 * time.Millisecond {
		got := must(t)(limiter.Take(ctx, "a", 3))
		if got.Allowed || got.RetryAfter != denied.RetryAfter-waited {
			t.Fatalf("after %v: %+v", waited, got)
		}
		fake.Advance(500 * time.Millisecond)
	}
	fake.expect(t, 3)
	expectAllowed(t)(limiter.Take(ctx, "a", 2)) // refused for no longer than the server said
}

// fetching returns a limiter whose batch was fetched for a take of one token, and arrives once it is let.
func fetching() (limits *tokenbucket.Server, limiter *tokenbucket.Limiter, let chan bool, taken chan tokenbucket.Decision) {
	fake, fetched := tokenbuckettest.NewServer(), make(chan bool)
	let = make(chan bool)
	limits = tokenbucket.NewServer(instead(fake, "TB.TAKEUPTO", func(ctx context.Context, args ...any) (any, error) {
		reply, err := fake.Do(ctx, args...)
		fetched <- true
		<-let
		return reply, err
	}))
	limiter = tokenbucket.NewLimiter(limits, hourly, tokenbucket.Batch(5))
	taken = begin(ctx, limiter)
	<-fetched
	return limits, limiter, let, taken
}

func TestABatchThatIsFetchedWhileItsLimiterClosesGoesBack(t *testing.T) {
	_, limiter, let, taken := fetching()
	waits := &waitedOn{Context: ctx, let: let}
	if err := limiter.Close(waits); err != nil {
		t.Fatal(err)
	}
	if !waits.isOne {
		t.Fatal("closed before the fetch is over")
	}
	expectRemaining(t, limiter, "a", 9)
	expectDecided(t, <-taken)
}

// waitedOn is a context that lets something happen once a call waits.
type waitedOn struct {
	context.Context
	let   chan bool
	isOne bool
}

func (w *waitedOn) Done() <-chan struct{} {
	if !w.isOne {
		w.isOne = true
		close(w.let)
	}
	return nil
}

// What was fetched before a reset is none of the full bucket.
func TestABatchThatIsFetchedDuringAResetIsDropped(t *testing.T) {
	limits, limiter, let, taken := fetching()
	if err := limiter.Reset(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	expectAllowed(t)(tokenbucket.NewLimiter(limits, hourly).Take(ctx, "a", 10))
	close(let)
	expectDecided(t, <-taken)
	expectRemaining(t, limiter, "a", 0)
}

func TestABatchIsDroppedWhenItsBucketIsFull(t *testing.T) {
	// By the calendar at a full hour. The fake begins at midnight.
	for rate, idle := range map[string]time.Duration{"1": time.Hour, "10@h": time.Minute} {
		fake, limiter := counting(t, tokenbucket.Limit{Capacity: 10, Rate: rate}, tokenbucket.Batch(5))
		fake.Advance(59 * time.Minute)
		must(t)(limiter.Take(ctx, "a", 1))
		fake.Advance(idle)
		granted := 0
		for must(t)(limiter.Take(ctx, "a", 1)).Allowed {
			granted++
		}
		if granted != 10 {
			t.Fatalf("rate %s: %d granted at once of a bucket of 10", rate, granted)
		}
	}
}

func TestResetForgetsWhatIsRemembered(t *testing.T) {
	fake, limiter := counting(t, hourly, tokenbucket.Batch(4), tokenbucket.RememberDenials(3))
	must(t)(limiter.Take(ctx, "a", 1)) // three are left here
	must(t)(limiter.Take(ctx, "b", 0.5))
	must(t)(limiter.Take(ctx, "b", 9.9)) // denied
	for _, name := range []string{"a", "b"} {
		if err := limiter.Reset(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	expectAllowed(t)(limiter.Take(ctx, "b", 9.9))
	before := fake.calls
	if got := must(t)(limiter.Take(ctx, "a", 1)); got.Remaining != 9 {
		t.Fatalf("%+v", got)
	}
	fake.expect(t, before+1)
}

// A name has one bucket, whatever its limits.
func TestAGiveUnderAnotherLimitEndsADenial(t *testing.T) {
	_, limiter := counting(t, hourly, tokenbucket.RememberDenials(3))
	must(t)(limiter.Take(ctx, "a", 10))
	must(t)(limiter.Take(ctx, "a", 5)) // denied
	must(t)(limiter.With(tokenbucket.Limit{Capacity: 5, Rate: "5/h"}).Give(ctx, "a", 5))
	expectAllowed(t)(limiter.Take(ctx, "a", 5))
}

func TestEachLimitOfANameHasABatch(t *testing.T) {
	fake, limiter := counting(t, hourly, tokenbucket.Batch(4))
	other := limiter.With(tokenbucket.Limit{Capacity: 9, Rate: "9/h"})
	for i := 0; i < 3; i++ {
		expectAllowed(t)(limiter.Take(ctx, "a", 1))
		expectAllowed(t)(other.Take(ctx, "a", 1))
	}
	fake.expect(t, 2)
	if err := limiter.Close(ctx); err != nil {
		t.Fatal(err)
	}
	expectRemaining(t, limiter, "a", 4)
}

func TestCloseEndsTheDenialsOfBatches(t *testing.T) {
	_, limiter := counting(t, hourly, tokenbucket.Batch(4), tokenbucket.RememberDenials(3))
	for _, cost := range []float64{4, 4, 3} { // the last is denied, and two are left here
		must(t)(limiter.Take(ctx, "a", cost))
	}
	if err := limiter.Close(ctx); err != nil {
		t.Fatal(err)
	}
	expectAllowed(t)(limiter.Take(ctx, "a", 2))
}

func TestCloseReportsWhatItCannotGiveBack(t *testing.T) {
	for _, c := range []struct {
		cause error
		want  error
	}{{tokenbucket.Unsent(errors.New("unplugged")), tokenbucket.ErrServerAway}, {io.EOF, tokenbucket.ErrReplyLost}, {nil, nil}} {
		fake, limiter := counting(t, hourly, tokenbucket.Batch(4))
		must(t)(limiter.Take(ctx, "a", 1))
		fake.Break(c.cause)
		if err := limiter.Close(ctx); !errors.Is(err, c.want) {
			t.Errorf("%v: %v, want %v", c.cause, err, c.want)
		}
	}
}

func TestNothingIsDecidedHereAfterTheServerWasClosed(t *testing.T) {
	limits := tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(limits, hourly, tokenbucket.Batch(4), tokenbucket.RememberDenials(3))
	must(t)(limiter.Take(ctx, "a", 1)) // three are left here
	must(t)(limiter.Take(ctx, "b", 9.5))
	must(t)(limiter.Take(ctx, "b", 9.5)) // denied
	if err := limits.Close(); err != nil {
		t.Fatal(err)
	}
	for name, cost := range map[string]float64{"a": 1, "b": 9.5} {
		if _, err := limiter.Take(ctx, name, cost); !errors.Is(err, tokenbucket.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestADenialWaitsNoLongerForAFetchThanTheTimeout(t *testing.T) {
	fetching, never := make(chan struct{}), make(chan struct{})
	defer close(never)
	far := doing(func(_ context.Context, args ...any) (any, error) {
		if args[0] == "TB.TAKEUPTO" {
			close(fetching)
			<-never
		}
		return denied, nil
	})
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(far), hourly, tokenbucket.Batch(2))
	go func() { _, _ = limiter.Take(ctx, "a", 1) }()
	<-fetching
	soon, leave := context.WithTimeout(ctx, 900*time.Millisecond)
	defer leave()
	must(t)(limiter.Take(soon, "a", 1))
}

// The node of a batch that makes room may be slow, and that of the call is another.
func TestACallWaitsForNoBatchThatMakesRoom(t *testing.T) {
	fake, let, gave := tokenbuckettest.NewServer(), make(chan bool), make(chan error)
	limits := tokenbucket.NewServer(instead(fake, "TB.GIVE", func(ctx context.Context, args ...any) (any, error) {
		<-let
		reply, err := fake.Do(context.Background(), args...)
		if err == nil {
			err = ctx.Err()
		}
		gave <- err
		return reply, err
	}))
	limiter := tokenbucket.NewLimiter(limits, hourly, tokenbucket.Batch(2))
	for i := 0; i < 10_000; i++ {
		must(t)(limiter.Take(ctx, strconv.Itoa(i), 1))
	}
	hurried, leave := context.WithTimeout(ctx, 10*time.Second)
	expectAllowed(t)(limiter.Take(hurried, "another", 1))
	leave()
	close(let)
	if err := <-gave; err != nil {
		t.Fatal(err)
	}
	expectRemaining(t, limiter, "0", 9)
}

func TestCallsDuringAFetchAreNotDeniedWhatItBrings(t *testing.T) {
	for _, timeout := range []time.Duration{5 * time.Second, 0} {
		fake, fetched := tokenbuckettest.NewServer(), make(chan struct{})
		far := instead(fake, "TB.TAKEUPTO", func(ctx context.Context, args ...any) (any, error) {
			reply, err := fake.Do(ctx, args...)
			close(fetched)
			time.Sleep(20 * time.Millisecond)
			return reply, err
		})
		server := tokenbucket.NewServer(far, tokenbucket.Timeout(timeout))
		limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 50, Rate: "1/h"}, tokenbucket.Batch(50))
		var taken []chan tokenbucket.Decision
		for i := 0; i < 50; i++ {
			taken = append(taken, begin(ctx, limiter))
			<-fetched
		}
		for _, one := range taken {
			expectDecided(t, <-one)
		}
	}
}

func TestATakeAllocatesLittle(t *testing.T) {
	var reply any = granted
	limits := tokenbucket.NewServer(doing(func(context.Context, ...any) (any, error) { return reply, nil }))
	limiter := tokenbucket.NewLimiter(limits, tokenbucket.Limit{Capacity: 1e6, Rate: "1e6"})
	if times := testing.AllocsPerRun(1000, func() { _, _ = limiter.Take(ctx, "user:42", 1) }); times > 5 {
		t.Fatal(times)
	}
}
