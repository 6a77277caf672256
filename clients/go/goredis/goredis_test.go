package goredis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/goredis"
	"tokenbucket/internal/realserver"
)

// unheard is a logger of go-redis, whose clients log each dial that fails.
type unheard struct{}

func (unheard) Printf(context.Context, string, ...interface{}) {}

func init() { redis.SetLogger(unheard{}) }

// from is the Doer of a client, which it must know.
func from(t testing.TB, client redis.UniversalClient) tokenbucket.Doer {
	t.Helper()
	doer, err := goredis.From(client)
	if err != nil {
		t.Fatal(err)
	}
	return doer
}

// serverOf asks by a client, until the test ends.
func serverOf(t *testing.T, client redis.UniversalClient, options ...tokenbucket.ServerOption) *tokenbucket.Server {
	t.Helper()
	limits := tokenbucket.NewServer(from(t, client), append([]tokenbucket.ServerOption{tokenbucket.LogTo(t.Logf)}, options...)...)
	t.Cleanup(func() { limits.Close() })
	return limits
}

// limiterOf is one of the usual limit.
func limiterOf(t *testing.T, client redis.UniversalClient, options ...tokenbucket.ServerOption) *tokenbucket.Limiter {
	t.Helper()
	return tokenbucket.NewLimiter(serverOf(t, client, options...), hourly)
}

// isDecided returns whether the server decides a call.
func isDecided(limiter *tokenbucket.Limiter, name string, options ...tokenbucket.CallOption) bool {
	decision, err := limiter.Take(ctx, name, 0, options...)
	return err == nil && !decision.Degraded
}

// degraded expects a decision without the server.
func degraded(t *testing.T) func(tokenbucket.Decision, error) {
	return func(decision tokenbucket.Decision, err error) {
		t.Helper()
		if err != nil || !decision.Degraded {
			t.Fatal(decision, err)
		}
	}
}

// begin does so many things at once. It returns what waits for their end.
func begin(count int, work func()) (wait func()) {
	var over sync.WaitGroup
	over.Add(count)
	for i := 0; i < count; i++ {
		go func() {
			defer over.Done()
			work()
		}()
	}
	return over.Wait
}

func beginTake(limiter *tokenbucket.Limiter, name string, options ...tokenbucket.CallOption) (ended chan tokenbucket.Decision) {
	ended = make(chan tokenbucket.Decision, 1)
	go func() {
		decision, _ := limiter.Take(ctx, name, 1, options...)
		ended <- decision
	}()
	return ended
}

func TestCallsShareAConnection(t *testing.T) {
	server := realserver.Start(t)
	limiter := limiterOf(t, redis.NewClient(&redis.Options{Addr: server.Address()}), tokenbucket.Timeout(5*time.Second)).With(large)
	for i := int64(1); i <= 30; i++ {
		left(t, 1e6-i)(limiter.Take(ctx, "a", 1))
	}
	if clients := strings.Count(fmt.Sprint(server.Do("CLIENT", "LIST")), "id="); clients != 2 { // one is the test's
		t.Fatalf("%d connections", clients)
	}
	var answer redis.Error
	if _, err := limiter.Take(ctx, "a", -1); !errors.As(err, &answer) || !errors.Is(err, tokenbucket.ErrBadArgument) {
		t.Fatal("the client's own error:", err)
	}
}

func TestAnAttemptToReachTheServerIsOneDial(t *testing.T) {
	dials := 0
	refuse := func(context.Context, string, string) (net.Conn, error) {
		dials++
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
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

func TestClientsThatCannotAskAreErrors(t *testing.T) {
	var single *redis.Client
	var cluster *redis.ClusterClient
	for _, client := range []redis.UniversalClient{
		nil, single, cluster, redis.NewRing(&redis.RingOptions{}), redis.NewClusterClient(&redis.ClusterOptions{}),
	} {
		if _, err := goredis.From(client); !errors.Is(err, tokenbucket.ErrBadArgument) {
			t.Errorf("%T: %v", client, err)
		}
	}
	from(t, redis.NewFailoverClusterClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}}))
}

