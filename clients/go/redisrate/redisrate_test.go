package redisrate_test

import (
	"context"
	"errors"
	"math"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"tokenbucket"
	"tokenbucket/internal/realserver"
	"tokenbucket/redisrate"
)

var ctx = context.Background()

const ms = time.Millisecond

type method func(*redisrate.Limiter, context.Context, string, redisrate.Limit, int) (*redisrate.Result, error)

var allowN, atMost method = (*redisrate.Limiter).AllowN, (*redisrate.Limiter).AllowAtMost

func reset(limiter *redisrate.Limiter, ctx context.Context, key string, _ redisrate.Limit, _ int) (*redisrate.Result, error) {
	return &redisrate.Result{}, limiter.Reset(ctx, key)
}

// call is one of a case, and what it answers. Time stands still unless a call lets it pass first.
type call struct {
	after time.Duration
	do    method
	limit redisrate.Limit
	n     int
	want  redisrate.Result // without its Limit
	fails string           // the beginning of the error, in place of want
	// why is the beginning of a row of the table in README.md, where redis_rate answers otherwise.
	why string
}

func (c call) check(t *testing.T, limiter *redisrate.Limiter, key string, number int) {
	t.Helper()
	got, err := c.do(limiter, ctx, key, c.limit, c.n)
	c.want.Limit = c.limit
	if c.fails != "" && (err == nil || !strings.HasPrefix(err.Error(), "tokenbucket: ERR "+c.fails)) || c.fails == "" && (err != nil || *got != c.want) {
		t.Errorf("%s, call %d: %d of %+v: %+v, %v; want %+v %s", key, number, c.n, c.limit, got, err, c.want, c.fails)
	}
}

func allowed(n, remaining int, reset time.Duration) redisrate.Result {
	return redisrate.Result{Allowed: n, Remaining: remaining, RetryAfter: -1, ResetAfter: reset}
}

func denied(remaining int, retry, reset time.Duration) redisrate.Result {
	return redisrate.Result{Remaining: remaining, RetryAfter: retry, ResetAfter: reset}
}

const (
	tooMany   = "`RetryAfter` of `n` above `Burst`"
	changed   = "a limit that changes"
	finer     = "times"
	left      = "`Remaining` of a denial"
	fractions = "`AllowAtMost` with a part of an event left"
)

// What redis_rate publishes as its behaviour, call by call.
func cases() map[string][]call {
	ten := redisrate.PerSecond(10)
	three := redisrate.Limit{Rate: 10, Burst: 3, Period: time.Second}
	thirds := redisrate.Limit{Rate: 3, Burst: 3, Period: time.Second}
	return map[string][]call{
		"Allow, AllowN and Reset": {
			{do: allowN, limit: ten, n: 1, want: allowed(1, 9, 100*ms)},
			{do: reset},
			{do: allowN, limit: ten, n: 1, want: allowed(1, 9, 100*ms)},
			{do: allowN, limit: ten, n: 2, want: allowed(2, 7, 300*ms)},
			{do: allowN, limit: ten, n: 7, want: allowed(7, 0, time.Second)},
			{do: allowN, limit: ten, n: 1, want: denied(0, 100*ms, time.Second)},
			{do: allowN, limit: ten, n: 1000, want: denied(0, redisrate.Never, time.Second), why: tooMany},
		},
		"no event looks, of a key that is not there and of one that is": {
			{do: allowN, limit: ten, n: 0, want: allowed(0, 10, 0)},
			{do: atMost, limit: ten, n: 0, want: allowed(0, 10, 0)},
			{do: allowN, limit: ten, n: 1, want: allowed(1, 9, 100*ms)},
			{do: allowN, limit: ten, n: 0, want: allowed(0, 9, 100*ms)},
			{do: atMost, limit: ten, n: 0, want: allowed(0, 9, 100*ms)},
		},
		"AllowAtMost allows what there is": {
			{do: allowN, limit: ten, n: 1, want: allowed(1, 9, 100*ms)},
			{do: atMost, limit: ten, n: 2, want: allowed(2, 7, 300*ms)},
			{do: allowN, limit: ten, n: 0, want: allowed(0, 7, 300*ms)},
			{do: atMost, limit: ten, n: 10, want: allowed(7, 0, time.Second)},
			{do: allowN, limit: ten, n: 0, want: allowed(0, 0, time.Second)},
			{do: atMost, limit: ten, n: 1000, want: denied(0, 100*ms, time.Second)},
			{do: allowN, limit: ten, n: 1000, want: denied(0, redisrate.Never, time.Second), why: tooMany},
		},
		"what was denied is allowed after RetryAfter, and not before": {
			{do: allowN, limit: ten, n: 8, want: allowed(8, 2, 800*ms)},
			{do: allowN, limit: ten, n: 5, want: denied(2, 300*ms, 800*ms), why: left},
			{after: 299 * ms, do: allowN, limit: ten, n: 5, want: denied(4, 1*ms, 501*ms), why: left},
			{after: 1 * ms, do: allowN, limit: ten, n: 5, want: allowed(5, 0, time.Second)},
		},
		"a burst below the rate": {
			{do: allowN, limit: three, n: 4, want: denied(3, redisrate.Never, 0), why: tooMany},
			{do: atMost, limit: three, n: 4, want: allowed(3, 0, 300*ms)},
			{after: 100 * ms, do: allowN, limit: three, n: 1, want: allowed(1, 0, 300*ms)},
		},
		"a third of a second": {
			{do: allowN, limit: thirds, n: 1, want: allowed(1, 2, 334*ms), why: finer},
		},
		"what has come in part": {
			{do: allowN, limit: ten, n: 8, want: allowed(8, 2, 800*ms)},
			{after: 50 * ms, do: atMost, limit: ten, n: 5, want: allowed(2, 0, 950*ms), why: fractions},
		},
		"half as much from now on": {
			{do: allowN, limit: ten, n: 5, want: allowed(5, 5, 500*ms)},
			{do: allowN, limit: redisrate.PerSecond(5), n: 0, want: allowed(0, 5, 0), why: changed},
		},
	}
}

