package goredis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/internal/realserver"
)

var (
	ctx    = context.Background()
	hourly = tokenbucket.Limit{Capacity: 10, Rate: "10/h"}
)

// From 9.18 on, go-redis may ask a node for COMMAND, for which the rights of a limiter's user are not enough.
func TestANodeThatIsSilentAtTheStartHoldsUpNoOther(t *testing.T) {
	cluster := realserver.StartCluster(t)
	names, ended := cluster.Names(), make(chan bool)
	cluster.Nodes[0].Do("CLIENT", "PAUSE", "60000", "ALL")
	var addresses []string
	for _, node := range cluster.Nodes {
		addresses = append(addresses, node.Address())
	}
	const starts = 24
	for i := 0; i < starts; i++ {
		limits := tokenbucket.NewServer(from(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses})), tokenbucket.Timeout(5*time.Second))
		t.Cleanup(func() { limits.Close() })
		limiter := tokenbucket.NewLimiter(limits, tokenbucket.Limit{Capacity: 1e6, Rate: "1000/h"})
		go func() {
			decision, err := limiter.Take(ctx, names[1], 1)
			ended <- err == nil && !decision.Degraded
		}()
	}
	for i := 0; i < starts; i++ {
		select {
		case decided := <-ended:
			if !decided {
				t.Error("the node that answers did not decide")
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a call did not end")
		}
	}
	if calls := fmt.Sprintf("%s", cluster.Nodes[1].Do("INFO", "commandstats")); strings.Contains(calls, "cmdstat_command:") {
		t.Error("the client asked for COMMAND")
	}
}

// left expects a decision with so many tokens left.
func left(t *testing.T, want int64) func(tokenbucket.Decision, error) {
	return func(decision tokenbucket.Decision, err error) {
		t.Helper()
		if err != nil || decision.Degraded || decision.Remaining != want {
			t.Fatalf("%+v, %v; want %d left", decision, err, want)
		}
	}
}

// The connections that others open are no sign of its life.
func TestAFirstNodeThatIsSilentIsAwayWhileOthersConnect(t *testing.T) {
	cluster, log := realserver.StartCluster(t), &realserver.Log{}
	doer := from(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{cluster.Nodes[0].Address()}}))
	limits := tokenbucket.NewServer(doer, tokenbucket.RetryEvery(time.Hour), tokenbucket.LogTo(log.Printf))
	limiter := tokenbucket.NewLimiter(limits, tokenbucket.Limit{Capacity: 1e6, Rate: "1000/h"}, tokenbucket.OnError(tokenbucket.FailClosed))
	names := cluster.Names()
	realserver.Eventually(t, "connected", func() bool {
		decision, err := limiter.Take(ctx, names[0], 1)
		return err == nil && !decision.Degraded
	})
	cluster.Nodes[0].Do("CLIENT", "PAUSE", "60000", "ALL")
	over := make(chan struct{})
	for i := 0; i < 15; i++ {
		go func(i int) {
			for count := 0; count < 200; count++ {
				_, _ = limiter.Take(ctx, names[1+i%2], 1)
			}
			over <- struct{}{}
		}(i)
	}
	decision, err := limiter.Take(ctx, names[0], 1)
	if err != nil || !decision.Degraded {
		t.Fatal(decision, err)
	}
	for i := 0; i < 15; i++ {
		<-over
	}
	log.Expect(t, "cannot ask the node "+cluster.Nodes[0].Address())
}

// move begins to move the slot of a name. The target may not know of it.
func move(name string, source, target *realserver.Server, isKnown bool) {
	slot, id := fmt.Sprint(source.Do("CLUSTER", "KEYSLOT", name)), func(of *realserver.Server) string { return fmt.Sprint(of.Do("CLUSTER", "MYID")) }
	if isKnown {
		target.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", id(source))
	}
	source.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", id(target))
}

// unserve takes the slot of a name from all nodes.
func unserve(cluster *realserver.Cluster, name string) {
	for _, node := range cluster.Nodes {
		node.Do("CONFIG", "SET", "cluster-require-full-coverage", "no")
		node.Do("CLUSTER", "DELSLOTS", fmt.Sprint(node.Do("CLUSTER", "KEYSLOT", name)))
	}
}

