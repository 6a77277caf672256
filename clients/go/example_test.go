package tokenbucket_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tokenbucket"
	"tokenbucket/tokenbuckettest"
)

func Example() {
	server := tokenbucket.NewServer(tokenbuckettest.NewServer()) // or the Doer that goredis.From returns
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "5/s"})
	decision, err := limiter.Take(context.Background(), "user:42", 1)
	if err != nil {
		panic(err) // a mistake, such as a wrong limit
	}
	if decision.Allowed {
		fmt.Println("go on,", decision.Remaining, "left")
	} else {
		fmt.Println("come back in", decision.RetryAfter)
	}
	// Output: go on, 9 left
}

func ExampleLimiter() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "5/s"})
	show := func(what string, decision tokenbucket.Decision, err error) {
		if err != nil {
			panic(err)
		}
		fmt.Println(what, decision.Allowed, decision.Granted, decision.Remaining, decision.RetryAfter)
	}
	decision, err := limiter.Take(ctx, "user:42", 8)
	show("take", decision, err)
	decision, err = limiter.Peek(ctx, "user:42", 8)
	show("peek", decision, err)
	decision, err = limiter.TakeUpTo(ctx, "user:42", 25)
	show("take up to", decision, err)
	decision, err = limiter.Charge(ctx, "user:42", 2)
	show("charge", decision, err)
	decision, err = limiter.Give(ctx, "user:42", 2)
	show("give", decision, err)
	decision, err = limiter.Reserve(ctx, "user:42", 5, 1500*time.Millisecond)
	show("reserve", decision, err)
	decision, err = limiter.Wait(ctx, "user:42", 5, time.Minute) // sleeps for two seconds
	show("wait", decision, err)
	// Output:
	// take true 1 2 0s
	// peek false 0 2 1.2s
	// take up to true 2 0 0s
	// charge true 1 -2 400ms
	// give true 1 0 0s
	// reserve true 1 -5 1s
	// wait true 1 -10 2s
}

func ExampleHold() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 1000, Rate: "1000/m"})
	hold, err := limiter.Hold(ctx, "user:42", 500, time.Minute) // the most that the work may cost
	if err != nil || !hold.Decision().Allowed {
		return
	}
	defer hold.Settle()
	select {
	case <-hold.Lost():
		fmt.Println("stop: other calls may have the tokens")
	default:
		fmt.Println("go on")
	}
	if err := hold.Used(120); err != nil { // what it did cost
		return
	}
	settled, _ := hold.Settle()
	fmt.Println(settled.Remaining)
	// Output:
	// go on
	// 880
}

func ExampleJointLimiter() {
	ctx := context.Background()
	limiter := tokenbucket.NewJointLimiter(tokenbucket.NewServer(tokenbuckettest.NewServer()), map[string]tokenbucket.Limit{
		"tokens":   {Capacity: 10_000, Rate: "10000/m"},
		"inflight": {Capacity: 3, Rate: "0"},
	})
	decision, _ := limiter.TakeAll(ctx, "user:42", map[string]float64{"tokens": 400})
	fmt.Println(decision.Allowed, decision.Each["tokens"].Remaining)
	hold, _ := limiter.Hold(ctx, "user:42", map[string]float64{"tokens": 500, "inflight": 1}, time.Minute)
	fmt.Println(hold.UsedOf("tokens", 120))
	settled, _ := hold.Settle()
	fmt.Println(settled.Each["tokens"].Remaining, settled.Each["inflight"].Remaining)
	fmt.Println(limiter.Reset(ctx, "user:42")) // both are full
	// Output:
	// true 9600
	// <nil>
	// 9480 3
	// <nil>
}

func ExampleJointLimiter_TakeAny() {
	account := tokenbucket.Limit{Capacity: 1000, Rate: "1000/m"}
	accounts := tokenbucket.NewJointLimiter(tokenbucket.NewServer(tokenbuckettest.NewServer()), map[string]tokenbucket.Limit{"a": account, "b": account})
	either := []map[string]float64{{"a": 800}, {"b": 800}} // the best first
	for i := 0; i < 3; i++ {
		decision, err := accounts.TakeAny(context.Background(), "llm", either)
		fmt.Println(decision.Granted, err)
	}
	hold, err := accounts.HoldAny(context.Background(), "llm", []map[string]float64{{"a": 500}, {"b": 200}}, time.Minute)
	fmt.Println(hold.Decision().Granted, hold.UsedOf("b", 50), err)
	// Output:
	// 1 <nil>
	// 2 <nil>
	// 0 <nil>
	// 2 <nil> <nil>
}

func ExampleCallOption() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 1, Rate: "1/s"})
	// While calls of both tenants wait, acme gets three times as many tokens as other.
	for _, share := range []tokenbucket.CallOption{tokenbucket.Share("acme", 3), tokenbucket.Share("other", 1)} {
		decision, _ := limiter.Take(ctx, "model", 1, tokenbucket.MaxWait(time.Minute), share)
		fmt.Println(decision.Allowed)
	}
	// Output:
	// true
	// true
}