func TestAChosenPoolSizeCounts(t *testing.T) {
	addresses := []string{"127.0.0.1:1"}
	for _, size := range []int{3, 10 * runtime.GOMAXPROCS(0)} {
		for _, client := range []redis.UniversalClient{
			redis.NewClient(&redis.Options{PoolSize: size}), redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses, PoolSize: size}),
			redis.NewClient(&redis.Options{PoolSize: 50, MaxActiveConns: size}),
			redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses, PoolSize: 50, MaxActiveConns: size}),
		} {
			if most := from(t, client).(tokenbucket.PooledDoer).Connections(); most != size {
				t.Errorf("%T: %d connections, %d were chosen", client, most, size)
			}
		}
	}
}

// mute accepts connections, and says nothing.
func mute(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener.Addr().String()
}

// silences returns clients that get no connection.
func silences(t *testing.T) map[string]redis.UniversalClient {
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	dialer := func(dial func()) *redis.Client {
		return redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
			dial()
			return nil, errors.New("broken")
		}})
	}
	return map[string]redis.UniversalClient{
		"sentinel": redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{mute(t)}}),
		"dialer":   dialer(func() { <-never }),
		"panic":    dialer(func() { panic("broken") }),
		"server":   redis.NewClient(&redis.Options{Addr: mute(t)}),
		"cluster":  redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{mute(t), mute(t), mute(t)}}),
	}
}

func TestWhateverIsSilentCostsACallOneSecond(t *testing.T) {
	for name, client := range silences(t) {
		log := &realserver.Log{}
		limiter := limiterOf(t, client, tokenbucket.LogTo(log.Printf))
		for _, options := range [][]tokenbucket.CallOption{nil, {tokenbucket.MaxWait(time.Hour)}} {
			began := time.Now()
			decision, err := limiter.Take(ctx, "a", 1, options...)
			if took := time.Since(began); err != nil || !decision.Degraded || took > 2500*time.Millisecond {
				t.Errorf("%s: %+v, %v after %v", name, decision, err, took)
			}
		}
		log.Expect(t, "cannot ask the server")
	}
}

func TestCallersThatDoNotWaitForAConnectionFindTheServerAway(t *testing.T) {
	for name, client := range silences(t) {
		limiter := limiterOf(t, client, tokenbucket.RetryEvery(time.Minute))
		realserver.Eventually(t, name+" is away", func() bool {
			hurried, leave := context.WithTimeout(ctx, 20*time.Millisecond)
			defer leave()
			decision, err := limiter.Take(hurried, "a", 1)
			return err == nil && decision.Degraded
		})
	}
}

// tunnel is a connection that can be down.
type tunnel struct {
	net.Conn
	isDown *atomic.Bool
}

var errTunnel = errors.New("VPN tunnel is down") // begins as the server's errors do

func (c tunnel) Read(buffer []byte) (int, error) {
	if c.isDown.Load() {
		return 0, errTunnel
	}
	return c.Conn.Read(buffer)
}

func TestATunnelThatIsDownIsAnOutage(t *testing.T) {
	var isDown atomic.Bool
	address, log := realserver.Start(t).Address(), &realserver.Log{}
	limiter := limiterOf(t, redis.NewClient(&redis.Options{Dialer: func(_ context.Context, network, _ string) (net.Conn, error) {
		conn, err := net.Dial(network, address)
		return tunnel{conn, &isDown}, err
	}}), tokenbucket.Timeout(5*time.Second), tokenbucket.LogTo(log.Printf))
	left(t, 9)(limiter.Take(ctx, "a", 1))
	isDown.Store(true)
	degraded(t)(limiter.Take(ctx, "a", 1))
	log.Expect(t, errTunnel.Error())
}

// deaf is a connection that hears nothing more once isDeaf.
type deaf struct {
	*net.TCPConn
	isDeaf *atomic.Bool
}