func TestANodeIsThereWhileAnotherToWhichItRedirectsIsAway(t *testing.T) {
	for name, stop := range map[string]func(*realserver.Server){
		"silent": func(target *realserver.Server) { target.Do("CLIENT", "PAUSE", "60000", "ALL") },
		"busy": func(target *realserver.Server) {
			target.Do("CONFIG", "SET", "lua-time-limit", "1")
			go func() { _, _ = target.Doer().Do(ctx, "EVAL", "while true do end", "0") }()
			realserver.Eventually(t, "it is busy", func() bool {
				_, err := target.Doer().Do(ctx, "PING")
				return err != nil && strings.HasPrefix(err.Error(), "BUSY")
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := realserver.StartCluster(t)
			source, target := cluster.Nodes[0], cluster.Nodes[1]
			doer := from(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{source.Address()}}))
			limits := tokenbucket.NewServer(doer, tokenbucket.Timeout(time.Second), tokenbucket.RetryEvery(5*time.Second), tokenbucket.LogTo(t.Logf))
			defer limits.Close()
			limiter := tokenbucket.NewLimiter(limits, hourly)
			moving, other := cluster.Names()[0], "{other0}"
			for i := 1; cluster.NodeOf(other) != 0; i++ {
				other = fmt.Sprintf("{other%d}", i)
			}
			move(moving, source, target, true)
			for _, name := range []string{other, moving} {
				realserver.Eventually(t, "connected", func() bool {
					decision, err := limiter.Take(ctx, name, 0)
					return err == nil && !decision.Degraded
				})
			}
			stop(target)
			if decision, err := limiter.Take(ctx, moving, 1); err != nil || !decision.Degraded {
				t.Fatal(decision, err)
			}
			left(t, 10)(limiter.Take(ctx, other, 0))
		})
	}
}

func TestANodeIsBackAlthoughItRedirectsItsTriesToOneThatIsAway(t *testing.T) {
	cluster, isBack := realserver.StartCluster(t), atomic.Bool{}
	source, target, moving := cluster.Nodes[0], cluster.Nodes[1], cluster.Names()[0]
	doer := from(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{source.Address()}}))
	limits := tokenbucket.NewServer(doer, tokenbucket.RetryEvery(20*time.Millisecond), tokenbucket.LogTo(func(format string, args ...any) {
		if fmt.Sprintf(format, args...) == "tokenbucket: the node "+source.Address()+" is back, limiting again" {
			isBack.Store(true)
		}
	}))
	defer limits.Close()
	limiter := tokenbucket.NewLimiter(limits, hourly)
	isDecided := func() bool {
		decision, err := limiter.Take(ctx, moving, 0)
		return err == nil && !decision.Degraded
	}
	realserver.Eventually(t, "connected", isDecided)
	source.Do("CLIENT", "PAUSE", "1000", "ALL")
	realserver.Eventually(t, "it is away", func() bool { return !isDecided() })
	move(moving, source, target, true)
	target.Do("CLIENT", "PAUSE", "60000", "ALL")
	realserver.Eventually(t, "it is back", func() bool { return isDecided() || isBack.Load() })
}

// A redirected call takes a connection of a node that it has no permit of.
func TestACallIsRedirectedToANodeWhoseConnectionsAreAllInUse(t *testing.T) {
	cluster, log := realserver.StartCluster(t), &realserver.Log{}
	source, target, names := cluster.Nodes[0], cluster.Nodes[1], cluster.Names()
	doer := from(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{source.Address()}, MaxActiveConns: 1}))
	limits := tokenbucket.NewServer(doer, tokenbucket.Timeout(time.Minute), tokenbucket.LogTo(log.Printf))
	defer limits.Close()
	limiter := tokenbucket.NewLimiter(limits, hourly)
	move(names[0], source, target, true)
	target.Do("CLIENT", "PAUSE", "60000", "WRITE")
	ended := make(chan tokenbucket.Decision, 2)
	for i, name := range []string{names[1], names[0]} {
		go func(name string) {
			decision, _ := limiter.Take(ctx, name, 1)
			ended <- decision
		}(name)
		realserver.Eventually(t, "the target has it", func() bool {
			return len(ended) > 0 || strings.Contains(fmt.Sprint(target.Do("INFO", "clients")), fmt.Sprintf("blocked_clients:%d", i+1))
		})
	}
	target.Do("CLIENT", "UNPAUSE")
	for range names[:2] {
		if decision := <-ended; !decision.Allowed || decision.Degraded {
			t.Errorf("%+v", decision)
		}
	}
	log.Expect(t)
}

