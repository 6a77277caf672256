package redisrate_test

import (
	"context"
	"fmt"

	"tokenbucket"
	"tokenbucket/redisrate"
	"tokenbucket/tokenbuckettest"
)

func ExampleLimiter() {
	ctx := context.Background()
	limiter := redisrate.NewLimiter(tokenbucket.NewServer(tokenbuckettest.NewServer()))
	result, err := limiter.Allow(ctx, "user:42", redisrate.PerSecond(10))
	fmt.Println(result.Allowed, result.Remaining, err)
	limit := redisrate.PerMinute(60)
	for i := 0; i < 2; i++ {
		result, _ = limiter.AllowN(ctx, "export", limit, 50)
		fmt.Println(result.Allowed, result.Remaining, result.RetryAfter)
	}
	result, _ = limiter.AllowAtMost(ctx, "export", limit, 50)
	fmt.Println(result.Allowed)
	fmt.Println(limiter.Reset(ctx, "export"), redisrate.PerHour(100), redisrate.Limit{}.IsZero())
	// Output:
	// 1 9 <nil>
	// 50 10 -1ns
	// 0 10 40s
	// 10
	// <nil> 100 req/h (burst 100) true
}
