package goredis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/goredis"
	"tokenbucket/internal/realserver"
)

// quiet fails the test when go-redis logs.
type quiet struct{ t *testing.T }

func (q quiet) Printf(_ context.Context, format string, words ...interface{}) {
	q.t.Errorf(format, words...)
}

// from is the Doer of a client, which it must know.
func from(t testing.TB, client redis.UniversalClient) tokenbucket.Doer {
	t.Helper()
	doer, err := goredis.From(client)
	if err != nil {
		t.Fatal(err)
	}
	return doer
}

func TestCallsShareAConnection(t *testing.T) {
	redis.SetLogger(quiet{t})
	server := realserver.Start(t)
	limits := tokenbucket.NewServer(from(t, redis.NewClient(&redis.Options{Addr: server.Address()})), tokenbucket.Timeout(5*time.Second))
	defer limits.Close()
	limiter := tokenbucket.NewLimiter(limits, tokenbucket.Limit{Capacity: 100, Rate: "100/h"})
	for i := int64(1); i <= 30; i++ {
		if decision, err := limiter.Take(context.Background(), "a", 1); err != nil || decision.Degraded || decision.Remaining != 100-i {
			t.Fatal(decision, err)
		}
	}
	if clients := strings.Count(fmt.Sprint(server.Do("CLIENT", "LIST")), "id="); clients != 2 { // one is the test's
		t.Fatalf("%d connections", clients)
	}
	var answer redis.Error
	if _, err := limiter.Take(context.Background(), "a", -1); !errors.As(err, &answer) || !errors.Is(err, tokenbucket.ErrBadArgument) {
		t.Fatal("the client's own error:", err)
	}
}

func TestAnAttemptToReachTheServerIsOneDial(t *testing.T) {
	dials := 0
	refuse := func(context.Context, string, string) (net.Conn, error) {
		dials++
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	redis.SetLogger(unheard{})
	for _, client := range []redis.UniversalClient{
		redis.NewClient(&redis.Options{Dialer: refuse}),
		redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, Dialer: refuse}),
	} {
		doer := from(t, client)
		dials = 0
		if reply, err := doer.Do(context.Background(), "PING"); err == nil || dials != 1 {
			t.Errorf("%T: %v, %v after %d dials", client, reply, err, dials)
		}
	}
}

type unheard struct{}

func (unheard) Printf(context.Context, string, ...interface{}) {}

func TestAClientOfUnknownShapeIsAnError(t *testing.T) {
	if _, err := goredis.From(redis.NewRing(&redis.RingOptions{})); !errors.Is(err, tokenbucket.ErrBadArgument) {
		t.Fatal(err)
	}
}

// A client in use changes its options: connections for calls that wait are not made of them, nor is a limiter's client.
func TestClientsInUseAreNotRead(t *testing.T) {
	address := realserver.Start(t).Address()
	for i := 0; i < 10; i++ {
		client := redis.NewClient(&redis.Options{Addr: address})
		defer client.Close()
		var over sync.WaitGroup
		begin := func(work func()) {
			over.Add(1)
			go func() { defer over.Done(); work() }()
		}
		begin(func() { client.Ping(context.Background()) })
		limits := tokenbucket.NewServer(from(t, client), tokenbucket.Timeout(5*time.Second))
		limiter := tokenbucket.NewLimiter(limits, tokenbucket.Limit{Capacity: 100, Rate: "100/h"})
		for _, options := range [][]tokenbucket.CallOption{nil, {tokenbucket.MaxWait(time.Second)}} {
			options := options
			begin(func() {
				if decision, err := limiter.Take(context.Background(), "a", 1, options...); err != nil || decision.Degraded {
					t.Error(decision, err)
				}
			})
		}
		over.Wait()
		limits.Close()
	}
}
