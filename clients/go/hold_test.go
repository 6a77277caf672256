package tokenbucket_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
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

const brief = 60 * time.Millisecond

var slot = tokenbucket.Limit{Capacity: 1, Rate: "0"}

func TestAHoldEndsByItsTTLWhenItsContextIsOver(t *testing.T) {
	limiter := tokenbucket.NewLimiter(realserver.Start(t).Limits(), slot)
	working, leave := context.WithCancel(ctx)
	if _, err := limiter.Hold(working, "a", 1, time.Second); err != nil {
		t.Fatal(err)
	}
	leave()
	realserver.Eventually(t, "the slot is back", func() bool { return remaining(t, limiter, "a") == 1 })
}

func TestAHoldOfNothingInOneOfItsLimitsIsNotLost(t *testing.T) {
	told := make(chan tokenbucket.Decision, 1000)
	tell := tokenbucket.OnDecision(func(_ string, _ tokenbucket.Limit, decision tokenbucket.Decision, _ time.Duration) { told <- decision })
	limits := tokenbucket.NewServer(tokenbuckettest.NewServer())
	joint := tokenbucket.NewJointLimiter(limits, map[string]tokenbucket.Limit{"slots": slot, "tokens": hourly}, tell)
	a, b := 0.1, 0.3
	for _, nothing := range []float64{0, a + a + a - b} {
		held, err := joint.Hold(ctx, "a", map[string]float64{"slots": 1, "tokens": nothing}, brief)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < 4; i++ { // two of the call, and two renewals
			if decision := <-told; !decision.Allowed {
				t.Fatalf("%v, %d: %+v", nothing, i, decision)
			}
		}
		if err := held.UsedOf("tokens", math.NaN()); !errors.Is(err, tokenbucket.ErrBadArgument) {
			t.Error(err)
		}
		settle(t, held)
		for len(told) > 0 {
			<-told
		}
	}
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

func TestManyMaySettleAHoldAtOnce(t *testing.T) {
	limiter, settled := tokenbucket.NewLimiter(tokenbucket.NewServer(tokenbuckettest.NewServer()), slot), make(chan int64)
	for i := 0; i < 100; i++ {
		held := hold(t, limiter, 1, time.Hour)
		for j := 0; j < 4; j++ {
			go func() {
				decision, _ := held.Settle()
				settled <- decision.Each[""].Remaining
			}()
		}
		for j := 0; j < 4; j++ {
			if left := <-settled; left != 1 {
				t.Fatal(left)
			}
		}
	}
}

func TestNothingRenewsAHoldThatIsSettledOrOfAClosedServer(t *testing.T) {
	before := runtime.NumGoroutine()
	limits := tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter, hasEnded := tokenbucket.NewLimiter(limits, slot), func() bool { return runtime.NumGoroutine() <= before }
	for i := 0; i < 10; i++ {
		settle(t, hold(t, limiter, 1, time.Hour))
	}
	realserver.Eventually(t, "their goroutines end", hasEnded)
	hold(t, limiter, 1, time.Hour)
	if err := limits.Close(); err != nil {
		t.Fatal(err)
	}
	realserver.Eventually(t, "its goroutine ends", hasEnded)
}

// The server grants the second alternative, and its replies are lost: the policy grants the first. A limit that fills up the one
// may be held by the other.
func TestAnAlternativeThatTheServerMayHaveGrantedEnds(t *testing.T) {
	server := realserver.Start(t)
	limits := serverOf(t, instead(server.Doer(), "TB.HOLDANY", func(ctx context.Context, args ...any) (any, error) {
		_, _ = server.Doer().Do(ctx, args...)
		return nil, io.EOF
	}))
	joint := tokenbucket.NewJointLimiter(limits, map[string]tokenbucket.Limit{"common": hourly, "a": slot, "b": slot})
	other, err := joint.Hold(ctx, "x", map[string]float64{"a": 1}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	either := []map[string]float64{{"common": 0, "a": 1}, {"common": 1, "b": 1}}
	held, err := joint.HoldAny(ctx, "x", either, time.Hour)
	if err != nil || !held.Decision().Degraded || held.Decision().Granted != 1 {
		t.Fatalf("%+v, %v", held, err)
	}
	for _, which := range []string{"b", "common"} {
		realserver.Eventually(t, "it has ended in "+which, func() bool { return fmt.Sprint(server.Do("TB.HOLDS", "tb:{x}:"+which)) == "[]" })
	}
	settle(t, other)
	settle(t, held)
}

// The server may have granted what its first reply said.
func TestAHoldThatIsDeniedWhenItIsSentAgainEnds(t *testing.T) {
	server := realserver.Start(t)
	calls := 0
	joint := tokenbucket.NewJointLimiter(serverOf(t, doing(func(ctx context.Context, args ...any) (any, error) {
		reply, err := server.Doer().Do(ctx, args...)
		if name := fmt.Sprint(args[0]); name == "TB.MHOLD" || name == "TB.HOLDANY" {
			if calls++; calls == 1 {
				return nil, io.EOF
			}
			return denied, nil
		}
		return reply, err
	})), map[string]tokenbucket.Limit{"a": slot})
	for name, ask := range map[string]func() (*tokenbucket.Hold, error){
		"all": func() (*tokenbucket.Hold, error) { return joint.Hold(ctx, "x", map[string]float64{"a": 1}, time.Hour) },
		"any": func() (*tokenbucket.Hold, error) {
			return joint.HoldAny(ctx, "x", []map[string]float64{{"a": 2}, {"a": 1}}, time.Hour)
		},
	} {
		calls = 0
		if held, err := ask(); err != nil || held.Decision().Allowed || calls != 2 {
			t.Fatalf("%s: %+v, %v", name, held, err)
		}
		realserver.Eventually(t, "it has ended", func() bool { return fmt.Sprint(server.Do("TB.HOLDS", "tb:{x}:a")) == "[]" })
	}
}

// lateHolds is a server that the first command that takes a hold reaches only when it is let.
type lateHolds struct {
	*realserver.Server
	isAway atomic.Bool
	late   []any
	loses  bool // the first settlement
}

func (l *lateHolds) Do(ctx context.Context, args ...any) (any, error) {
	name := args[0]
	if l.isAway.Load() {
		return refuse(ctx, args...)
	}
	if (name == "TB.MHOLD" || name == "TB.HOLDANY") && l.late == nil {
		l.late = args
		return nil, os.ErrDeadlineExceeded
	}
	if name == "TB.MSETTLE" && l.loses {
		l.loses = false
		return nil, os.ErrDeadlineExceeded
	}
	return l.Doer().Do(ctx, args...)
}

func (l *lateHolds) let() {
	at := 2
	if l.late[0] == "TB.HOLDANY" {
		at = 3
	}
	l.late[at] = "3600000" // for longer than the test
	l.Server.Do(l.late...)
}

func TestAHoldThatIsMadeLateEndsAfterItsSettlement(t *testing.T) {
	all := map[string]float64{"a": 1, "tokens": 5}
	for name, c := range map[string]struct {
		alternatives []map[string]float64
		isAway       bool   // at first, so that a renewal makes the hold
		loses        bool   // the first settlement
		taken        string // by another, before the late command comes
	}{
		"all":         {},
		"renewal":     {isAway: true},
		"lost":        {loses: true},
		"alternative": {alternatives: []map[string]float64{all, {"b": 1, "tokens": 5}}, taken: "tb:{x}:a"},
	} {
		t.Run(name, func(t *testing.T) {
			server := &lateHolds{Server: realserver.Start(t), loses: c.loses}
			server.isAway.Store(c.isAway)
			joint := tokenbucket.NewJointLimiter(serverOf(t, server), map[string]tokenbucket.Limit{"a": slot, "b": slot, "tokens": hourly})
			holds := func(which string) string { return fmt.Sprint(server.Server.Do("TB.HOLDS", "tb:{x}:"+which)) }
			ask := func() (*tokenbucket.Hold, error) { return joint.Hold(ctx, "x", all, 3*time.Second) }
			if len(c.alternatives) > 0 {
				ask = func() (*tokenbucket.Hold, error) { return joint.HoldAny(ctx, "x", c.alternatives, 3*time.Second) }
			}
			held, err := ask()
			if err != nil || !held.Decision().Allowed {
				t.Fatalf("%+v, %v", held, err)
			}
			server.isAway.Store(false)
			realserver.Eventually(t, "the server has it", func() bool { return holds("a") != "[]" })
			if err := held.UsedOf("tokens", 2); err != nil {
				t.Fatal(err)
			}
			settle(t, held)
			if c.taken != "" {
				server.Server.Do("TB.HOLD", c.taken, "1", "0", "1", "3600000", "other")
			}
			server.let()
			for _, which := range []string{"a", "b", "tokens"} {
				realserver.Eventually(t, "it has ended in "+which, func() bool {
					return holds(which) == "[]" || "tb:{x}:"+which == c.taken
				})
			}
			if level := fmt.Sprint(server.Server.Do("TB.PEEK", "tb:{x}:tokens", "10", "10/h", "0")); !strings.HasPrefix(level, "[1 8 ") {
				t.Error("tokens left:", level)
			}
		})
	}
}

func TestADenialIsForgottenWhenAHoldIsSettledLater(t *testing.T) {
	server := realserver.Start(t)
	isLost := atomic.Bool{}
	limits := serverOf(t, instead(server.Doer(), "TB.MSETTLE", func(ctx context.Context, args ...any) (any, error) {
		if isLost.CompareAndSwap(false, true) {
			return refuse(ctx, args...)
		}
		return server.Doer().Do(ctx, args...)
	}))
	limiter := tokenbucket.NewLimiter(limits, hourly, tokenbucket.RememberDenials(10), tokenbucket.OnError(tokenbucket.FailClosed))
	held := hold(t, limiter, 10, time.Hour)
	use(t, held, 0)
	settle(t, held)
	realserver.Eventually(t, "it is denied", func() bool { return !must(t)(limiter.Take(ctx, "a", 1)).Degraded })
	realserver.Eventually(t, "it is allowed", func() bool { return must(t)(limiter.Take(ctx, "a", 1)).Allowed })
}

func TestAHoldThatTheServerDoesNotRenewIsLostAfterItsTTL(t *testing.T) {
	refused := failing(errors.New("NOPERM User worker has no permissions to run the 'tb.mrenew' command"))
	limits := serverOf(t, instead(realserver.Start(t).Doer(), "TB.MRENEW", refused))
	began, ttl := time.Now(), 300*time.Millisecond
	held := hold(t, tokenbucket.NewLimiter(limits, slot), 1, ttl)
	select {
	case <-held.Lost():
	case <-time.After(30 * time.Second):
		t.Fatal("it is not lost")
	}
	if after := time.Since(began); after < ttl {
		t.Fatal("lost after", after)
	}
}

func TestClosingWaitsForNoServerThatIsSilent(t *testing.T) {
	never, settled := make(chan struct{}), atomic.Bool{}
	defer close(never)
	limits := tokenbucket.NewServer(doing(func(ctx context.Context, args ...any) (any, error) {
		switch {
		case args[0] != "TB.MSETTLE":
			return []any{int64(1), int64(9), int64(0), int64(0), []any{granted}}, nil
		case settled.CompareAndSwap(false, true):
			return refuse(ctx, args...)
		}
		<-never
		return nil, net.ErrClosed
	}), tokenbucket.Timeout(0), tokenbucket.RetryEvery(0), tokenbucket.LogTo(t.Logf))
	settle(t, hold(t, tokenbucket.NewLimiter(limits, hourly), 1, time.Hour))
	closed := make(chan error, 1)
	go func() { closed <- limits.Close() }()
	realserver.Eventually(t, "it is closed", func() bool { return len(closed) == 1 })
}

func TestTwoThatCloseSettleAtAServerThatIsBack(t *testing.T) {
	server := &lateHolds{Server: realserver.Start(t), late: []any{}}
	limits := tokenbucket.NewServer(server, tokenbucket.Timeout(5*time.Second), tokenbucket.RetryEvery(time.Hour), tokenbucket.LogTo(t.Logf))
	limiter := tokenbucket.NewLimiter(limits, tokenbucket.Limit{Capacity: 50, Rate: "0"})
	var held []*tokenbucket.Hold
	for i := 0; i < 50; i++ {
		held = append(held, hold(t, limiter, 1, time.Hour))
	}
	server.isAway.Store(true)
	for _, one := range held {
		settle(t, one)
	}
	server.isAway.Store(false)
	closed := make(chan error, 1)
	go func() { closed <- limits.Close() }()
	if err := limits.Close(); err != nil || <-closed != nil {
		t.Fatal(err)
	}
	if left := fmt.Sprint(server.Server.Do("TB.HOLDS", "tb:a")); left != "[]" {
		t.Fatal("left:", left)
	}
}

func TestTheLogMayCloseAServerThatIsBeingClosed(t *testing.T) {
	server := &lateHolds{Server: realserver.Start(t), late: []any{}}
	var limits *tokenbucket.Server
	limits = tokenbucket.NewServer(server, tokenbucket.RetryEvery(time.Hour), tokenbucket.LogTo(func(line string, _ ...any) {
		if strings.Contains(line, "is back") {
			_ = limits.Close()
		}
	}))
	held := hold(t, tokenbucket.NewLimiter(limits, slot), 1, time.Hour)
	server.isAway.Store(true)
	settle(t, held)
	server.isAway.Store(false)
	closed := make(chan error)
	go func() { closed <- limits.Close() }()
	select {
	case <-closed:
	case <-time.After(30 * time.Second):
		t.Fatal("it waits for itself")
	}
}

func TestAPanicDuringARenewalIsNoEndOfTheHold(t *testing.T) {
	fake, renewals := tokenbuckettest.NewServer(), atomic.Int64{}
	limits := tokenbucket.NewServer(doing(func(ctx context.Context, args ...any) (any, error) {
		if args[0] == "TB.MRENEW" && renewals.Add(1) == 1 {
			panic("of the program's OnConnect")
		}
		return fake.Do(ctx, args...)
	}), tokenbucket.LogTo(t.Logf))
	held := hold(t, tokenbucket.NewLimiter(limits, slot), 1, brief)
	realserver.Eventually(t, "it is renewed", func() bool { return renewals.Load() > 2 })
	select {
	case <-held.Lost():
		t.Fatal("it is lost")
	default:
	}
	settle(t, held)
}

func TestADenialOfAlternativesIsReportedOfEachBucketOnce(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		var reported []float64
		tell := tokenbucket.OnDecision(func(_ string, limit tokenbucket.Limit, _ tokenbucket.Decision, _ time.Duration) {
			reported = append(reported, limit.Capacity)
		})
		joint := tokenbucket.NewJointLimiter(tokenbucket.NewServer(tokenbuckettest.NewServer()), map[string]tokenbucket.Limit{
			"common": {Capacity: 9, Rate: "1/h"}, "a": {Capacity: 1, Rate: "1/h"}, "b": {Capacity: 2, Rate: "1/h"},
		}, tell, tokenbucket.Shadow(shadow))
		decision, err := joint.TakeAny(ctx, "x", []map[string]float64{{"a": 3, "common": 1}, {"b": 3, "common": 1}})
		if err != nil || decision.Allowed != shadow || decision.Shadowed != shadow || len(decision.Each) > 0 {
			t.Fatalf("%+v, %v", decision, err)
		}
		if fmt.Sprint(reported) != "[1 9 2]" {
			t.Fatal(reported)
		}
	}
}
