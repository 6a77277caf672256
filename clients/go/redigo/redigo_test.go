package redigo_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"tokenbucket"
	"tokenbucket/internal/realserver"
	"tokenbucket/redigo"
)

var hourly = tokenbucket.Limit{Capacity: 10, Rate: "10/h"}

func poolOf(server *realserver.Server) *redis.Pool {
	return &redis.Pool{MaxIdle: 10, Dial: func() (redis.Conn, error) { return redis.Dial("tcp", server.Address()) }}
}

func TestConnectionsGoBackToThePool(t *testing.T) {
	pool := poolOf(realserver.Start(t))
	defer pool.Close()
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(redigo.From(pool), tokenbucket.Timeout(5*time.Second)), hourly)
	for i := 0; i < 30; i++ {
		if decision, err := limiter.Take(context.Background(), "a", 1); err != nil || decision.Degraded {
			t.Fatal(decision, err)
		}
	}
	if stats := pool.Stats(); stats.ActiveCount != 1 || stats.IdleCount != 1 {
		t.Fatalf("%+v", stats)
	}
}

func TestAPoolThatIsShortOfConnectionsIsNoOutage(t *testing.T) {
	pool := poolOf(realserver.Start(t))
	pool.MaxActive = 2 // and Wait is false
	taken := pool.Get()
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(redigo.From(pool), tokenbucket.Timeout(5*time.Second)), hourly)
	var wait sync.WaitGroup
	for i := 0; i < 50; i++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			if decision, err := limiter.Take(context.Background(), "a", 1); err != nil || decision.Degraded {
				t.Error(decision, err)
			}
		}()
	}
	wait.Wait()
	taken.Close()
}

func TestErrorsNameTheAddress(t *testing.T) {
	server := realserver.Start(t)
	limits := tokenbucket.NewServer(redigo.From(poolOf(server), redigo.Address(server.Address())), tokenbucket.Timeout(5*time.Second))
	_, err := tokenbucket.NewLimiter(limits, hourly).Take(context.Background(), "a", -1)
	if err == nil || !strings.Contains(err.Error(), server.Address()) {
		t.Fatal(err)
	}
}

// A connection that read too late would hand its reply to the next caller.
func TestAConnectionIsNotUsedAgainAfterADeadline(t *testing.T) {
	doer := redigo.From(poolOf(realserver.Start(t)))
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if reply, err := doer.Do(short, "BLPOP", "nothing", "1"); err == nil {
		t.Fatal(reply)
	}
	if reply, err := doer.Do(context.Background(), "ECHO", "mine"); err != nil || string(reply.([]byte)) != "mine" {
		t.Fatal(reply, err)
	}
}
