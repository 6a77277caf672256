package tokenbucket_test

import (
	"context"
	"errors"
	"math"
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tokenbucket"
	"tokenbucket/internal/realserver"
	"tokenbucket/tokenbuckettest"
)

func remaining(t *testing.T, limiter *tokenbucket.Limiter, name string) int64 {
	t.Helper()
	return must(t)(limiter.Peek(ctx, name, 0)).Remaining
}

func expectRemaining(t *testing.T, limiter *tokenbucket.Limiter, name string, want int64) {
	t.Helper()
	if got := remaining(t, limiter, name); got != want {
		t.Fatalf("%d tokens, want %d", got, want)
	}
}

func hold(t *testing.T, limiter *tokenbucket.Limiter, amount float64, ttl time.Duration) *tokenbucket.Hold {
	t.Helper()
	held, err := limiter.Hold(ctx, "a", amount, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return held
}

func use(t *testing.T, held *tokenbucket.Hold, amount float64) {
	t.Helper()
	if err := held.Used(amount); err != nil {
		t.Fatal(err)
	}
}

func settle(t *testing.T, held *tokenbucket.Hold) {
	t.Helper()
	if _, err := held.Settle(); err != nil {
		t.Fatal(err)
	}
}

func TestAHoldReturnsWhatWasNotUsed(t *testing.T) {
	limiter := tokenbucket.NewLimiter(realserver.Start(t).Limits(), hourly)
	held := hold(t, limiter, 8, time.Minute)
	if !held.Decision().Allowed {
		t.Fatalf("%+v", held.Decision())
	}
	expectRemaining(t, limiter, "a", 2)
	use(t, held, 3)
	settle(t, held)
	expectRemaining(t, limiter, "a", 7)

	more := hold(t, limiter, 1, time.Minute)
	use(t, more, 9)
	settle(t, more)
	expectRemaining(t, limiter, "a", -2)
}

func TestAUseThatTheHoldCannotHaveIsAnErrorAndChangesNothing(t *testing.T) {
	limits := realserver.Start(t).Limits()
	joint := tokenbucket.NewJointLimiter(limits, map[string]tokenbucket.Limit{"requests": hourly, "tokens": hourly})
	held, err := joint.Hold(ctx, "a", map[string]float64{"requests": 1, "tokens": 8}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := held.UsedOf("tokens", 3); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"another name": held.UsedOf("token", 5), "no name": held.Used(5), "less than nothing": held.UsedOf("tokens", -1),
		"no number": held.UsedOf("tokens", math.NaN()), "too many": held.UsedOf("tokens", 2e12),
	} {
		if !errors.Is(err, tokenbucket.ErrBadArgument) {
			t.Errorf("%s: %v", what, err)
		}
	}
	settle(t, held)
	expectRemaining(t, tokenbucket.NewLimiter(limits, hourly), "{a}:tokens", 7)
}

func TestADeniedHoldTakesNothing(t *testing.T) {
	limiter := tokenbucket.NewLimiter(realserver.Start(t).Limits(), hourly)
	held := hold(t, limiter, 11, time.Minute)
	if held.Decision().Allowed || held.Decision().RetryAfter != tokenbucket.Never {
		t.Fatalf("%+v", held.Decision())
	}
	use(t, held, 5)
	settle(t, held)
	expectRemaining(t, limiter, "a", 10)
}

func TestAHoldLastsAsLongAsItsWork(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	limiter := tokenbucket.NewLimiter(realserver.Start(t).Limits(), tokenbucket.Limit{Capacity: 3, Rate: "0"})
	held := hold(t, limiter, 1, ttl)
	for began := time.Now(); time.Since(began) < 2*ttl; time.Sleep(ttl / 20) {
		if left := remaining(t, limiter, "a"); left != 2 {
			t.Fatalf("after %v: %d", time.Since(began), left)
		}
	}
	settle(t, held)
	expectRemaining(t, limiter, "a", 3)
}

func TestWhatIsHeldComesBackWhenItsHolderIsGone(t *testing.T) {
	limiter := tokenbucket.NewLimiter(realserver.Start(t).Limits(), tokenbucket.Limit{Capacity: 3, Rate: "0"})
	working, crash := context.WithCancel(ctx)
	if _, err := limiter.Hold(working, "a", 2, time.Second); err != nil {
		t.Fatal(err)
	}
	expectRemaining(t, limiter, "a", 1)
	crash()
	realserver.Eventually(t, "the tokens are back", func() bool { return remaining(t, limiter, "a") == 3 })
}

func TestALostHoldIsChargedWhatItUsed(t *testing.T) {
	server := realserver.Start(t)
	limiter := tokenbucket.NewLimiter(server.Limits(), hourly)
	held := hold(t, limiter, 5, time.Minute)
	server.Do("DEL", "tb:a") // the hold is gone with the bucket
	use(t, held, 4)
	settle(t, held)
	expectRemaining(t, limiter, "a", 6)
}

func TestAHoldMadeWhileTheServerWasAwayIsChargedToo(t *testing.T) {
	fake := tokenbuckettest.NewServer()
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(fake, tokenbucket.LogTo(t.Logf)), hourly)
	fake.Break(errors.New("unplugged"))
	held := hold(t, limiter, 5, time.Hour)
	if decision := held.Decision(); !decision.Allowed || !decision.Degraded {
		t.Fatalf("%+v", decision)
	}
	fake.Break(nil)
	use(t, held, 4)
	settle(t, held)
	expectRemaining(t, limiter, "a", 6)
}

