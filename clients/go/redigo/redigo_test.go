package redigo_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"tokenbucket"
	"tokenbucket/internal/realserver"
	"tokenbucket/redigo"
)

var hourly = tokenbucket.Limit{Capacity: 10, Rate: "10/h"}

func TestConnectionsGoBackToThePool(t *testing.T) {
	server := realserver.Start(t)
	pool := server.Pool()
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(redigo.From(pool), tokenbucket.Timeout(5*time.Second)), hourly)
	for i := 0; i < 30; i++ {
		if _, err := limiter.Take(context.Background(), "a", 1); err != nil {
			t.Fatal(err)
		}
	}
	if stats := pool.Stats(); stats.ActiveCount != 1 || stats.IdleCount != 1 {
		t.Fatalf("%+v", stats)
	}
}

// A connection that read too late would hand its reply to the next caller.
func TestAConnectionIsNotUsedAgainAfterADeadline(t *testing.T) {
	server := realserver.Start(t)
	doer := redigo.From(server.Pool())
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if reply, err := doer.Do(short, "BLPOP", "nothing", "1"); err == nil {
		t.Fatal(reply)
	}
	if reply, err := doer.Do(context.Background(), "ECHO", "mine"); err != nil || string(reply.([]byte)) != "mine" {
		t.Fatal(reply, err)
	}
}

func TestAnOverContextAsksNothing(t *testing.T) {
	over, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	if reply, err := redigo.From(realserver.Start(t).Pool()).Do(over, "PING"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(reply, err)
	}
}

// cmd has the shape of what go-redis returns.
type cmd struct {
	reply any
	err   error
}

func (c *cmd) Result() (any, error) { return c.reply, c.err }

type client struct{ conn redis.Conn }

func (c client) Do(_ context.Context, args ...any) *cmd {
	reply, err := c.conn.Do(args[0].(string), args[1:]...)
	return &cmd{reply, err}
}

func TestClientsInTheStyleOfGoRedis(t *testing.T) {
	conn, err := redis.Dial("tcp", realserver.Start(t).Address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	limits := tokenbucket.NewServer(tokenbucket.From(client{conn}.Do), tokenbucket.Timeout(5*time.Second))
	limiter := tokenbucket.NewLimiter(limits, hourly)
	if decision, err := limiter.Take(context.Background(), "a", 3); err != nil || decision.Remaining != 7 {
		t.Fatalf("%+v, %v", decision, err)
	}
	var answer redis.Error
	if _, err := limiter.Take(context.Background(), "a", -1); !errors.As(err, &answer) {
		t.Fatalf("the client's own error: %v", err)
	}
}
