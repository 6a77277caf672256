package tokenbucket_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"testing"
	"time"

	"tokenbucket"
	"tokenbucket/tokenbuckettest"
)

var ctx = context.Background()

// never flows noticeably during a test.
var hourly = tokenbucket.Limit{Capacity: 10, Rate: "10/h"}

// must returns the decision, or ends the test with the error.
func must(t testing.TB) func(tokenbucket.Decision, error) tokenbucket.Decision {
	return func(decision tokenbucket.Decision, err error) tokenbucket.Decision {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return decision
	}
}

// expectAllowed ends the test unless the call is allowed.
func expectAllowed(t *testing.T) func(tokenbucket.Decision, error) {
	return func(decision tokenbucket.Decision, err error) {
		t.Helper()
		if err != nil || !decision.Allowed {
			t.Fatalf("%+v, %v", decision, err)
		}
	}
}

// expectDecided ends the test unless the server has allowed the call.
func expectDecided(t *testing.T, decision tokenbucket.Decision) {
	t.Helper()
	if !decision.Allowed || decision.Degraded {
		t.Fatalf("%+v", decision)
	}
}

func errorOf[T any](_ T, err error) error { return err }

func TestMistakesAreErrorsUnderEveryPolicy(t *testing.T) {
	fake := tokenbuckettest.NewServer()
	limits := tokenbucket.NewServer(fake, tokenbucket.LogTo(t.Logf))
	of := func(capacity float64, rate string, options ...tokenbucket.LimiterOption) *tokenbucket.Limiter {
		return tokenbucket.NewLimiter(limits, tokenbucket.Limit{Capacity: capacity, Rate: rate}, options...)
	}
	manyLimits, many, either := map[string]tokenbucket.Limit{}, map[string]float64{}, []map[string]float64{}
	for i := 0; i < 1025; i++ {
		which := strconv.Itoa(i)
		manyLimits[which], many[which] = hourly, 1
		either = append(either, map[string]float64{which: 1})
	}
	for _, broken := range []error{nil, errors.New("unplugged")} {
		fake.Break(broken)
		for policy := tokenbucket.FailLocal; policy <= tokenbucket.FailWithError; policy++ {
			on := tokenbucket.OnError(policy)
			joint := tokenbucket.NewJointLimiter(limits, map[string]tokenbucket.Limit{"x": hourly}, on)
			large := tokenbucket.NewJointLimiter(limits, manyLimits, on)
			for what, err := range map[string]error{
				"a cost":     errorOf(of(1, "1", on).Take(ctx, "a", math.NaN())),
				"a capacity": errorOf(of(-1, "1", on).Take(ctx, "a", 1)),
				"a rate":     errorOf(of(1, "often", on).Take(ctx, "a", 1)),
				"no rate":    errorOf(of(1, "0@d", on).Take(ctx, "a", 1)),
				"too slow":   errorOf(of(1e6, "1/h", on).Take(ctx, "a", 1)),
				"a debt":     errorOf(of(1, "1", on).Charge(ctx, "a", 1e13)),
				"a batch":    errorOf(of(1, "1", on, tokenbucket.Batch(-1)).Take(ctx, "a", 1)),
				"denials":    errorOf(of(1, "1", on, tokenbucket.RememberDenials(-1)).Take(ctx, "a", 1)),
				"a policy":   errorOf(of(9, "1", tokenbucket.OnError(7), tokenbucket.Batch(2)).Take(ctx, "a", 1)),
				"one more":   errorOf(of(1, "1", tokenbucket.OnError(7)).Hold(ctx, "a", 1, time.Minute)),
				"a hold":     errorOf(of(1, "1", on).Hold(ctx, "a", -1, time.Minute)),
				"no time":    errorOf(of(1, "1", on).Hold(ctx, "a", 1, 0)),
				"a wait":     errorOf(of(1, "1", on).Take(ctx, "a", 1, tokenbucket.MaxWait(31*24*time.Hour))),
				"a limit":    errorOf(joint.TakeAll(ctx, "a", map[string]float64{"y": 1})),
				"no limit":   errorOf(joint.Hold(ctx, "a", nil, time.Minute)),
				"many":       errorOf(large.TakeAll(ctx, "a", many)),
				"any":        errorOf(large.TakeAny(ctx, "a", either)),
			} {
				if !errors.Is(err, tokenbucket.ErrBadArgument) || !errors.Is(err, tokenbucket.ErrTokenBucket) {
					t.Errorf("%s under policy %d, broken by %v: %v", what, policy, broken, err)
				}
			}
		}
	}
}

