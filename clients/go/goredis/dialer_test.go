package goredis

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"tokenbucket/internal/realserver"
)

func TestOneLookAtATimeAndNoneAfterTheEnd(t *testing.T) {
	var looks atomic.Int64
	d := &dialer{master: &master{}, next: func(context.Context, string, string) (net.Conn, error) {
		looks.Add(1)
		return nil, errors.New("broken")
	}}
	d.life, d.end = context.WithCancel(context.Background())
	for i := 0; i < 100; i++ {
		d.look()
	}
	realserver.Eventually(t, "it looks", func() bool { return looks.Load() == 1 })
	d.end()
	realserver.Eventually(t, "it ends", func() bool { return !d.master.isLooking.Load() })
	d.look()
	if d.master.isLooking.Load() || looks.Load() != 1 {
		t.Fatal("it looks again")
	}
}

func TestAReplyThatTricklesInHasOneTimeout(t *testing.T) {
	client, server := net.Pipe()
	d := &dialer{next: func(context.Context, string, string) (net.Conn, error) { return client, nil }}
	conn, _, err := d.open(context.Background(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		_, _ = server.Read(make([]byte, 1))
		for err := error(nil); err == nil; time.Sleep(time.Millisecond) {
			_, err = server.Write([]byte("!"))
		}
	}()
	_, _ = conn.Write([]byte("?"))
	_ = conn.SetReadDeadline(time.Now())
	for began := time.Now(); err == nil; {
		if _, err = conn.Read(make([]byte, 1)); time.Since(began) > time.Second {
			t.Fatal("it goes on reading")
		}
	}
}

func TestALateConnectionToAnotherMasterServesTheNextCall(t *testing.T) {
	client, _ := net.Pipe()
	var dials atomic.Int64
	let := make(chan struct{})
	d := &dialer{late: make(chan lateConn), master: &master{address: "the former", moved: make(chan struct{})}}
	d.life, d.end = context.WithCancel(context.Background())
	defer d.end()
	d.next = func(ctx context.Context, _, _ string) (net.Conn, error) {
		if dials.Add(1) == 1 {
			<-let
			return client, nil
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	left, leave := context.WithCancel(d.life)
	leave()
	if _, err := d.dial(left, "tcp", ""); err == nil {
		t.Fatal("its caller left")
	}
	realserver.Eventually(t, "it dials", func() bool { return dials.Load() == 1 })
	close(let)
	conn, err := d.dial(context.Background(), "tcp", "")
	if err != nil || conn.RemoteAddr() != client.RemoteAddr() {
		t.Fatal(conn, err)
	}
}

// A slow server has work enough without connections anew.
func TestIdleConnectionsStayWhileOthersHear(t *testing.T) {
	var servers []net.Conn
	d := &dialer{next: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		servers = append(servers, server)
		return client, nil
	}}
	var conns []net.Conn
	ask := func(who int) {
		go func() { _, _ = servers[who].Read(make([]byte, 1)) }()
		if _, err := conns[who].Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(who int) {
		go func() { _, _ = servers[who].Write([]byte("!")) }()
		if _, err := conns[who].Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	for who := 0; who < 2; who++ {
		conn, _, err := d.open(context.Background(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		ask(who)
		hear(who) // it is greeted
	}
	for want, others := range []bool{true, false} {
		ask(0)
		if others {
			ask(1)
			hear(1)
		}
		_ = conns[0].SetReadDeadline(time.Now())
		if _, err := conns[0].Read(make([]byte, 1)); err == nil {
			t.Fatal("it heard something")
		}
		if got := d.generation.Load(); got != int64(want) {
			t.Errorf("generation %d, want %d", got, want)
		}
	}
}