// renewals is the fake, and what was asked of it that has to do with holds.
type renewals struct {
	*tokenbuckettest.Server
	asked chan string
}

func (r *renewals) Do(ctx context.Context, args ...any) (any, error) {
	reply, err := r.Server.Do(ctx, args...)
	select {
	case r.asked <- args[0].(string):
	default: // nobody waits for so many
	}
	return reply, err
}

// await returns when the fake has been asked so often for a command.
func (r *renewals) await(t *testing.T, command string, times int) {
	t.Helper()
	for late := time.After(10 * time.Second); times > 0; {
		select {
		case asked := <-r.asked:
			if asked == command {
				times--
			}
		case <-late:
			t.Fatalf("%s was not asked for", command)
		}
	}
}

func isLost(held *tokenbucket.Hold) bool {
	select {
	case <-held.Lost():
		return true
	default:
		return false
	}
}

const brief = 60 * time.Millisecond

var slot = tokenbucket.Limit{Capacity: 1, Rate: "0"}

func newRenewals(t *testing.T) (*renewals, *tokenbucket.Limiter, *tokenbucket.Limiter) {
	fake := &renewals{tokenbuckettest.NewServer(), make(chan string, 1000)}
	one := func() *tokenbucket.Limiter {
		return tokenbucket.NewLimiter(tokenbucket.NewServer(fake, tokenbucket.RetryEvery(0), tokenbucket.LogTo(t.Logf)), slot)
	}
	return fake, one(), one()
}

func TestALostHoldSaysSoAndIsNotTakenAnew(t *testing.T) {
	fake, limiter, others := newRenewals(t)
	held := hold(t, limiter, 1, brief)
	fake.await(t, "TB.MRENEW", 2)
	if isLost(held) {
		t.Fatal("it was renewed")
	}
	fake.Advance(brief)
	other := hold(t, others, 1, time.Hour)
	<-held.Lost()
	if !other.Decision().Allowed || held.Decision().Allowed {
		t.Fatalf("%+v, %+v", other.Decision(), held.Decision())
	}
	settle(t, other)
	if ended, err := held.Settle(); err != nil || ended.Allowed {
		t.Fatalf("%+v, %v", ended, err)
	}
	expectRemaining(t, others, "a", 1)
}

func TestAHoldOutlastsAnOutage(t *testing.T) {
	fake, limiter, others := newRenewals(t)
	held := hold(t, limiter, 1, brief)
	fake.Break(errors.New("unplugged"))
	fake.await(t, "TB.MRENEW", 2)
	if decision := hold(t, limiter, 1, time.Hour).Decision(); decision.Allowed || !decision.Degraded {
		t.Fatalf("the slot is in use here: %+v", decision)
	}
	fake.Break(nil)
	realserver.Eventually(t, "the server is back", func() bool { return !held.Decision().Degraded })
	if isLost(held) || !held.Decision().Allowed {
		t.Fatalf("no time has passed there: %+v", held.Decision())
	}
	expectRemaining(t, others, "a", 0)
	settle(t, held)
	expectRemaining(t, others, "a", 1)
}

