package tokenbucket_test

import (
	"context"
	"fmt"
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
	fake.expect(t, 2)
	for waited := time.Duration(0); waited < denied.RetryAfter; waited += 500 * time.Millisecond {
		got := must(t)(limiter.Take(ctx, "a", 3))
		if got.Allowed || got.RetryAfter != denied.RetryAfter-waited {
			t.Fatalf("after %v: %+v", waited, got)
		}
		fake.Advance(500 * time.Millisecond)
	}
	fake.expect(t, 2)
	expectAllowed(t)(limiter.Take(ctx, "a", 2)) // refused for no longer than the server said
}

func TestADenialSaysNothingAboutASmallerCostOrAnotherLimit(t *testing.T) {
	_, limiter := counting(t, tokenbucket.Limit{Capacity: 5, Rate: "1"}, tokenbucket.RememberDenials(10))
	must(t)(limiter.Take(ctx, "a", 3))
	must(t)(limiter.Take(ctx, "a", 5))
	expectAllowed(t)(limiter.Take(ctx, "a", 2))
	must(t)(limiter.Take(ctx, "a", 1))
	faster := limiter.With(tokenbucket.Limit{Capacity: 5, Rate: "1000"})
	if got := must(t)(faster.Peek(ctx, "a", 1)); got.RetryAfter != time.Millisecond {
		t.Fatalf("%+v", got)
	}
	if got := must(t)(faster.Take(ctx, "a", 1)); got.RetryAfter != time.Millisecond {
		t.Fatalf("%+v", got)
	}
}

func TestDenialsAreBounded(t *testing.T) {
	fake, limiter := counting(t, tokenbucket.Limit{Capacity: 1, Rate: "1/h"}, tokenbucket.RememberDenials(3))
	for i := 0; i < 5; i++ {
		must(t)(limiter.Take(ctx, fmt.Sprint(i), 1))
		must(t)(limiter.Take(ctx, fmt.Sprint(i), 1))
	}
	asked := fake.calls
	for i := 4; i >= 0; i-- {
		must(t)(limiter.Take(ctx, fmt.Sprint(i), 1))
		if i >= 2 {
			fake.expect(t, asked) // the latest three
		}
	}
	fake.expect(t, asked+2)
}

func TestWhatIsGivenEndsADenial(t *testing.T) {
	_, limiter := counting(t, tokenbucket.Limit{Capacity: 1, Rate: "1/h"}, tokenbucket.RememberDenials(3))
	must(t)(limiter.Take(ctx, "a", 1))
	must(t)(limiter.Take(ctx, "a", 1))
	must(t)(limiter.Give(ctx, "a", 1))
	expectAllowed(t)(limiter.Take(ctx, "a", 1))
}

func TestASettledHoldEndsADenial(t *testing.T) {
	_, limiter := counting(t, tokenbucket.Limit{Capacity: 1, Rate: "1/h"}, tokenbucket.RememberDenials(3))
	held := hold(t, limiter, 1, time.Hour)
	must(t)(limiter.Take(ctx, "a", 1))
	use(t, held, 0)
	settle(t, held)
	expectAllowed(t)(limiter.Take(ctx, "a", 1))
}

func TestThePolicysDenialsAreNotRemembered(t *testing.T) {
	fake, limiter := counting(t, hourly, tokenbucket.RememberDenials(3), tokenbucket.OnError(tokenbucket.FailClosed))
	fake.Break(tokenbuckettest.Error("OOM command not allowed"))
	if got := must(t)(limiter.Take(ctx, "a", 1)); got.Allowed {
		t.Fatalf("%+v", got)
	}
	fake.Break(nil)
	expectAllowed(t)(limiter.Take(ctx, "a", 1))
}

func TestABatchIsFetchedOnce(t *testing.T) {
	fake, limiter := counting(t, hourly, tokenbucket.Batch(5))
	for i := int64(1); i <= 5; i++ {
		if got := must(t)(limiter.Take(ctx, "a", 1)); !got.Allowed || got.Remaining != 10-i {
			t.Fatalf("%d: %+v", i, got)
		}
	}
	fake.expect(t, 1)
	if got := must(t)(limiter.Take(ctx, "a", 4)); !got.Allowed || got.Remaining != 1 {
		t.Fatalf("%+v", got)
	}
	fake.expect(t, 2)
	denied := must(t)(limiter.Take(ctx, "a", 3))
	if denied.Allowed || denied.RetryAfter != 2*6*time.Minute {
		t.Fatalf("two more take 12 minutes: %+v", denied)
	}
	fake.Advance(denied.RetryAfter)
	expectAllowed(t)(limiter.Take(ctx, "a", 3))
}

func TestWhatABatchHasLeftComesBack(t *testing.T) {
	_, limiter := counting(t, hourly, tokenbucket.Batch(5))
	must(t)(limiter.Take(ctx, "a", 1))
	expectRemaining(t, limiter, "a", 5)
	if err := limiter.Close(ctx); err != nil {
		t.Fatal(err)
	}
	expectRemaining(t, limiter, "a", 9)
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

// Whatever batches do, no more is granted than flowed in.
func TestBatchesAreNeverGrantedTooMuch(t *testing.T) {
	fake, limiter := counting(t, tokenbucket.Limit{Capacity: 7, Rate: "3"}, tokenbucket.Batch(5), tokenbucket.RememberDenials(3))
	other := tokenbucket.NewLimiter(tokenbucket.NewServer(fake), limiter.Limit())
	granted := 0.0
	for i := 0; i < 2000; i++ {
		for _, l := range []*tokenbucket.Limiter{limiter, other} {
			cost := float64(1 + i%3)
			if must(t)(l.Take(ctx, "a", cost)).Allowed {
				granted += cost
			}
		}
		fake.Advance(time.Duration(i%7) * 100 * time.Millisecond)
		if most := 7 + 3*fake.Now().Sub(tokenbuckettest.NewServer().Now()).Seconds(); granted > most {
			t.Fatalf("%v granted after call %d, at most %v flowed in", granted, i, most)
		}
	}
}

func TestAnyCostThatIsNoPartOfABatchIsAskedFor(t *testing.T) {
	fake, limiter := counting(t, hourly, tokenbucket.Batch(3))
	for _, cost := range []float64{0.5, 4, 0} {
		before := fake.calls
		must(t)(limiter.Take(ctx, "a", cost))
		fake.expect(t, before+1)
	}
	expectRemaining(t, limiter, "a", 5)
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

func TestADenialOfABatchIsRememberedToo(t *testing.T) {
	fake, limiter := counting(t, tokenbucket.Limit{Capacity: 1, Rate: "1"}, tokenbucket.Batch(4), tokenbucket.RememberDenials(3))
	must(t)(limiter.Take(ctx, "a", 1))
	must(t)(limiter.Take(ctx, "a", 1))
	fake.expect(t, 2)
	for i := 0; i < 9; i++ {
		must(t)(limiter.Take(ctx, "a", 1))
		fake.Advance(100 * time.Millisecond)
	}
	fake.expect(t, 2)
	fake.Advance(100 * time.Millisecond)
	expectAllowed(t)(limiter.Take(ctx, "a", 1))
}