func (c deaf) Read(buffer []byte) (n int, err error) {
	for n, err = c.TCPConn.Read(buffer); err == nil && c.isDeaf.Load(); {
		n, err = c.TCPConn.Read(buffer)
	}
	return n, err
}

// connections are dialled to an address once they are let.
type connections struct {
	address string
	dials   atomic.Int64
	let     chan struct{}
	wrap    func(*net.TCPConn) net.Conn // or nil
}

func (c *connections) dial(context.Context, string, string) (net.Conn, error) {
	c.dials.Add(1)
	<-c.let
	conn, err := net.Dial("tcp", c.address)
	if err != nil || c.wrap == nil {
		return conn, err
	}
	return c.wrap(conn.(*net.TCPConn)), nil
}

// open lets so many calls open a connection each.
func (c *connections) open(t *testing.T, limiter *tokenbucket.Limiter, count int) {
	t.Helper()
	wait := begin(count, func() { isDecided(limiter, "a") })
	realserver.Eventually(t, "each dials", func() bool { return c.dials.Load() >= int64(count) })
	close(c.let)
	wait()
}

func TestConnectionsThatAreIdleEndWithOneThatIsSilent(t *testing.T) {
	log, areDeaf := &realserver.Log{}, atomic.Bool{}
	opened := &connections{address: realserver.Start(t).Address(), let: make(chan struct{})}
	opened.wrap = func(conn *net.TCPConn) net.Conn {
		if areDeaf.Load() { // those that were opened before
			return conn
		}
		return deaf{conn, &areDeaf}
	}
	limiter := limiterOf(t, redis.NewClient(&redis.Options{Dialer: opened.dial}),
		tokenbucket.Timeout(500*time.Millisecond), tokenbucket.RetryEvery(time.Hour), tokenbucket.LogTo(log.Printf))
	opened.open(t, limiter, 8)
	areDeaf.Store(true)
	left(t, 10)(limiter.Peek(ctx, "a", 0))
	left(t, 10)(limiter.Peek(ctx, "a", 0))
	log.Expect(t)
	if dials := opened.dials.Load(); dials != 9 {
		t.Fatalf("%d dials", dials)
	}
}

func TestConnectionsThatCameLateAndHaveEndedAreNoOutage(t *testing.T) {
	const count = 4
	server := realserver.Start(t)
	opened := &connections{address: server.Address(), let: make(chan struct{})}
	limiter := limiterOf(t, redis.NewClient(&redis.Options{Dialer: opened.dial}),
		tokenbucket.Timeout(5*time.Second), tokenbucket.RetryEvery(time.Nanosecond))
	wait := begin(count, func() { isDecided(limiter, "a") }) // ends before it has its connection
	realserver.Eventually(t, "each dials", func() bool { return opened.dials.Load() >= count })
	wait()
	close(opened.let)
	realserver.Eventually(t, "they come", func() bool {
		return strings.Count(fmt.Sprintf("%s", server.Do("CLIENT", "LIST")), "id=") > count // one is for the test
	})
	left(t, 10)(limiter.Peek(ctx, "a", 0))
	server.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	left(t, 10)(limiter.Peek(ctx, "a", 0))
}

func TestADialThatFailsTakesNoOthersConnection(t *testing.T) {
	address, first, connected := realserver.Start(t).Address(), make(chan struct{}), make(chan struct{})
	var dials atomic.Int64
	doer := from(t, redis.NewClient(&redis.Options{Dialer: func(_ context.Context, network, _ string) (net.Conn, error) {
		if dials.Add(1) == 1 {
			close(first)
			<-connected
			return nil, errors.New("broken")
		}
		time.AfterFunc(50*time.Millisecond, func() { close(connected) })
		return net.Dial(network, address)
	}}))
	soon, leave := context.WithTimeout(ctx, 900*time.Millisecond)
	defer leave()
	failed := make(chan error)
	go func() {
		_, err := doer.Do(soon, "PING")
		failed <- err
	}()
	<-first
	if reply, err := doer.Do(soon, "PING"); err != nil || <-failed == nil {
		t.Fatal(reply, err)
	}
}

