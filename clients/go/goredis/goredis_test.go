package goredis_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/goredis"
	"tokenbucket/internal/realserver"
)

func TestALimiterOnGoRedis(t *testing.T) {
	doer, err := goredis.From(redis.NewClient(&redis.Options{Addr: realserver.Start(t).Address()}))
	if err != nil {
		t.Fatal(err)
	}
	server := tokenbucket.NewServer(doer, tokenbucket.Timeout(5*time.Second))
	defer server.Close()
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "10/h"})
	for want := int64(7); want > 0; want -= 3 {
		if decision, err := limiter.Take(context.Background(), "a", 3); err != nil || decision.Degraded || decision.Remaining != want {
			t.Fatal(decision, err)
		}
	}
	if decision, err := limiter.Give(context.Background(), "a", 1); err != nil || decision.Degraded || decision.Remaining != 2 {
		t.Fatal(decision, err)
	}
	var answer redis.Error
	if _, err := limiter.Take(context.Background(), "a", -1); !errors.As(err, &answer) || !errors.Is(err, tokenbucket.ErrBadArgument) {
		t.Fatal("the client's own error:", err)
	}
}

func TestAClientOfUnknownShapeIsAnError(t *testing.T) {
	if _, err := goredis.From(redis.NewRing(&redis.RingOptions{})); !errors.Is(err, tokenbucket.ErrBadArgument) {
		t.Fatal(err)
	}
}