func TestAHoldThatTheServerNeverHadIsTakenWhenThereIsRoom(t *testing.T) {
	fake, limiter, others := newRenewals(t)
	other := hold(t, others, 1, time.Hour)
	fake.Break(errors.New("unplugged"))
	held := hold(t, limiter, 1, brief)
	if decision := held.Decision(); !decision.Allowed || !decision.Degraded {
		t.Fatalf("%+v", decision)
	}
	fake.Break(nil)
	realserver.Eventually(t, "there is no room", func() bool { return !held.Decision().Allowed })
	if isLost(held) {
		t.Fatal("it was never there")
	}
	settle(t, other)
	fake.await(t, "TB.MRENEW", 1)
	expectRemaining(t, others, "a", 0)
	fake.Advance(brief)
	<-held.Lost()
}

func TestAHoldOfNothingInOneOfItsLimitsIsNotLost(t *testing.T) {
	fake, _, _ := newRenewals(t)
	limits := tokenbucket.NewServer(fake, tokenbucket.LogTo(t.Logf))
	joint := tokenbucket.NewJointLimiter(limits, map[string]tokenbucket.Limit{"slots": slot, "tokens": hourly})
	held, err := joint.Hold(ctx, "a", map[string]float64{"slots": 1, "tokens": 0}, brief)
	if err != nil {
		t.Fatal(err)
	}
	fake.await(t, "TB.MRENEW", 2)
	if isLost(held) || !held.Decision().Allowed {
		t.Fatalf("%+v", held.Decision())
	}
	settle(t, held)
}

func TestAHoldOverSeveralLimits(t *testing.T) {
	limits := realserver.Start(t).Limits()
	of := map[string]tokenbucket.Limit{"parallel": {Capacity: 2, Rate: "0"}, "tokens": {Capacity: 1000, Rate: "1000/h"}}
	joint := tokenbucket.NewJointLimiter(limits, of)
	single := func(which string) *tokenbucket.Limiter { return tokenbucket.NewLimiter(limits, of[which]) }
	held, err := joint.Hold(ctx, "model", map[string]float64{"parallel": 1, "tokens": 600}, time.Minute)
	if err != nil || !held.Decision().Allowed || held.Decision().Each["tokens"].Remaining != 400 {
		t.Fatalf("%+v, %v", held.Decision(), err)
	}
	refused, err := joint.Hold(ctx, "model", map[string]float64{"parallel": 1, "tokens": 600}, time.Minute)
	if err != nil || refused.Decision().Allowed || !refused.Decision().Each["parallel"].Allowed {
		t.Fatalf("%+v, %v", refused.Decision(), err)
	}
	expectRemaining(t, single("parallel"), "{model}:parallel", 1)
	if err := held.UsedOf("tokens", 250); err != nil {
		t.Fatal(err)
	}
	settle(t, held)
	expectRemaining(t, single("parallel"), "{model}:parallel", 2)
	expectRemaining(t, single("tokens"), "{model}:tokens", 750)
}

func TestAHoldEndsWithItsWork(t *testing.T) {
	limits := realserver.Start(t).Limits()
	limiter := tokenbucket.NewLimiter(limits, hourly)
	failed := errors.New("failed")
	for _, work := range []func(*tokenbucket.Hold) error{
		func(hold *tokenbucket.Hold) error { use(t, hold, 1); return failed },
		func(hold *tokenbucket.Hold) error { use(t, hold, 1); settle(t, hold); settle(t, hold); return failed },
		func(hold *tokenbucket.Hold) error { use(t, hold, 1); panic(failed) },
	} {
		func() {
			defer func() {
				if thrown := recover(); thrown != nil && thrown != failed {
					t.Error(thrown)
				}
			}()
			if err := limiter.WithHold(ctx, "a", 8, time.Minute, work); err != failed {
				t.Error(err)
			}
		}()
	}
	expectRemaining(t, limiter, "a", 7)
	err := limiter.WithHold(ctx, "a", 8, time.Minute, func(*tokenbucket.Hold) error { t.Error("denied"); return nil })
	var denied *tokenbucket.DeniedError
	if !errors.As(err, &denied) || denied.Decision.RetryAfter <= 0 {
		t.Error(err)
	}
	joint := tokenbucket.NewJointLimiter(limits, map[string]tokenbucket.Limit{"x": hourly})
	err = joint.WithHold(ctx, "a", map[string]float64{"x": 8}, time.Minute, func(hold *tokenbucket.Hold) error {
		return hold.UsedOf("x", 3)
	})
	if err != nil {
		t.Error(err)
	}
	expectRemaining(t, limiter, "{a}:x", 7)
	if err := limiter.WithHold(ctx, "a", 8, 0, nil); !errors.Is(err, tokenbucket.ErrBadArgument) {
		t.Error(err)
	}
}

