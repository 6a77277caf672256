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

func ExampleLimiter_Take() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "5/s"})
	decision, err := limiter.Take(ctx, "user:42", 8)
	fmt.Println(decision.Allowed, decision.Remaining, err)
	decision, err = limiter.Take(ctx, "user:42", 8)
	fmt.Println(decision.Allowed, decision.RetryAfter, err)
	// Output:
	// true 2 <nil>
	// false 1.2s <nil>
}

func ExampleLimiter_Peek() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "5/s"})
	decision, _ := limiter.Peek(ctx, "user:42", 0)
	fmt.Println(decision.Remaining)
	// Output: 10
}

func ExampleLimiter_TakeUpTo() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "5/s"})
	decision, _ := limiter.TakeUpTo(ctx, "user:42", 25)
	fmt.Println(decision.Granted)
	// Output: 10
}

func ExampleLimiter_Reserve() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 1, Rate: "1/s"})
	for i := 0; i < 3; i++ {
		decision, _ := limiter.Reserve(ctx, "user:42", 1, 1500*time.Millisecond)
		fmt.Println(decision.Allowed, decision.RetryAfter)
	}
	// Output:
	// true 0s
	// true 1s
	// false 2s
}

func ExampleLimiter_Wait() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 1, Rate: "1/s"})
	for i := 0; i < 2; i++ {
		decision, err := limiter.Wait(ctx, "user:42", 1, time.Second) // sleeps for a second the second time
		fmt.Println(decision.Allowed, err)
	}
	// Output:
	// true <nil>
	// true <nil>
}

func ExampleLimiter_Charge() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "5/s"})
	decision, _ := limiter.Charge(ctx, "user:42", 12)
	fmt.Println(decision.Remaining)
	// Output: -2
}

func ExampleLimiter_Give() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "5/s"})
	limiter.Take(ctx, "user:42", 8)
	decision, _ := limiter.Give(ctx, "user:42", 3)
	fmt.Println(decision.Remaining)
	// Output: 5
}

func ExampleLimiter_Hold() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 1000, Rate: "1000/m"})
	hold, err := limiter.Hold(ctx, "user:42", 500, time.Minute) // the most that the work may cost
	if err != nil || !hold.Decision().Allowed {
		return
	}
	defer hold.Settle()
	if err := hold.Used(120); err != nil { // what it did cost
		return
	}
	settled, _ := hold.Settle()
	fmt.Println(settled.Remaining)
	// Output: 880
}

func ExampleLimiter_WithHold() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	jobs := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 1, Rate: "0"}) // a semaphore
	err := jobs.WithHold(ctx, "import", 1, time.Minute, func(*tokenbucket.Hold) error {
		return jobs.WithHold(ctx, "import", 1, time.Minute, func(*tokenbucket.Hold) error { return nil })
	})
	fmt.Println(errors.Is(err, tokenbucket.ErrDenied))
	// Output: true
}

func ExampleHold_Lost() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 3, Rate: "0"})
	hold, _ := limiter.Hold(ctx, "import", 1, time.Minute)
	defer hold.Settle()
	select {
	case <-hold.Lost():
		fmt.Println("stop: other calls may have the place")
	default:
		fmt.Println("go on")
	}
	// Output: go on
}

func ExampleHold_UsedOf() {
	ctx := context.Background()
	limiter := tokenbucket.NewJointLimiter(tokenbucket.NewServer(tokenbuckettest.NewServer()), map[string]tokenbucket.Limit{
		"tokens":   {Capacity: 10_000, Rate: "10000/m"},
		"inflight": {Capacity: 3, Rate: "0"},
	})
	hold, _ := limiter.Hold(ctx, "user:42", map[string]float64{"tokens": 500, "inflight": 1}, time.Minute)
	fmt.Println(hold.UsedOf("tokens", 120))
	settled, _ := hold.Settle()
	fmt.Println(settled.Each["tokens"].Remaining, settled.Each["inflight"].Remaining)
	// Output:
	// <nil>
	// 9880 3
}

func ExampleJointLimiter_TakeAll() {
	ctx := context.Background()
	limiter := tokenbucket.NewJointLimiter(tokenbucket.NewServer(tokenbuckettest.NewServer()), map[string]tokenbucket.Limit{
		"requests": {Capacity: 60, Rate: "60/m"},
		"tokens":   {Capacity: 10_000, Rate: "10000/m"},
	})
	decision, _ := limiter.TakeAll(ctx, "user:42", map[string]float64{"requests": 1, "tokens": 400})
	fmt.Println(decision.Allowed, decision.Each["requests"].Remaining, decision.Each["tokens"].Remaining)
	// Output: true 59 9600
}

