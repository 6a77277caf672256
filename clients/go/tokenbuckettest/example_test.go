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
	ctx, fake := context.Background(), tokenbuckettest.NewServer()
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(fake), tokenbucket.Limit{Capacity: 1, Rate: "1"})
	take := func() {
		decision, err := limiter.Take(ctx, "user:42", 1)
		fmt.Println(decision.Allowed, decision.Degraded, err)
	}
	take()
	take()
	fake.Advance(time.Second)
	take()
	fake.Break(errors.New("no route to host")) // this process decides
	take()
	// Output:
	// true false <nil>
	// false false <nil>
	// true false <nil>
	// true true <nil>
}