func ExampleLimiterOption() {
	ctx, fake := context.Background(), tokenbuckettest.NewServer()
	server := tokenbucket.NewServer(fake)
	limit := tokenbucket.Limit{Capacity: 10, Rate: "10/h"}

	hot := tokenbucket.NewLimiter(server, limit, tokenbucket.Batch(4), tokenbucket.RememberDenials(1000))
	decision, _ := hot.Take(ctx, "hot", 1) // fetches four, for this call and the next three
	fmt.Println(decision.Allowed, hot.Close(ctx))

	wouldDeny := tokenbucket.OnDecision(func(name string, _ tokenbucket.Limit, decision tokenbucket.Decision, _ time.Duration) {
		if decision.Shadowed {
			fmt.Println(name, "would be denied for", decision.RetryAfter)
		}
	})
	trial := tokenbucket.NewLimiter(server, limit, tokenbucket.Shadow(true), wouldDeny)
	decision, _ = trial.Take(ctx, "hot", 10)
	fmt.Println(decision.Allowed)

	logins := tokenbucket.NewLimiter(server, limit, tokenbucket.Prefix("login:"), tokenbucket.OnError(tokenbucket.FailClosed))
	fake.Break(errors.New("no route to host"))
	decision, err := logins.Take(ctx, "ada", 1)
	fmt.Println(decision.Allowed, decision.RetryAfter, decision.Degraded, err)
	// Output:
	// true <nil>
	// hot would be denied for 6m0s
	// true
	// false 500ms true <nil>
}

func ExampleDecision_Headers() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "5/s"})
	decision, _ := limiter.Take(ctx, "user:42", 4)
	headers := decision.Headers(limiter.Limit(), "search", 0)
	fmt.Println(headers["RateLimit-Policy"], headers["RateLimit"])
	// Output: "search";q=10;w=2 "search";r=6;t=1
}

func ExampleLimit() {
	quota := tokenbucket.Limit{Capacity: 1000, Rate: "1000@d"} // 1000 a day, all of them at midnight UTC
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(tokenbuckettest.NewServer()), quota)
	decision, err := limiter.Take(context.Background(), "user:42", 1)
	fmt.Println(decision.Remaining, decision.ResetAfter, err)
	// Output: 999 24h0m0s <nil>
}

func ExampleServer() {
	ctx, fake := context.Background(), tokenbuckettest.NewServer()
	server := tokenbucket.NewServer(fake, tokenbucket.Timeout(50*time.Millisecond), tokenbucket.RetryEvery(time.Second),
		tokenbucket.LogTo(func(format string, args ...any) { fmt.Printf(format+"\n", args...) }))
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "5/s"})
	fake.Break(errors.New("no route to host"))
	decision, err := limiter.Take(ctx, "user:42", 1) // this process decides
	fmt.Println(decision.Degraded, err, server.DegradedCount())
	fmt.Println(server.Close())
	_, err = limiter.Take(ctx, "user:42", 1)
	fmt.Println(errors.Is(err, tokenbucket.ErrClosed))
	// Output:
	// tokenbucket: cannot ask the server, every limit does as its OnError says: no route to host
	// true <nil> 1
	// <nil>
	// true
}

func ExampleByScript() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer(), tokenbucket.ByScript())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "5/s"})
	decision, err := limiter.Take(ctx, "user:42", 1)
	fmt.Println(decision.Allowed, err)
	_, err = limiter.Hold(ctx, "user:42", 1, time.Minute)
	fmt.Println(err)
	// Output:
	// true <nil>
	// tokenbucket: holds, shares and alternatives need the module, and this Server decides by the script
}

func ExampleLimiter_With() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	free := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "10/h"})
	paid := free.With(tokenbucket.Limit{Capacity: 1000, Rate: "1000/h"})
	decision, err := paid.Take(ctx, "user:42", 100)
	fmt.Println(decision.Remaining, err)
	// Output: 900 <nil>
}

// pipe is a Doer of another client library.
type pipe struct{ dial, read error }

func (p pipe) Do(context.Context, ...any) (any, error) {
	switch {
	case p.dial != nil:
		return nil, tokenbucket.Unsent(p.dial)
	case p.read != nil:
		return nil, tokenbucket.Unanswered(p.read)
	}
	return []any{int64(1), int64(9), int64(0), int64(0)}, nil
}

func ExampleUnsent() {
	for _, doer := range []pipe{{}, {dial: errors.New("no free socket")}, {read: errors.New("VPN tunnel is down")}} {
		server := tokenbucket.NewServer(doer, tokenbucket.LogTo(nil))
		limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "5/s"})
		decision, err := limiter.Give(context.Background(), "user:42", 1)
		fmt.Println(decision.Degraded, decision.Lost, err) // what was never sent is not lost
	}
	// Output:
	// false false <nil>
	// true false <nil>
	// true true <nil>
}
