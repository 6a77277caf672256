package tokenbucket_test

import (
	"testing"
	"time"

	"tokenbucket"
	"tokenbucket/internal/realserver"
)

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
	if err := limiter.Reset(ctx, "a"); err != nil || server.Do("EXISTS", "tb:a", "tb:a:script") != int64(0) {
		t.Fatal(err)
	}
	log.Expect(t, "the script decides until it has", "the script decides no longer")
}