func TestAServerWithoutRoomForConnectionsIsNoOutage(t *testing.T) {
	server, log := realserver.Start(t), &realserver.Log{}
	client := redis.NewClient(&redis.Options{Addr: server.Address()})
	limiter := limiterOf(t, client, tokenbucket.Timeout(5*time.Second), tokenbucket.LogTo(log.Printf)).With(large)
	left(t, 999_999)(limiter.Take(ctx, "a", 1))
	server.Do("CONFIG", "SET", "maxclients", "2") // one is for the test
	begin(200, func() {
		if _, err := limiter.Take(ctx, "a", 1); err != nil {
			t.Error(err)
		}
	})()
	if !isDecided(limiter, "a") {
		t.Fatal("the next call is not decided")
	}
	log.Expect(t, "max number of clients")
}

// A client in use changes its options: connections for calls that wait are not made of them, nor is a limiter's client.
func TestClientsInUseAreNotRead(t *testing.T) {
	address := realserver.Start(t).Address()
	for i := 0; i < 10; i++ {
		client := redis.NewClient(&redis.Options{Addr: address})
		defer client.Close()
		pinged := begin(1, func() { client.Ping(ctx) })
		limiter := limiterOf(t, client, tokenbucket.Timeout(5*time.Second))
		asked := begin(2, func() {
			if !isDecided(limiter, "a") || !isDecided(limiter, "a", tokenbucket.MaxWait(time.Second)) {
				t.Error("it is not decided")
			}
		})
		pinged()
		asked()
	}
}

func TestFunctionsOfTheProgramHoldUpNoCallForLongNorEndTheProcess(t *testing.T) {
	server, never := realserver.Start(t), make(chan struct{})
	defer close(never)
	for name, fault := range map[string]func(){"panics": func() { panic("broken") }, "hangs": func() { <-never }} {
		for what, set := range map[string]func(*redis.Options, func()){
			"OnConnect": func(o *redis.Options, do func()) {
				o.OnConnect = func(context.Context, *redis.Conn) error { do(); return nil }
			},
			"CredentialsProvider": func(o *redis.Options, do func()) {
				o.CredentialsProvider = func() (string, string) { do(); return "", "" }
			},
			"CredentialsProviderContext": func(o *redis.Options, do func()) {
				o.CredentialsProviderContext = func(context.Context) (string, string, error) { do(); return "", "", nil }
			},
		} {
			isOver, fault := &atomic.Bool{}, fault // one that hangs looks at them later
			options := &redis.Options{Addr: server.Address()}
			set(options, func() {
				if !isOver.Load() {
					fault()
				}
			})
			limiter := limiterOf(t, redis.NewClient(options), tokenbucket.RetryEvery(time.Nanosecond))
			select {
			case decision := <-beginTake(limiter, "a"):
				if !decision.Degraded {
					t.Fatalf("%s %s: %+v", what, name, decision)
				}
			case <-time.After(30 * time.Second):
				t.Fatal(what, name, "for longer than half a minute")
			}
			isOver.Store(true)
			realserver.Eventually(t, what+" works again", func() bool { return isDecided(limiter, "a") })
		}
	}
}

func TestACallEndsWithItsCallerWhileTheProgramPreparesAConnection(t *testing.T) {
	server := realserver.Start(t)
	options := &redis.Options{Addr: server.Address(), OnConnect: func(ctx context.Context, _ *redis.Conn) error { <-ctx.Done(); return ctx.Err() }}
	limiter := limiterOf(t, redis.NewClient(options), tokenbucket.Timeout(5*time.Second))
	hurried, leave := context.WithTimeout(ctx, 50*time.Millisecond)
	defer leave()
	if decision, err := limiter.Take(hurried, "a", 1); err != context.DeadlineExceeded {
		t.Fatal(decision, err)
	}
}
