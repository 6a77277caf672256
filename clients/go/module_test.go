package tokenbucket_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"tokenbucket"
	"tokenbucket/internal/realserver"
)

func TestTheScriptDecidesAsTheModule(t *testing.T) {
	server := realserver.StartWithoutModule(t)
	_, err := tokenbucket.NewLimiter(server.Limits(), hourly).Take(ctx, "a", 1)
	if !errors.Is(err, tokenbucket.ErrModuleMissing) || !strings.Contains(err.Error(), "load it, or give the Server FallbackScript(); holds need it") {
		t.Fatal(err)
	}
	log := &realserver.Log{}
	limits := server.Limits(tokenbucket.FallbackScript(), tokenbucket.LogTo(log.Printf))
	limiter := tokenbucket.NewLimiter(limits, hourly)
	for i, call := range []func() (tokenbucket.Decision, error){
		func() (tokenbucket.Decision, error) { return limiter.Take(ctx, "a", 4) },
		func() (tokenbucket.Decision, error) { return limiter.TakeUpTo(ctx, "a", 5) },
		func() (tokenbucket.Decision, error) { return limiter.Take(ctx, "a", 2) },
		func() (tokenbucket.Decision, error) { return limiter.Reserve(ctx, "a", 2, time.Hour) },
		func() (tokenbucket.Decision, error) { return limiter.Charge(ctx, "a", 1) },
		func() (tokenbucket.Decision, error) { return limiter.Give(ctx, "a", 5) },
		func() (tokenbucket.Decision, error) { return limiter.Peek(ctx, "a", 1) },
	} {
		want := []int64{6, 1, 1, -1, -2, 3, 2}[i]
		if got := must(t)(call()); got.Remaining != want || got.Allowed == (i == 2) {
			t.Fatalf("call %d: %+v, want %d left", i, got, want)
		}
	}
	if keys := server.Do("EXISTS", "tb:a:script"); keys != int64(1) {
		t.Fatal("no key of its own")
	}
	joint := tokenbucket.NewJointLimiter(limits, map[string]tokenbucket.Limit{"x": hourly, "y": hourly})
	if got, err := joint.TakeAll(ctx, "a", map[string]float64{"x": 1, "y": 2}); err != nil || got.Each["x"].Remaining != 9 || got.Each["y"].Remaining != 8 {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := limiter.Take(ctx, "a", -1); err == nil || !strings.HasPrefix(err.Error(), "tokenbucket: ERR cost must be") {
		t.Fatal(err)
	}
	for _, options := range [][]tokenbucket.CallOption{nil, {tokenbucket.MaxWait(time.Hour)}} {
		_, err := limiter.Hold(ctx, "a", 1, time.Minute, options...)
		if !errors.Is(err, tokenbucket.ErrModuleMissing) || !strings.Contains(err.Error(), "holds need it") {
			t.Fatal(err)
		}
	}
	server.Do("SCRIPT", "FLUSH")
	must(t)(limiter.Take(ctx, "a", 1))
	if err := limiter.Reset(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	expectRemaining(t, limiter, "a", 10)
	log.Expect(t, "the script decides")
}

// hurried is a client whose clock a test advances.
type hurried struct {
	tokenbucket.Doer
	*skew
}

// skew is how much later it is than it is.
type skew struct {
	tokenbucket.Clock
	by time.Duration
}

func (s *skew) Now() time.Time { return time.Now().Add(s.by) }

func TestAServerThatGainsTheModule(t *testing.T) {
	server, log, later := realserver.StartWithoutModule(t), &realserver.Log{}, &skew{}
	limits := tokenbucket.NewServer(hurried{server.Doer(), later}, tokenbucket.Timeout(5*time.Second),
		tokenbucket.FallbackScript(), tokenbucket.LogTo(log.Printf))
	limiter := tokenbucket.NewLimiter(limits, hourly)
	must(t)(limiter.Take(ctx, "a", 1))

	server.LoadModule()
	must(t)(limiter.Take(ctx, "a", 1))
	if server.Do("EXISTS", "tb:a") != int64(0) {
		t.Fatal("the module is looked for once a minute, not at each call")
	}
	later.by = time.Minute
	if got := must(t)(limiter.Take(ctx, "a", 1)); got.Remaining != 9 {
		t.Fatalf("the module's own bucket: %+v", got)
	}
	log.Expect(t, "the script decides until it has", "the script decides no longer")
}

func TestAServerThatComesBackWithTheModule(t *testing.T) {
	server := realserver.StartWithoutModule(t)
	limiter := tokenbucket.NewLimiter(server.Limits(tokenbucket.FallbackScript(), tokenbucket.LogTo(t.Logf)), hourly)
	must(t)(limiter.Take(ctx, "a", 1))
	server.LoadModule()
	server.Stop()
	server.Start()
	must(t)(limiter.Take(ctx, "a", 1))
	if server.Do("EXISTS", "tb:a") != int64(1) {
		t.Fatal("the module does not decide")
	}
}