// slow is a connection whose server is far away. It counts the takes.
type slow struct {
	net.Conn
	away  time.Duration
	takes *atomic.Int64
}

func (c slow) Read(buffer []byte) (int, error) {
	time.Sleep(c.away)
	return c.Conn.Read(buffer)
}

func (c slow) Write(buffer []byte) (int, error) {
	if bytes.Contains(buffer, []byte("TB.TAKE")) {
		c.takes.Add(1)
	}
	return c.Conn.Write(buffer)
}

// far returns limits of a cluster that is so far away.
func far(t *testing.T, cluster *realserver.Cluster, away time.Duration, options ...tokenbucket.ServerOption) (limits *tokenbucket.Server, takes *atomic.Int64) {
	takes = &atomic.Int64{}
	limits = tokenbucket.NewServer(from(t, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{cluster.Nodes[0].Address()},
		Dialer: func(_ context.Context, network, address string) (net.Conn, error) {
			conn, err := net.Dial(network, address)
			return slow{conn, away, takes}, err
		},
	})), append(options, tokenbucket.LogTo(t.Logf))...)
	t.Cleanup(func() { limits.Close() })
	return limits, takes
}

// A new connection takes several round trips.
func TestAClusterThatIsFarAwayDecides(t *testing.T) {
	limits, _ := far(t, realserver.StartCluster(t), 200*time.Millisecond, tokenbucket.Timeout(5*time.Second))
	realserver.Eventually(t, "it decides", func() bool {
		decision, err := tokenbucket.NewLimiter(limits, hourly).Take(ctx, "a", 0)
		return err == nil && !decision.Degraded
	})
}

// adding is a hook of a program that adds to errors.
type adding struct{}

func (adding) DialHook(next redis.DialHook) redis.DialHook { return next }

func (adding) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		err := next(ctx, command)
		if err != nil {
			err = fmt.Errorf("while asking Redis: %w", err)
		}
		return err
	}
}

func (adding) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestAHookMayAddToErrors(t *testing.T) {
	cluster := realserver.StartCluster(t)
	limits := tokenbucket.NewServer(from(t, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{cluster.Nodes[0].Address()},
		NewClient: func(options *redis.Options) *redis.Client {
			client := redis.NewClient(options)
			client.AddHook(adding{})
			return client
		},
	})), tokenbucket.Timeout(5*time.Second), tokenbucket.LogTo(t.Logf))
	defer limits.Close()
	name := cluster.Names()[0]
	cluster.Nodes[0].Do("SET", "tb:"+name, "text")
	decision, err := tokenbucket.NewLimiter(limits, hourly, tokenbucket.OnError(tokenbucket.FailOpen)).Take(ctx, name, 1)
	if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Fatal(decision, err)
	}
}

func TestRedirectionsInCirclesAreFollowedForTheTimeout(t *testing.T) {
	cluster := realserver.StartCluster(t)
	limits, takes := far(t, cluster, 20*time.Millisecond)
	name := cluster.Names()[0]
	move(name, cluster.Nodes[0], cluster.Nodes[1], false)
	realserver.Eventually(t, "it is redirected", func() bool { // a slow machine may not even connect in time
		takes.Store(0)
		decision, err := tokenbucket.NewLimiter(limits, hourly).Take(ctx, name, 1)
		if hops := takes.Load(); err != nil || !decision.Degraded || hops > 7 { // at 20 ms each
			t.Errorf("%+v, %v, sent %d times", decision, err, hops)
		}
		return takes.Load() > 1
	})
}

func TestASlotThatNoNodeServesIsAskedForAFewTimes(t *testing.T) {
	cluster := realserver.StartCluster(t)
	name := cluster.Names()[0]
	unserve(cluster, name)
	limits, takes := far(t, cluster, 20*time.Millisecond)
	realserver.Eventually(t, "it is asked for", func() bool {
		takes.Store(0)
		decision, err := tokenbucket.NewLimiter(limits, hourly).Take(ctx, name, 1)
		if asked := takes.Load(); err != nil || !decision.Degraded || asked > 4 {
			t.Errorf("%+v, %v, sent %d times", decision, err, asked)
		}
		return takes.Load() > 0
	})
}

