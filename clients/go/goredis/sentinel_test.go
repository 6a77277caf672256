package goredis_test

import (
	"bufio"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/internal/realserver"
)

// sentinel says which master it knows.
type sentinel struct {
	address  string
	master   atomic.Value // its reply about it
	isSilent atomic.Bool
	asked    atomic.Int64 // how often about the master
}

func startSentinel(t *testing.T, reply string) *sentinel {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	s := &sentinel{address: listener.Addr().String()}
	s.master.Store(reply)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.serve(conn)
		}
	}()
	return s
}

// named is the reply that names a server.
func named(server *realserver.Server) string {
	host, port, _ := net.SplitHostPort(server.Address())
	return fmt.Sprintf("*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(host), host, len(port), port)
}

func (s *sentinel) serve(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		count, _ := strconv.Atoi(strings.TrimPrefix(lines.Text(), "*"))
		var words []string
		for i := 0; i < count && lines.Scan() && lines.Scan(); i++ {
			words = append(words, strings.ToLower(lines.Text()))
		}
		reply := "-ERR unknown command\r\n"
		switch command := strings.Join(words, " "); {
		case strings.HasPrefix(command, "sentinel get-master-addr-by-name "):
			s.asked.Add(1)
			reply = s.master.Load().(string)
		case strings.HasPrefix(command, "sentinel "):
			reply = "*0\r\n"
		case words[0] == "subscribe":
			reply = ""
			for i, channel := range words[1:] {
				reply += fmt.Sprintf("*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:%d\r\n", len(channel), channel, i+1)
			}
		}
		if !s.isSilent.Load() {
			_, _ = io.WriteString(conn, reply)
		}
	}
}

// A failover by hand leaves the former master as it was for some seconds.
func TestCallsFollowTheMasterThatSentinelNames(t *testing.T) {
	former, next := realserver.Start(t), realserver.Start(t)
	asked, log := startSentinel(t, named(former)), &realserver.Log{}
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{asked.address}})
	limiter := limiterOf(t, client, tokenbucket.Timeout(5*time.Second), tokenbucket.LogTo(log.Printf))
	left(t, 0)(limiter.Take(ctx, "a", 10))
	waited := beginTake(limiter, "a", tokenbucket.MaxWait(time.Hour))
	waits(t, former)
	asked.master.Store(named(next))
	realserver.Eventually(t, "the next master is asked", func() bool {
		decision, err := limiter.Take(ctx, "b", 1)
		return err == nil && !decision.Degraded && fmt.Sprint(next.Do("EXISTS", "tb:b")) == "1"
	})
	if decision := <-waited; !decision.Allowed || decision.Degraded {
		t.Fatalf("%+v", decision)
	}
	log.Expect(t)
}

// lossy is one of several connections, of which the first that reads a reply once they lose ends in place of it.
type lossy struct {
	*net.TCPConn
	loses *atomic.Bool
	ended bool
}

func (c *lossy) Read(buffer []byte) (n int, err error) {
	if !c.ended {
		n, err = c.TCPConn.Read(buffer)
		c.ended = err == nil && c.loses.CompareAndSwap(true, false)
	}
	if c.ended {
		return 0, io.EOF
	}
	return n, err
}

func losing(loses *atomic.Bool) func(*net.TCPConn) net.Conn {
	return func(conn *net.TCPConn) net.Conn { return &lossy{TCPConn: conn, loses: loses} }
}

func TestASentinelThatIsSilentIsNoOutageOfItsMaster(t *testing.T) {
	server := realserver.Start(t)
	asked, log, loses := startSentinel(t, named(server)), &realserver.Log{}, &atomic.Bool{}
	opened := &connections{address: server.Address(), let: make(chan struct{}), wrap: losing(loses)}
	limiter := limiterOf(t, redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: "m", SentinelAddrs: []string{asked.address},
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address == asked.address {
				return net.Dial(network, address)
			}
			return opened.dial(ctx, network, address)
		},
	}), tokenbucket.Timeout(5*time.Second), tokenbucket.RetryEvery(time.Hour), tokenbucket.LogTo(log.Printf))
	opened.open(t, limiter, 8)
	asked.isSilent.Store(true)
	before := asked.asked.Load()
	loses.Store(true)
	realserver.Eventually(t, "it is asked", func() bool {
		left(t, 10)(limiter.Peek(ctx, "a", 0))
		return asked.asked.Load() > before
	})
	for i := 0; i < 10; i++ {
		left(t, 10)(limiter.Peek(ctx, "a", 0))
	}
	log.Expect(t)
	if loses.Load() {
		t.Fatal("no reply was lost")
	}
}