func TestEveryDecisionIsTold(t *testing.T) {
	fake := tokenbuckettest.NewServer()
	var told []string
	tell := tokenbucket.OnDecision(func(name string, limit tokenbucket.Limit, decision tokenbucket.Decision, _ time.Duration) {
		if limit != hourly {
			t.Errorf("%+v", limit)
		}
		word := "denied"
		if decision.Allowed {
			word = "allowed"
		}
		told = append(told, name+" "+word)
	})
	server := tokenbucket.NewServer(fake)
	limiter := tokenbucket.NewLimiter(server, hourly, tell, tokenbucket.RememberDenials(1))
	must(t)(limiter.Take(ctx, "a", 10))
	must(t)(limiter.Take(ctx, "a", 1))
	must(t)(limiter.Take(ctx, "a", 1)) // refused here
	must(t)(limiter.TakeUpTo(ctx, "b", 1))
	joint := tokenbucket.NewJointLimiter(server, map[string]tokenbucket.Limit{"x": hourly, "y": hourly}, tell)
	if _, err := joint.TakeAll(ctx, "c", map[string]float64{"x": 1, "y": 1}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"a allowed", "a denied", "a denied", "b allowed", "{c}:x allowed", "{c}:y allowed"}; !reflect.DeepEqual(told, want) {
		t.Fatalf("%q, want %q", told, want)
	}
}

func TestHeaders(t *testing.T) {
	limit := tokenbucket.Limit{Capacity: 100, Rate: "100/m"}
	for _, c := range []struct {
		name     string
		limit    tokenbucket.Limit
		decision tokenbucket.Decision
		want     map[string]string
	}{
		{"allowed", limit, tokenbucket.Decision{Allowed: true, Remaining: 99, ResetAfter: 600 * time.Millisecond},
			map[string]string{"RateLimit-Policy": `"api";q=100;w=60`, "RateLimit": `"api";r=99;t=1`}},
		{"denied", limit, tokenbucket.Decision{RetryAfter: 1001 * time.Millisecond, ResetAfter: time.Minute},
			map[string]string{"RateLimit-Policy": `"api";q=100;w=60`, "RateLimit": `"api";r=0;t=60`, "Retry-After": "2"}},
		{"in debt", limit, tokenbucket.Decision{Remaining: -7, RetryAfter: time.Second, ResetAfter: time.Minute},
			map[string]string{"RateLimit-Policy": `"api";q=100;w=60`, "RateLimit": `"api";r=0;t=60`, "Retry-After": "1"}},
		{"never", limit, tokenbucket.Decision{RetryAfter: tokenbucket.Never},
			map[string]string{"RateLimit-Policy": `"api";q=100;w=60`, "RateLimit": `"api";r=0;t=0`}},
		{"a pool", tokenbucket.Limit{Capacity: 3, Rate: "0"}, tokenbucket.Decision{Allowed: true, Remaining: 2, ResetAfter: tokenbucket.Never},
			map[string]string{"RateLimit-Policy": `"api";q=3`, "RateLimit": `"api";r=2`}},
		{"an override counts", tokenbucket.Limit{Capacity: 9.5, Rate: "1"},
			tokenbucket.Decision{Allowed: true, Remaining: 10, ResetAfter: time.Second}, map[string]string{"RateLimit": `"api";r=10;t=1`}},
		{"nobody asked", limit, tokenbucket.Decision{RetryAfter: 500 * time.Millisecond, Degraded: true},
			map[string]string{"Retry-After": "1"}},
	} {
		if got := c.decision.Headers(c.limit, "api", 0); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestResetDeletesTheBucketOfTheScript(t *testing.T) {
	var sent []any
	limits := tokenbucket.NewServer(doing(func(_ context.Context, args ...any) (any, error) {
		sent = args
		return int64(1), nil
	}), tokenbucket.ByScript())
	if err := tokenbucket.NewLimiter(limits, hourly).Reset(ctx, "a"); err != nil || fmt.Sprint(sent) != "[DEL tb:a:script]" {
		t.Fatal(sent, err)
	}
}