func TestANodeToWhichNothingConnectsCostsACallOneSecond(t *testing.T) {
	cluster, never := realserver.StartCluster(t), make(chan struct{})
	defer close(never)
	away := cluster.Nodes[0].Address()
	limits := tokenbucket.NewServer(from(t, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{cluster.Nodes[1].Address()},
		Dialer: func(_ context.Context, network, address string) (net.Conn, error) {
			if address == away {
				<-never
			}
			return net.Dial(network, address)
		},
	})), tokenbucket.RetryEvery(time.Nanosecond), tokenbucket.LogTo(t.Logf))
	defer limits.Close()
	realserver.Eventually(t, "it costs no two", func() bool {
		began := time.Now()
		decision, err := tokenbucket.NewLimiter(limits, hourly).Take(ctx, cluster.Names()[0], 1)
		if err != nil || !decision.Degraded {
			t.Fatal(decision, err)
		}
		return time.Since(began) < 1800*time.Millisecond
	})
}

// To go-redis, a command without a key is one for any node.
func TestAnEmptyKeyIsOfANodeAsAnyOther(t *testing.T) {
	cluster, log := realserver.StartCluster(t), &realserver.Log{}
	source, target, away := cluster.Nodes[cluster.NodeOf("")], cluster.Nodes[1], cluster.Nodes[2].Address()
	limits := tokenbucket.NewServer(from(t, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{target.Address()},
		Dialer: func(_ context.Context, network, address string) (net.Conn, error) {
			if address == away {
				return nil, errors.New("unplugged")
			}
			return net.Dial(network, address)
		},
	})), tokenbucket.Timeout(2*time.Second), tokenbucket.LogTo(log.Printf))
	defer limits.Close()
	limiter := tokenbucket.NewLimiter(limits, hourly, tokenbucket.Prefix(""))
	for i := 0; i < 40; i++ {
		left(t, 10)(limiter.Peek(ctx, "", 0))
	}
	log.Expect(t)
	for _, node := range []*realserver.Server{target, source} {
		node.Do("CLUSTER", "SETSLOT", "0", "NODE", fmt.Sprint(target.Do("CLUSTER", "MYID")))
	}
	began := time.Now()
	realserver.Eventually(t, "it is asked for where it has moved", func() bool {
		decision, err := limiter.Take(ctx, "", 1)
		return err == nil && !decision.Degraded
	})
	if took := time.Since(began); took > 8*time.Second { // go-redis asks for the slots every ten
		t.Fatal(took)
	}
}