func TestHoldsOfNothingAreErrors(t *testing.T) {
	fake := tokenbuckettest.NewServer()
	fake.Break(errors.New("unplugged")) // and not let through under FailOpen
	joint := tokenbucket.NewJointLimiter(tokenbucket.NewServer(fake, tokenbucket.LogTo(t.Logf)), map[string]tokenbucket.Limit{"x": hourly})
	for name, c := range map[string]struct {
		amounts map[string]float64
		ttl     time.Duration
	}{
		"an unknown limit": {map[string]float64{"y": 1}, time.Minute},
		"no limit":         {nil, time.Minute},
		"no time":          {map[string]float64{"x": 1}, 0},
	} {
		if _, err := joint.Hold(ctx, "a", c.amounts, c.ttl); err == nil {
			t.Error(name)
		}
	}
}

// unplugged is a server that nobody reaches at times.
type unplugged struct {
	tokenbucket.Doer
	isAway int64
}

func (u *unplugged) Do(ctx context.Context, args ...any) (any, error) {
	if atomic.LoadInt64(&u.isAway) != 0 {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return u.Doer.Do(ctx, args...)
}

func TestAHoldOutlastsAnOutageThatEndsBeforeItsTTL(t *testing.T) {
	const ttl = 6 * time.Second
	doer := &unplugged{Doer: realserver.Start(t).Doer()}
	limits := tokenbucket.NewServer(doer, tokenbucket.Timeout(5*time.Second), tokenbucket.RetryEvery(time.Millisecond), tokenbucket.LogTo(t.Logf))
	held := hold(t, tokenbucket.NewLimiter(limits, slot), 1, ttl)
	atomic.StoreInt64(&doer.isAway, 1)
	time.Sleep(ttl * 7 / 10) // of which two renewals fail
	atomic.StoreInt64(&doer.isAway, 0)
	realserver.Eventually(t, "it is renewed", func() bool { return !held.Decision().Degraded })
	if isLost(held) || !held.Decision().Allowed {
		t.Fatalf("%+v", held.Decision())
	}
	settle(t, held)
}

func TestAHookMaySettleItsHold(t *testing.T) {
	var held atomic.Value
	settled := make(chan struct{}, 9)
	told := tokenbucket.OnDecision(func(string, tokenbucket.Limit, tokenbucket.Decision, time.Duration) {
		if held, ok := held.Load().(*tokenbucket.Hold); ok {
			_, _ = held.Settle() // the hook is called again for the settlement
			settled <- struct{}{}
		}
	})
	limits := tokenbucket.NewServer(tokenbuckettest.NewServer())
	held.Store(hold(t, tokenbucket.NewLimiter(limits, slot, told), 1, brief))
	realserver.Eventually(t, "a renewal settles it", func() bool { return len(settled) == 2 })
	expectRemaining(t, tokenbucket.NewLimiter(limits, slot), "a", 1)
}

func TestNothingRenewsAHoldOfAClosedServer(t *testing.T) {
	before := runtime.NumGoroutine()
	limits := tokenbucket.NewServer(tokenbuckettest.NewServer())
	hold(t, tokenbucket.NewLimiter(limits, slot), 1, time.Hour)
	if err := limits.Close(); err != nil {
		t.Fatal(err)
	}
	realserver.Eventually(t, "its goroutine ends", func() bool { return runtime.NumGoroutine() <= before })
}
