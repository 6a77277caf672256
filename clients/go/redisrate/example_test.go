package redisrate_test

import (
	"context"
	"fmt"

	"tokenbucket"
	"tokenbucket/redisrate"
	"tokenbucket/tokenbuckettest"
)

func ExampleLimiter_Allow() {
	limiter := redisrate.NewLimiter(tokenbucket.NewServer(tokenbuckettest.NewServer()))
	result, err := limiter.Allow(context.Background(), "user:42", redisrate.PerSecond(10))
	fmt.Println(result.Allowed, result.Remaining, err)
	// Output: 1 9 <nil>
}

func ExampleLimiter_AllowN() {
	limiter := redisrate.NewLimiter(tokenbucket.NewServer(tokenbuckettest.NewServer()))
	limit := redisrate.PerMinute(60)
	result, _ := limiter.AllowN(context.Background(), "user:42", limit, 50)
	fmt.Println(result.Allowed, result.Remaining)
	result, _ = limiter.AllowN(context.Background(), "user:42", limit, 50)
	fmt.Println(result.Allowed, result.RetryAfter)
	// Output:
	// 50 10
	// 0 40s
}

func ExampleLimiter_AllowAtMost() {
	limiter := redisrate.NewLimiter(tokenbucket.NewServer(tokenbuckettest.NewServer()))
	result, _ := limiter.AllowAtMost(context.Background(), "user:42", redisrate.PerHour(5), 8)
	fmt.Println(result.Allowed)
	// Output: 5
}

func ExampleLimiter_Reset() {
	limiter := redisrate.NewLimiter(tokenbucket.NewServer(tokenbuckettest.NewServer()))
	fmt.Println(limiter.Reset(context.Background(), "user:42"))
	// Output: <nil>
}
