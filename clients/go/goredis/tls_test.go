package goredis_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/internal/realserver"
)

// secured is an address at which a server speaks TLS, and what ends its connections.
func secured(t *testing.T, server string) (address string, drop func()) {
	certified := httptest.NewTLSServer(nil) // has a certificate that no authority has signed
	t.Cleanup(certified.Close)
	// It sends its tickets, to clients that keep them, after the handshake if it asks for certificates.
	config := &tls.Config{Certificates: certified.TLS.Certificates, ClientAuth: tls.RequestClientCert}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	var mutex sync.Mutex
	var open []net.Conn
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			plain, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			mutex.Lock()
			open = append(open, client, plain)
			mutex.Unlock()
			go func() { _, _ = io.Copy(plain, client); plain.Close() }()
			go func() { _, _ = io.Copy(client, plain); client.Close() }()
		}
	}()
	return listener.Addr().String(), func() {
		mutex.Lock()
		defer mutex.Unlock()
		for _, conn := range open {
			conn.Close()
		}
	}
}

func TestAWrongCertificateIsAnErrorAndNoOutage(t *testing.T) {
	address, _ := secured(t, realserver.Start(t).Address())
	for name, config := range map[string]*tls.Config{"authority": {}, "version": {InsecureSkipVerify: true, MaxVersion: tls.VersionTLS10}} {
		log := &realserver.Log{}
		client := redis.NewClient(&redis.Options{Addr: address, TLSConfig: config})
		limits := serverOf(t, client, tokenbucket.Timeout(5*time.Second), tokenbucket.LogTo(log.Printf))
		for i := 0; i < 3; i++ {
			decision, err := tokenbucket.NewLimiter(limits, hourly, tokenbucket.OnError(tokenbucket.FailOpen)).Take(ctx, "a", 1)
			if err == nil || decision.Allowed {
				t.Errorf("%s: %+v", name, decision)
			}
		}
		log.Expect(t)
	}
}

func TestAConnectionByTLSThatEndedIsNotUsed(t *testing.T) {
	address, drop := secured(t, realserver.Start(t).Address())
	client := redis.NewClient(&redis.Options{Addr: address, TLSConfig: &tls.Config{InsecureSkipVerify: true}})
	limiter := limiterOf(t, client, tokenbucket.Timeout(5*time.Second))
	left(t, 5)(limiter.Take(ctx, "a", 5))
	for i := int64(6); i < 10; i++ {
		drop() // a call that must happen once is not sent again
		left(t, i)(limiter.Give(ctx, "a", 1))
	}
}

// From TLS 1.3 on, a server sends tickets once a connection is there.
func TestAConnectionByTLSWhoseCallLeftServesTheNext(t *testing.T) {
	address, _ := secured(t, realserver.Start(t).Address())
	config := &tls.Config{InsecureSkipVerify: true, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	hurried, leave := context.WithCancel(ctx)
	var dials atomic.Int64
	gone := make(chan struct{})
	dial := func(_ context.Context, network, _ string) (net.Conn, error) {
		if dials.Add(1) > 1 {
			return nil, errors.New("one is enough")
		}
		conn, err := tls.Dial(network, address, config)
		leave()
		<-gone
		return conn, err
	}
	limiter := limiterOf(t, redis.NewClient(&redis.Options{Dialer: dial}),
		tokenbucket.Timeout(5*time.Second), tokenbucket.RetryEvery(time.Nanosecond))
	if decision, err := limiter.Take(hurried, "a", 1); err == nil {
		t.Fatalf("%+v: its caller left", decision)
	}
	close(gone)
	decided := make(chan bool, 1)
	go func() {
		for !isDecided(limiter, "a") {
		}
		decided <- true
	}()
	realserver.Eventually(t, "each call ends, and one is decided", func() bool { return len(decided) == 1 })
}