// go-redis asks Sentinels for the slots of a NewFailoverClusterClient, one after the other.
func TestSlotsThatComeLateServeTheNextCalls(t *testing.T) {
	server, asked, comes := realserver.Start(t), atomic.Int64{}, make(chan struct{})
	limiter := limiterOf(t, redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(ctx context.Context) ([]redis.ClusterSlot, error) {
		asked.Add(1)
		<-comes
		return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: server.Address()}}}}, ctx.Err()
	}}), tokenbucket.RetryEvery(time.Nanosecond))
	for i := 0; i < 2; i++ {
		ended := beginTake(limiter, "a")
		realserver.Eventually(t, "the call ends", func() bool { return len(ended) == 1 })
		if decision := <-ended; !decision.Degraded {
			t.Fatalf("%+v", decision)
		}
	}
	close(comes)
	left(t, 9)(limiter.Take(ctx, "a", 1))
	if asked.Load() != 1 {
		t.Fatalf("asked %d times", asked.Load())
	}
}

func TestACallEndsWithItsCallerWhereNoOtherConnectionCanBeMade(t *testing.T) {
	server, loses := realserver.Start(t), &atomic.Bool{}
	opened := &connections{address: server.Address(), let: make(chan struct{}), wrap: losing(loses)}
	limiter := limiterOf(t, redis.NewClient(&redis.Options{Dialer: opened.dial}), tokenbucket.Timeout(5*time.Second))
	opened.open(t, limiter, 1)
	opened.let = make(chan struct{}) // none more
	defer close(opened.let)
	loses.Store(true)
	within, end := context.WithTimeout(ctx, 100*time.Millisecond)
	defer end()
	if decision, err := limiter.Charge(within, "a", 1); err != context.DeadlineExceeded {
		t.Fatal(decision, err)
	}
}

func TestMistakesTowardsSentinelAreErrorsAndNoOutage(t *testing.T) {
	says := func(reply string) redis.FailoverOptions {
		return redis.FailoverOptions{SentinelAddrs: []string{startSentinel(t, reply).address}}
	}
	untrusted := says("")
	untrusted.Dialer = func(context.Context, string, string) (net.Conn, error) { return nil, x509.UnknownAuthorityError{} }
	silent := says("")
	silent.ReadTimeout = 100 * time.Millisecond
	for name, c := range map[string]struct {
		options redis.FailoverOptions
		mistake string // or an outage
	}{
		"no password":    {says("-NOAUTH Authentication required.\r\n"), "NOAUTH"},
		"wrong password": {says("-WRONGPASS invalid username-password pair\r\n"), "WRONGPASS"},
		"no rights":      {says("-NOPERM this user has no permissions\r\n"), "NOPERM"},
		"no Sentinel":    {says("-ERR unknown command 'sentinel'\r\n"), "unknown command"},
		"master's name":  {says("*-1\r\n"), "knows no master"},
		"certificate":    {untrusted, "x509"},
		"full":           {says("-ERR max number of clients reached\r\n"), ""},
		"silent":         {silent, ""},
		"refuses":        {redis.FailoverOptions{SentinelAddrs: []string{"127.0.0.1:1"}}, ""},
	} {
		c.options.MasterName = "m"
		client, cluster := c.options, c.options
		for _, one := range []redis.UniversalClient{redis.NewFailoverClient(&client), redis.NewFailoverClusterClient(&cluster)} {
			log := &realserver.Log{}
			limits := serverOf(t, one, tokenbucket.Timeout(5*time.Second), tokenbucket.LogTo(log.Printf))
			decision, err := tokenbucket.NewLimiter(limits, hourly, tokenbucket.OnError(tokenbucket.FailOpen)).Take(ctx, "a", 1)
			switch {
			case c.mistake == "" && (err != nil || !decision.Degraded):
				t.Errorf("%s: %T: %+v, %v", name, one, decision, err)
			case c.mistake == "":
				log.Expect(t, "OnError")
			case !errors.Is(err, tokenbucket.ErrTokenBucket) || errors.Is(err, tokenbucket.ErrModuleMissing) || !strings.Contains(err.Error(), c.mistake):
				t.Errorf("%s: %T: %+v, %v", name, one, decision, err)
			default:
				log.Expect(t)
			}
		}
	}
}
