package tokenbuckettest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tokenbucket"
	"tokenbucket/tokenbuckettest"
)

func ExampleServer() {
	fake := tokenbuckettest.NewServer()
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(fake), tokenbucket.Limit{Capacity: 1, Rate: "1"})
	take := func() bool {
		decision, _ := limiter.Take(context.Background(), "user:42", 1)
		return decision.Allowed
	}
	fmt.Println(take(), take())
	fake.Advance(time.Second)
	fmt.Println(take())
	// Output:
	// true false
	// true
}

func ExampleServer_Break() {
	fake := tokenbuckettest.NewServer()
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(fake), tokenbucket.Limit{Capacity: 1, Rate: "1"})
	fake.Break(errors.New("no route to host"))
	decision, err := limiter.Take(context.Background(), "user:42", 1)
	fmt.Println(decision.Allowed, decision.Degraded, err) // this process decides
	// Output: true true <nil>
}