// Calls come by way of a node that is there, and hold its permits.
func TestANodeThatCannotBeReachedCostsCallsOfOthersNothing(t *testing.T) {
	for name, fault := range map[string]struct {
		isSilent, isUnserved bool // else nothing connects to it, and a slot moves there
		areFew               bool // calls: none says meanwhile that the other node is there
		areLong              bool // tries: they overlap, and the connections are as few
	}{
		"a slot moves to one that is silent":                 {isSilent: true},
		"a slot moves to one that is silent, with few calls": {isSilent: true, areFew: true},
		"a slot moves to one that is silent, and tries last": {isSilent: true, areLong: true},
		"a slot moves to one to which nothing connects":      {},
		"no node serves a slot, and to one nothing connects": {isUnserved: true},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, there := realserver.StartCluster(t), make(chan struct{})
			target, moving, own := cluster.Nodes[2], cluster.Names()[0], "{own0}"
			for i := 1; cluster.NodeOf(own) != 0; i++ {
				own = fmt.Sprintf("{own%d}", i)
			}
			if fault.isUnserved {
				unserve(cluster, moving)
			} else {
				move(moving, cluster.Nodes[0], target, true)
			}
			comesBack := func() { close(there) }
			if fault.isSilent {
				close(there)
				target.Do("CLIENT", "PAUSE", "60000", "WRITE")
				comesBack = func() { target.Do("CLIENT", "UNPAUSE") }
			}
			timeout, pool, most, lasts := 200*time.Millisecond, 4, 800*time.Millisecond, 3*time.Second
			if fault.areLong {
				timeout, pool, most, lasts = time.Second, 2, 300*time.Millisecond, 6*time.Second
			}
			limits := tokenbucket.NewServer(from(t, redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: []string{cluster.Nodes[0].Address()}, PoolSize: pool,
				Dialer: func(_ context.Context, network, address string) (net.Conn, error) {
					if address == target.Address() {
						<-there
					}
					return net.Dial(network, address)
				},
			})), tokenbucket.Timeout(timeout), tokenbucket.LogTo(func(format string, args ...any) {
				if line := fmt.Sprintf(format, args...); strings.Contains(line, "cannot ask") && !strings.Contains(line, "cannot ask the node "+target.Address()) {
					t.Error(line)
				}
			}))
			defer limits.Close()
			limiter := tokenbucket.NewLimiter(limits, tokenbucket.Limit{Capacity: 1e6, Rate: "1000/h"})
			isDecided := func(name string) bool {
				decision, err := limiter.Take(ctx, name, 1)
				return err == nil && !decision.Degraded
			}
			realserver.Eventually(t, "connected", func() bool { return isDecided(own) })
			var over sync.WaitGroup
			ask := func(name string, most time.Duration, expects bool) {
				defer over.Done()
				for began := time.Now(); time.Since(began) < lasts; time.Sleep(20 * time.Millisecond) {
					before := time.Now()
					if is, took := isDecided(name), time.Since(before); is != expects || took > most {
						t.Errorf("%s: decided: %v, after %v", name, is, took)
						return
					}
				}
			}
			for began := time.Now(); fault.areFew && time.Since(began) < 3*time.Second; time.Sleep(30 * time.Millisecond) {
				if isDecided(moving) || !isDecided(own) {
					t.Fatal("the silent node answers, or the other does not")
				}
			}
			if !fault.areFew {
				over.Add(21)
				for i := 0; i < 20; i++ {
					go ask(moving, 3*timeout+time.Second, false)
				}
				if fault.areLong {
					time.Sleep(2*timeout + timeout/2) // the first calls may wait for twice the timeout
				}
				go ask(own, most, true)
			}
			over.Wait()
			comesBack()
			realserver.Eventually(t, "it is back", func() bool { return fault.isUnserved || isDecided(moving) })
		})
	}
}

func TestCallersThatLeaveOpenNoMoreConnectionsThanThePoolHas(t *testing.T) {
	cluster, let := realserver.StartCluster(t), make(chan struct{})
	var dialling, most atomic.Int64
	away := cluster.Nodes[0].Address()
	limits := tokenbucket.NewServer(from(t, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{cluster.Nodes[1].Address()}, PoolSize: 2,
		Dialer: func(_ context.Context, network, address string) (net.Conn, error) {
			if address == away {
				if now := dialling.Add(1); now > most.Load() {
					most.Store(now)
				}
				<-let
			}
			return net.Dial(network, address)
		},
	})), tokenbucket.LogTo(t.Logf))
	defer limits.Close()
	limiter := tokenbucket.NewLimiter(limits, hourly)
	for i := 0; i < 40; i++ {
		hurried, leave := context.WithTimeout(ctx, 20*time.Millisecond)
		_, _ = limiter.Take(hurried, cluster.Names()[0], 1)
		leave()
	}
	close(let)
	if dials := most.Load(); dials < 1 || dials > 2 {
		t.Fatalf("%d dials at a time", dials)
	}
}

func TestCallersThatLeaveSayNothingAboutANodeToWhichOthersRedirect(t *testing.T) {
	cluster, let := realserver.StartCluster(t), make(chan struct{})
	source, target, name := cluster.Nodes[0], cluster.Nodes[1], cluster.Names()[0]
	move(name, source, target, true)
	limits := tokenbucket.NewServer(from(t, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{source.Address()},
		Dialer: func(_ context.Context, network, address string) (net.Conn, error) {
			if address == target.Address() {
				<-let
			}
			return net.Dial(network, address)
		},
	})), tokenbucket.Timeout(500*time.Millisecond), tokenbucket.LogTo(t.Logf))
	defer limits.Close()
	limiter := tokenbucket.NewLimiter(limits, hourly)
	for began := time.Now(); time.Since(began) < 1200*time.Millisecond; {
		hurried, leave := context.WithTimeout(ctx, 20*time.Millisecond)
		_, _ = limiter.Take(hurried, name, 1)
		leave()
	}
	close(let)
	left(t, 10)(limiter.Peek(ctx, name, 0))
}