func ExampleMaxWait() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 1, Rate: "1/s"})
	for i := 0; i < 2; i++ {
		decision, _ := limiter.Take(ctx, "user:42", 1, tokenbucket.MaxWait(2*time.Second))
		fmt.Println(decision.Allowed)
	}
	// Output:
	// true
	// true
}

func ExampleShare() {
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

func ExampleOnError() {
	ctx := context.Background()
	fake := tokenbuckettest.NewServer()
	server := tokenbucket.NewServer(fake)
	limit := tokenbucket.Limit{Capacity: 5, Rate: "5/15m"}
	logins := tokenbucket.NewLimiter(server, limit, tokenbucket.Prefix("login:"), tokenbucket.OnError(tokenbucket.FailClosed))
	fake.Break(errors.New("no route to host"))
	decision, err := logins.Take(ctx, "ada", 1)
	fmt.Println(decision.Allowed, decision.Degraded, err)
	// Output: false true <nil>
}

func ExampleRememberDenials() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 1, Rate: "1/h"}, tokenbucket.RememberDenials(1000))
	for i := 0; i < 3; i++ {
		decision, _ := limiter.Take(ctx, "user:42", 1) // this process denies the third by itself
		fmt.Println(decision.Allowed)
	}
	// Output:
	// true
	// false
	// false
}

func ExampleBatch() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 100, Rate: "100/s"}, tokenbucket.Batch(10))
	decision, _ := limiter.Take(ctx, "user:42", 1) // fetches ten, for this call and the next nine
	fmt.Println(decision.Allowed)
	fmt.Println(limiter.Close(ctx)) // gives nine back
	// Output:
	// true
	// <nil>
}

func ExampleShadow() {
	server := tokenbucket.NewServer(tokenbuckettest.NewServer())
	wouldDeny := tokenbucket.OnDecision(func(name string, _ tokenbucket.Limit, decision tokenbucket.Decision, _ time.Duration) {
		if decision.Shadowed {
			fmt.Println(name, "would be denied for", decision.RetryAfter)
		}
	})
	limit := tokenbucket.Limit{Capacity: 1, Rate: "1/m"}
	limiter := tokenbucket.NewLimiter(server, limit, tokenbucket.Shadow(true), wouldDeny)
	for i := 0; i < 2; i++ {
		decision, err := limiter.Take(context.Background(), "user:42", 1)
		fmt.Println(decision.Allowed, err)
	}
	// Output:
	// true <nil>
	// user:42 would be denied for 1m0s
	// true <nil>
}

func ExampleDecision_Err() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 1, Rate: "1/s"})
	limiter.Take(ctx, "user:42", 1)
	decision, _ := limiter.Take(ctx, "user:42", 1)
	var denied *tokenbucket.DeniedError
	fmt.Println(errors.As(decision.Err(), &denied) && errors.Is(denied, tokenbucket.ErrDenied), denied.Decision.RetryAfter)
	// Output: true 1s
}

func ExampleDecision_Headers() {
	ctx, server := context.Background(), tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "5/s"})
	decision, _ := limiter.Take(ctx, "user:42", 4)
	headers := decision.Headers(limiter.Limit(), "search", 0)
	fmt.Println(headers["RateLimit-Policy"], headers["RateLimit"])
	// Output: "search";q=10;w=2 "search";r=6;t=1
}

func ExampleServer_Do() {
	ctx := context.Background()
	server := tokenbucket.NewServer(tokenbuckettest.NewServer())
	reply, err := server.Do(ctx, "TB.TAKE", "tb:user:42", "10", "5/s")
	fmt.Println(reply, err)
	// Output: [1 9 0 200] <nil>
}

func ExampleLimit() {
	quota := tokenbucket.Limit{Capacity: 1000, Rate: "1000@d"} // 1000 a day, all of them at midnight UTC
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(tokenbuckettest.NewServer()), quota)
	decision, err := limiter.Take(context.Background(), "user:42", 1)
	fmt.Println(decision.Remaining, decision.ResetAfter, err)
	// Output: 999 24h0m0s <nil>
}
