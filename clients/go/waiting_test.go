package tokenbucket_test

import (
	"testing"
	"time"

	"tokenbucket"
	"tokenbucket/internal/realserver"
	"tokenbucket/internal/waitingtest"
)

func TestCallsWaitInTheServer(t *testing.T) {
	doer := func(_ testing.TB, address string) tokenbucket.Doer { return realserver.DoerAt(address) }
	waitingtest.Run(t, doer)
}

// polled is a client that knows nothing of waiting.
type polled struct{ tokenbucket.Doer }

func TestAClientThatCannotWaitPolls(t *testing.T) {
	tenth := tokenbucket.Limit{Capacity: 1, Rate: "10"}
	for name, limits := range map[string]*tokenbucket.Server{
		"the script":       realserver.StartWithoutModule(t).Limits(tokenbucket.FallbackScript(), tokenbucket.LogTo(t.Logf)),
		"the Doer":         tokenbucket.NewServer(polled{realserver.Start(t).Doer()}, tokenbucket.Timeout(5*time.Second)),
		"the server's own": realserver.Start(t).Limits(),
	} {
		limiter := tokenbucket.NewLimiter(limits, tenth)
		joint := tokenbucket.NewJointLimiter(limits, map[string]tokenbucket.Limit{"x": tenth})
		began := time.Now()
		for i := 0; i < 4; i++ {
			if got := must(t)(limiter.Take(ctx, "a", 1, tokenbucket.MaxWait(time.Minute))); !got.Allowed || got.Degraded {
				t.Errorf("%s: %+v", name, got)
			}
			if got, err := joint.TakeAll(ctx, "a", map[string]float64{"x": 1}, tokenbucket.MaxWait(time.Minute)); err != nil || !got.Allowed {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
		if took := time.Since(began); took < 300*time.Millisecond {
			t.Errorf("%s: 4 tokens of 10 a second after %v", name, took)
		}
		slow := limiter.With(tokenbucket.Limit{Capacity: 1, Rate: "1/h"})
		must(t)(slow.Take(ctx, "b", 1))
		if got := must(t)(slow.Take(ctx, "b", 1, tokenbucket.MaxWait(100*time.Millisecond))); got.Allowed || got.RetryAfter < 50*time.Minute {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