func TestRedisRatesBehaviour(t *testing.T) {
	server, clock := realserver.StartWithClock(t)
	limiter := redisrate.NewLimiter(server.Limits())
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, calls := range cases() {
		for i, c := range calls {
			clock.Advance(c.after)
			c.check(t, limiter, name, i+1)
			if c.why != "" && !strings.Contains(string(readme), "| "+c.why) {
				t.Errorf("%s, call %d: the README does not explain %q", name, i+1, c.why)
			}
		}
	}
}

func TestLimits(t *testing.T) {
	for text, limit := range map[string]redisrate.Limit{
		"10 req/s (burst 10)":   redisrate.PerSecond(10),
		"20 req/m (burst 20)":   redisrate.PerMinute(20),
		"30 req/h (burst 30)":   redisrate.PerHour(30),
		"5 req/1m30s (burst 7)": {Rate: 5, Burst: 7, Period: 90 * time.Second},
	} {
		if limit.String() != text || limit.IsZero() {
			t.Errorf("%s, want %s", limit, text)
		}
	}
	if !(redisrate.Limit{}).IsZero() {
		t.Error("no limit")
	}
}

// The rows of the README's table of what is accepted.
func TestAcceptedValues(t *testing.T) {
	server, _ := realserver.StartWithClock(t)
	limiter := redisrate.NewLimiter(server.Limits())
	of := func(rate, burst int, period time.Duration) redisrate.Limit {
		return redisrate.Limit{Rate: rate, Burst: burst, Period: period}
	}
	ten, most := redisrate.PerSecond(10), int64(1e12)
	for i, c := range []call{
		{do: allowN, limit: of(10, 0, time.Second), n: 1, want: denied(0, redisrate.Never, 0)},
		{do: allowN, limit: of(10, -1, time.Second), n: 1, want: denied(0, redisrate.Never, 0)},
		{do: atMost, limit: of(10, -1, time.Second), n: 5, want: denied(0, redisrate.Never, 0)},
		{do: allowN, limit: of(1e9, math.MaxInt, time.Second), n: 1, want: allowed(1, int(most-1), 1*ms)},
		{do: allowN, limit: of(1, 1, 1), n: 1, want: allowed(1, 0, 1*ms)},
		{do: allowN, limit: of(1, 1, 100*365*24*time.Hour), n: 1, want: allowed(1, 0, 100*365*24*time.Hour)},
		{do: allowN, limit: of(1, 2, 100*365*24*time.Hour), n: 1, fails: "refilling capacity from empty at this rate would take more than 100 years"},
		{do: allowN, limit: of(math.MaxInt, 1, time.Second), n: 1, fails: "rate must be at least 1 token in 100 years"},
		{do: allowN, limit: of(0, 1, time.Second), n: 1, fails: "rate: count '0' in '0/1s' must be above 0"},
		{do: allowN, limit: of(-1, 1, time.Second), n: 1, fails: "rate: count '-1' in '-1/1s' must not be negative"},
		{do: allowN, limit: of(1, 1, 0), n: 1, fails: "rate: period '0s' in '1/0s' must be above 0"},
		{do: allowN, limit: of(1, 1, -1500*ms), n: 1, fails: "rate: period '-1.5s' in '1/-1.5s' must be"},
		{do: allowN, limit: redisrate.Limit{}, n: 1, fails: "rate: "},
		{do: allowN, limit: ten, n: -1, fails: "cost must be a decimal number of tokens from 0 to 1e12, not '-1'"},
		{do: atMost, limit: ten, n: -1, fails: "max must be a whole number of tokens from 1 to 1e12, not '-1'"},
		{do: allowN, limit: ten, n: int(most), want: denied(10, redisrate.Never, 0)},
		{do: allowN, limit: ten, n: int(most + 1), fails: "cost must be a decimal number of tokens from 0 to 1e12, not '1000000000001'"},
		{do: atMost, limit: ten, n: math.MaxInt, want: allowed(10, 0, time.Second)},
	} {
		c.check(t, limiter, strconv.Itoa(i), i+1)
	}
	for _, key := range []string{"", " ", "{x}", "{}", "ü", "a\n\x00b", "\xff", strings.Repeat("k", 5000)} {
		for _, left := range []int{9, 8} {
			if got, err := limiter.Allow(ctx, key, ten); err != nil || got.Remaining != left {
				t.Errorf("the key %.9q: %+v, %v", key, got, err)
			}
		}
		if err := limiter.Reset(ctx, key); err != nil {
			t.Errorf("the key %.9q: %v", key, err)
		}
		if got, err := limiter.AllowN(ctx, key, ten, 0); err != nil || got.Remaining != 10 {
			t.Errorf("the key %.9q after Reset: %+v, %v", key, got, err)
		}
	}
}

