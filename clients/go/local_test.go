package tokenbucket_test

import (
	"errors"
	"fmt"
	"testing"

	"tokenbucket"
	"tokenbucket/tokenbuckettest"
)

// An attacker who has more names than the local limiter keeps buckets gets back none that is empty.
func TestManyNamesDoNotRefillABucketOfTheLocalLimiter(t *testing.T) {
	fake := tokenbuckettest.NewServer()
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(fake, tokenbucket.LogTo(t.Logf)), hourly)
	fake.Break(errors.New("unplugged"))
	expectAllowed(t)(limiter.Take(ctx, "a", 10))
	for i := 0; i < 10_001; i++ {
		expectAllowed(t)(limiter.Take(ctx, fmt.Sprint(i), 1))
	}
	if got := must(t)(limiter.Take(ctx, "a", 1)); got.Allowed || !got.Degraded {
		t.Fatalf("%+v", got)
	}
	for i := 0; i < 10; i++ { // a name that finds no room is limited while it is used
		if got := must(t)(limiter.Take(ctx, "new", 5)); got.Allowed != (i < 2) {
			t.Fatalf("call %d: %+v", i, got)
		}
	}
}