func TestANewConnectionOfANodeMayTakeTheTimeout(t *testing.T) {
	cluster := realserver.StartCluster(t)
	doer := from(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{cluster.Nodes[0].Address()}}))
	limits := tokenbucket.NewServer(doer, tokenbucket.Timeout(10*time.Second), tokenbucket.LogTo(t.Logf))
	defer limits.Close()
	limiter := tokenbucket.NewLimiter(limits, hourly)
	left(t, 10)(limiter.Peek(ctx, cluster.Names()[0], 0))
	cluster.Nodes[1].Do("CLIENT", "PAUSE", "1200", "ALL")
	left(t, 10)(limiter.Peek(ctx, cluster.Names()[1], 0))
}

// As one is that lost its file of nodes, or left: it serves no slot, and says that it knows none.
func TestANodeThatKnowsOfNoSlotsChangesNothing(t *testing.T) {
	cluster := realserver.StartCluster(t)
	empty, names := cluster.Nodes[2], cluster.Names()
	for _, node := range cluster.Nodes[:2] {
		node.Do("CONFIG", "SET", "cluster-require-full-coverage", "no")
	}
	empty.Do("CLUSTER", "RESET", "HARD")
	for i := 0; i < 20; i++ {
		doer := from(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{empty.Address(), cluster.Nodes[0].Address()}}))
		limits := tokenbucket.NewServer(doer, tokenbucket.Timeout(5*time.Second), tokenbucket.LogTo(t.Logf))
		limiter := tokenbucket.NewLimiter(limits, hourly)
		for _, name := range names[:2] {
			left(t, 10)(limiter.Peek(ctx, name, 0))
		}
		limits.Close()
	}
}

func TestASlotThatNoNodeServesIsNoSignOfLife(t *testing.T) {
	cluster := realserver.StartCluster(t)
	names := cluster.Names()
	unserve(cluster, names[1])
	var outages atomic.Int64
	doer := from(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{cluster.Nodes[1].Address()}}))
	limits := tokenbucket.NewServer(doer, tokenbucket.RetryEvery(time.Hour), tokenbucket.LogTo(func(format string, args ...any) {
		if strings.Contains(fmt.Sprintf(format, args...), "cannot ask the node "+cluster.Nodes[0].Address()) {
			outages.Add(1)
		}
	}))
	defer limits.Close()
	limiter := tokenbucket.NewLimiter(limits, hourly)
	realserver.Eventually(t, "connected", func() bool {
		decision, err := limiter.Take(ctx, names[0], 1)
		return err == nil && !decision.Degraded
	})
	over, leave := context.WithCancel(ctx)
	defer leave()
	for i := 0; i < 20; i++ {
		go func() {
			for over.Err() == nil {
				_, _ = limiter.Take(over, names[1], 1)
			}
		}()
	}
	cluster.Nodes[0].Do("CLIENT", "PAUSE", "60000", "ALL")
	realserver.Eventually(t, "the node that is silent is away", func() bool {
		_, _ = limiter.Take(ctx, names[0], 1)
		return outages.Load() > 0
	})
}

func TestANodeThatExecutesNoWritesIsAway(t *testing.T) {
	cluster := realserver.StartCluster(t)
	outages, name := make(chan string, 1), cluster.Names()[0]
	doer := from(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{cluster.Nodes[0].Address()}}))
	limits := tokenbucket.NewServer(doer, tokenbucket.Timeout(time.Second), tokenbucket.RetryEvery(time.Hour), tokenbucket.LogTo(func(format string, args ...any) {
		outages <- fmt.Sprintf(format, args...)
	}))
	defer limits.Close()
	limiter := tokenbucket.NewLimiter(limits, hourly)
	left(t, 9)(limiter.Take(ctx, name, 1))
	cluster.Nodes[0].Do("CLIENT", "PAUSE", "60000", "WRITE")
	if decision, err := limiter.Take(ctx, name, 1); err != nil || !decision.Degraded {
		t.Fatal(decision, err)
	}
	if line := <-outages; !strings.Contains(line, "cannot ask the node "+cluster.Nodes[0].Address()) {
		t.Fatal(line)
	}
}
