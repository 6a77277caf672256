package goredis_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http/httptest"
	"sync"
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
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: certified.TLS.Certificates})
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
		limits := tokenbucket.NewServer(from(t, redis.NewClient(&redis.Options{Addr: address, TLSConfig: config})),
			tokenbucket.Timeout(5*time.Second), tokenbucket.LogTo(log.Printf))
		for i := 0; i < 3; i++ {
			decision, err := tokenbucket.NewLimiter(limits, hourly, tokenbucket.OnError(tokenbucket.FailOpen)).Take(ctx, "a", 1)
			if err == nil || decision.Allowed {
				t.Errorf("%s: %+v", name, decision)
			}
		}
		log.Expect(t)
		limits.Close()
	}
}

func TestAConnectionByTLSThatEndedIsNotUsed(t *testing.T) {
	address, drop := secured(t, realserver.Start(t).Address())
	limits := tokenbucket.NewServer(from(t, redis.NewClient(&redis.Options{Addr: address, TLSConfig: &tls.Config{InsecureSkipVerify: true}})),
		tokenbucket.Timeout(5*time.Second))
	defer limits.Close()
	limiter := tokenbucket.NewLimiter(limits, hourly)
	left(t, 5)(limiter.Take(ctx, "a", 5))
	for i := int64(6); i < 10; i++ {
		drop() // a call that must happen once is not sent again
		left(t, i)(limiter.Give(ctx, "a", 1))
	}
}