func TestOutagesAreErrorsIfWanted(t *testing.T) {
	server := realserver.Start(t)
	failing := redisrate.NewLimiter(server.Limits(tokenbucket.LogTo(t.Logf)), tokenbucket.OnError(tokenbucket.FailWithError))
	server.Stop()
	if result, err := failing.Allow(ctx, "a", redisrate.PerHour(1)); !errors.Is(err, tokenbucket.ErrServerAway) {
		t.Errorf("%+v, %v", result, err)
	}
	open := redisrate.NewLimiter(server.Limits(tokenbucket.LogTo(t.Logf)), tokenbucket.OnError(tokenbucket.FailOpen))
	if result, err := open.AllowAtMost(ctx, "a", redisrate.PerHour(1), 3); err != nil || !reflect.DeepEqual(*result, redisrate.Result{
		Limit: redisrate.PerHour(1), Allowed: 3, RetryAfter: -1}) {
		t.Errorf("%+v, %v", result, err)
	}
}

// A key that redis_rate has written is another one, or the first call after the change would be a WRONGTYPE.
func TestRedisRatesKeysAreLeftAlone(t *testing.T) {
	server := realserver.Start(t)
	server.Do("SET", "rate:a", "1.5")
	if result, err := redisrate.NewLimiter(server.Limits()).Allow(ctx, "a", redisrate.PerHour(5)); err != nil || result.Remaining != 4 {
		t.Fatalf("%+v, %v", result, err)
	}
}

// Nothing here makes debts, but other commands may, on the same bucket.
func TestABucketInDebt(t *testing.T) {
	server, clock := realserver.StartWithClock(t)
	server.Do("TB.CHARGE", "tb:rate:a", 10, "10/1s", 12)
	limiter := redisrate.NewLimiter(server.Limits())
	for i, want := range []redisrate.Result{denied(0, 200*ms, 1200*ms), allowed(0, 0, time.Second)} {
		call{do: allowN, limit: redisrate.PerSecond(10), want: want}.check(t, limiter, "a", i+1)
		clock.Advance(200 * ms)
	}
}
