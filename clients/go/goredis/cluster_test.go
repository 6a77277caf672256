package goredis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
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
	large  = tokenbucket.Limit{Capacity: 1e6, Rate: "1000/h"}
)

// clusterOf is a client of the cluster that a node is of.
func clusterOf(node *realserver.Server) *redis.ClusterClient {
	return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{node.Address()}})
}

// dialling does something before it dials an address.
func dialling(address string, before func()) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(_ context.Context, network, dialled string) (net.Conn, error) {
		if dialled == address {
			before()
		}
		return net.Dial(network, dialled)
	}
}

// From 9.18 on, go-redis may ask a node for COMMAND, for which the rights of a limiter's user are not enough.
func TestNoNodeIsAskedForItsCommands(t *testing.T) {
	cluster := realserver.StartCluster(t)
	limiter := limiterOf(t, clusterOf(cluster.Nodes[0]), tokenbucket.Timeout(5*time.Second))
	for _, name := range cluster.Names() {
		left(t, 10)(limiter.Peek(ctx, name, 0))
	}
	for _, node := range cluster.Nodes {
		if calls := fmt.Sprint(node.Do("INFO", "commandstats")); strings.Contains(calls, "cmdstat_command:") {
			t.Error("the client asked for COMMAND")
		}
	}
}

// CLUSTER SLOTS costs a large cluster much. The client asks for it at most five times a second.
func TestCallsThatAreWrongLetNoNodeSayWhereTheSlotsAre(t *testing.T) {
	cluster := realserver.StartCluster(t)
	limiter, name := limiterOf(t, clusterOf(cluster.Nodes[0])), cluster.Names()[0]
	cluster.Nodes[0].Do("SET", "tb:"+name, "no bucket")
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if _, err := limiter.Take(ctx, name, 1); err == nil {
			t.Fatal("it is no bucket")
		}
	}
	asked := 0
	for _, node := range cluster.Nodes {
		for _, line := range strings.Split(fmt.Sprint(node.Do("INFO", "commandstats")), "\r\n") {
			var calls int
			_, _ = fmt.Sscanf(line, "cmdstat_cluster|slots:calls=%d", &calls)
			asked += calls
		}
	}
	if asked == 0 || asked > 3 {
		t.Errorf("the client asked %d times where the slots are", asked)
	}
}

// A replica refuses what its user may not call, and redirects no such call.
func TestAFormerMasterThatRefusesCallsIsLeft(t *testing.T) {
	cluster := realserver.StartCluster(t)
	limiter, name := limiterOf(t, clusterOf(cluster.Nodes[0])), cluster.Names()[0]
	left(t, 9)(limiter.Take(ctx, name, 1))
	former, next := cluster.Nodes[0], cluster.Nodes[1]
	former.Do("DEL", "tb:"+name)
	for _, node := range []*realserver.Server{next, former} {
		node.Do("CLUSTER", "SETSLOT", fmt.Sprint(node.Do("CLUSTER", "KEYSLOT", name)), "NODE", id(next))
	}
	former.Do("ACL", "SETUSER", "default", "-tb.take")
	began := time.Now()
	realserver.Eventually(t, "the next master is asked", func() bool { return isDecided(limiter, name) })
	if took := time.Since(began); took > 5*time.Second { // go-redis asks for the slots every ten
		t.Fatal(took)
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
	limiter := limiterOf(t, clusterOf(cluster.Nodes[0]), tokenbucket.RetryEvery(time.Hour), tokenbucket.LogTo(log.Printf))
	names := cluster.Names()
	realserver.Eventually(t, "connected", func() bool { return isDecided(limiter, names[0]) })
	cluster.Nodes[0].Do("CLIENT", "PAUSE", "60000", "ALL")
	wait := begin(15, func() {
		for count := 0; count < 200; count++ {
			isDecided(limiter, names[1+count%2])
		}
	})
	degraded(t)(limiter.Take(ctx, names[0], 1))
	wait()
	log.Expect(t, "cannot ask the node "+cluster.Nodes[0].Address())
}

func id(of *realserver.Server) string { return fmt.Sprint(of.Do("CLUSTER", "MYID")) }

// move begins to move the slot of a name. The target may not know of it.
func move(name string, source, target *realserver.Server, isKnown bool) {
	slot := fmt.Sprint(source.Do("CLUSTER", "KEYSLOT", name))
	if isKnown {
		target.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", id(source))
	}
	source.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", id(target))
}

// otherOfTheFirst returns a name of the first node that is none of Names.
func otherOfTheFirst(cluster *realserver.Cluster) string {
	other := "{other0}"
	for i := 1; cluster.NodeOf(other) != 0; i++ {
		other = fmt.Sprintf("{other%d}", i)
	}
	return other
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
			limiter := limiterOf(t, clusterOf(source), tokenbucket.Timeout(time.Second), tokenbucket.RetryEvery(5*time.Second))
			moving, other := cluster.Names()[0], otherOfTheFirst(cluster)
			move(moving, source, target, true)
			realserver.Eventually(t, "connected", func() bool { return isDecided(limiter, other) && isDecided(limiter, moving) })
			stop(target)
			degraded(t)(limiter.Take(ctx, moving, 1))
			left(t, 10)(limiter.Take(ctx, other, 0))
		})
	}
}

func TestANodeIsBackAlthoughItRedirectsItsTriesToOneThatIsAway(t *testing.T) {
	cluster, isBack := realserver.StartCluster(t), atomic.Bool{}
	source, target, moving := cluster.Nodes[0], cluster.Nodes[1], cluster.Names()[0]
	limiter := limiterOf(t, clusterOf(source), tokenbucket.RetryEvery(20*time.Millisecond), tokenbucket.LogTo(func(format string, args ...any) {
		if fmt.Sprintf(format, args...) == "tokenbucket: the node "+source.Address()+" is back, limiting again" {
			isBack.Store(true)
		}
	}))
	realserver.Eventually(t, "connected", func() bool { return isDecided(limiter, moving) })
	source.Do("CLIENT", "PAUSE", "1000", "ALL")
	realserver.Eventually(t, "it is away", func() bool { return !isDecided(limiter, moving) })
	move(moving, source, target, true)
	target.Do("CLIENT", "PAUSE", "60000", "ALL")
	realserver.Eventually(t, "it is back", func() bool { return isDecided(limiter, moving) || isBack.Load() })
}

// It waits for one, as calls for names of that node do.
func TestACallIsRedirectedToANodeWhoseConnectionsAreAllInUse(t *testing.T) {
	cluster, log := realserver.StartCluster(t), &realserver.Log{}
	source, target, names := cluster.Nodes[0], cluster.Nodes[1], cluster.Names()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{source.Address()}, MaxActiveConns: 1})
	limiter := limiterOf(t, client, tokenbucket.Timeout(time.Minute), tokenbucket.LogTo(log.Printf))
	move(names[0], source, target, true)
	target.Do("CLIENT", "PAUSE", "60000", "WRITE")
	own := beginTake(limiter, names[1])
	realserver.Eventually(t, "the target has it", func() bool { return strings.Contains(fmt.Sprint(target.Do("INFO", "clients")), "blocked_clients:1") })
	redirected := beginTake(limiter, names[0])
	target.Do("CLIENT", "UNPAUSE")
	for _, one := range []chan tokenbucket.Decision{own, redirected} {
		if decision := <-one; !decision.Allowed || decision.Degraded {
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

// far returns a limiter of a cluster that is so far away.
func far(t *testing.T, cluster *realserver.Cluster, away time.Duration, options ...tokenbucket.ServerOption) (*tokenbucket.Limiter, *atomic.Int64) {
	takes := &atomic.Int64{}
	return limiterOf(t, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{cluster.Nodes[0].Address()},
		Dialer: func(_ context.Context, network, address string) (net.Conn, error) {
			conn, err := net.Dial(network, address)
			return slow{conn, away, takes}, err
		},
	}), options...), takes
}

// A new connection takes several round trips.
func TestAClusterThatIsFarAwayDecides(t *testing.T) {
	limiter, _ := far(t, realserver.StartCluster(t), 200*time.Millisecond, tokenbucket.Timeout(5*time.Second))
	realserver.Eventually(t, "it decides", func() bool { return isDecided(limiter, "a") })
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
	return func(ctx context.Context, commands []redis.Cmder) error {
		err := next(ctx, commands)
		if err != nil && commands[0].Name() == "asking" {
			err = fmt.Errorf("while asking Redis: %v", err)
		}
		return err
	}
}

func TestAHookMayAddToErrors(t *testing.T) {
	cluster := realserver.StartCluster(t)
	limits := serverOf(t, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{cluster.Nodes[0].Address()},
		NewClient: func(options *redis.Options) *redis.Client {
			client := redis.NewClient(options)
			client.AddHook(adding{})
			return client
		},
	}), tokenbucket.Timeout(5*time.Second))
	name := cluster.Names()[0]
	cluster.Nodes[0].Do("SET", "tb:"+name, "text")
	decision, err := tokenbucket.NewLimiter(limits, hourly, tokenbucket.OnError(tokenbucket.FailOpen)).Take(ctx, name, 1)
	if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Fatal(decision, err)
	}
	cluster.Nodes[0].Do("DEL", "tb:"+name)
	move(name, cluster.Nodes[0], cluster.Nodes[1], true)
	cluster.Nodes[1].Stop()
	for i := 0; i < 3; i++ {
		degraded(t)(tokenbucket.NewLimiter(limits, hourly).Take(ctx, name, 1))
	}
}

func TestANodeToWhichHurriedCallsAreRedirectedIsFoundAway(t *testing.T) {
	cluster, let := realserver.StartCluster(t), make(chan struct{})
	defer close(let)
	source, target, name := cluster.Nodes[0], cluster.Nodes[1], cluster.Names()[0]
	move(name, source, target, true)
	limiter := limiterOf(t, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{source.Address()}, Dialer: dialling(target.Address(), func() { <-let }),
	}))
	realserver.Eventually(t, "OnError decides", func() bool {
		hurried, leave := context.WithTimeout(ctx, 50*time.Millisecond)
		defer leave()
		decision, err := limiter.Take(hurried, name, 1)
		return err == nil && decision.Degraded
	})
}

func TestACallThatNoNodeDecidesIsSentAFewTimes(t *testing.T) {
	for name, c := range map[string]struct {
		begins      func(*realserver.Cluster, string)
		least, most int64
	}{
		"redirections in circles": {func(c *realserver.Cluster, key string) { move(key, c.Nodes[0], c.Nodes[1], false) }, 2, 7}, // at 20 ms each
		"no node serves the slot": {unserve, 1, 4},
	} {
		cluster := realserver.StartCluster(t)
		key := cluster.Names()[0]
		c.begins(cluster, key)
		limiter, takes := far(t, cluster, 20*time.Millisecond)
		realserver.Eventually(t, name, func() bool { // a slow machine may not even connect in time
			takes.Store(0)
			degraded(t)(limiter.Take(ctx, key, 1))
			if sent := takes.Load(); sent > c.most {
				t.Errorf("%s: sent %d times", name, sent)
			}
			return takes.Load() >= c.least
		})
	}
}

func TestANodeToWhichNothingConnectsCostsACallOneSecond(t *testing.T) {
	cluster, never := realserver.StartCluster(t), make(chan struct{})
	defer close(never)
	limiter := limiterOf(t, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{cluster.Nodes[1].Address()}, Dialer: dialling(cluster.Nodes[0].Address(), func() { <-never }),
	}), tokenbucket.RetryEvery(time.Nanosecond))
	realserver.Eventually(t, "it costs no two", func() bool {
		began := time.Now()
		degraded(t)(limiter.Take(ctx, cluster.Names()[0], 1))
		return time.Since(began) < 1800*time.Millisecond
	})
}

// To go-redis, a command without a key is one for any node.
func TestAnEmptyKeyIsOfANodeAsAnyOther(t *testing.T) {
	cluster, log := realserver.StartCluster(t), &realserver.Log{}
	source, target, away := cluster.Nodes[cluster.NodeOf("")], cluster.Nodes[1], cluster.Nodes[2].Address()
	limits := serverOf(t, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{target.Address()},
		Dialer: func(_ context.Context, network, address string) (net.Conn, error) {
			if address == away {
				return nil, errors.New("unplugged")
			}
			return net.Dial(network, address)
		},
	}), tokenbucket.Timeout(2*time.Second), tokenbucket.LogTo(log.Printf))
	limiter := tokenbucket.NewLimiter(limits, hourly, tokenbucket.Prefix(""))
	for i := 0; i < 40; i++ {
		left(t, 10)(limiter.Peek(ctx, "", 0))
	}
	log.Expect(t)
	for _, node := range []*realserver.Server{target, source} {
		node.Do("CLUSTER", "SETSLOT", "0", "NODE", fmt.Sprint(target.Do("CLUSTER", "MYID")))
	}
	began := time.Now()
	realserver.Eventually(t, "it is asked for where it has moved", func() bool { return isDecided(limiter, "") })
	if took := time.Since(began); took > 8*time.Second { // go-redis asks for the slots every ten
		t.Fatal(took)
	}
}

// Calls come by way of a node that is there, and hold its permits.
func TestANodeThatCannotBeReachedCostsCallsOfOthersNothing(t *testing.T) {
	for name, fault := range map[string]struct {
		isSilent, isUnserved bool // else nothing connects to it, and a slot moves there
		isCircle             bool // it redirects calls back
		areFew               bool // calls: none says meanwhile that the other node is there
		areLong              bool // tries: they overlap, and the connections are as few
	}{
		"a slot moves to one that is silent":                 {isSilent: true},
		"a slot moves to one that is silent, with few calls": {isSilent: true, areFew: true},
		"a slot moves to one that is silent, and tries last": {isSilent: true, areLong: true},
		"a slot moves to one to which nothing connects":      {},
		"no node serves a slot, and to one nothing connects": {isUnserved: true},
		"a slot moves to one that redirects back":            {isCircle: true},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, there := realserver.StartCluster(t), make(chan struct{})
			target, moving, own := cluster.Nodes[2], cluster.Names()[0], otherOfTheFirst(cluster)
			if fault.isUnserved {
				unserve(cluster, moving)
			} else {
				move(moving, cluster.Nodes[0], target, !fault.isCircle)
			}
			comesBack := func() { close(there) }
			if fault.isCircle {
				close(there)
				comesBack = func() { move(moving, cluster.Nodes[0], target, true) }
			}
			if fault.isSilent {
				close(there)
				target.Do("CLIENT", "PAUSE", "60000", "WRITE")
				comesBack = func() { target.Do("CLIENT", "UNPAUSE") }
			}
			timeout, pool, most, lasts := 200*time.Millisecond, 4, 800*time.Millisecond, 3*time.Second
			if fault.areLong {
				timeout, pool, most, lasts = time.Second, 2, 300*time.Millisecond, 6*time.Second
			}
			limiter := limiterOf(t, redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: []string{cluster.Nodes[0].Address()}, PoolSize: pool, Dialer: dialling(target.Address(), func() { <-there }),
			}), tokenbucket.Timeout(timeout), tokenbucket.LogTo(func(format string, args ...any) {
				if line := fmt.Sprintf(format, args...); strings.Contains(line, "cannot ask") && !strings.Contains(line, "cannot ask the node "+target.Address()) {
					t.Error(line)
				}
			}))
			realserver.Eventually(t, "connected", func() bool { return isDecided(limiter, own) })
			ask := func(name string, most time.Duration, expects bool) {
				for began := time.Now(); time.Since(began) < lasts; time.Sleep(20 * time.Millisecond) {
					before := time.Now()
					if is, took := isDecided(limiter, name), time.Since(before); is != expects || took > most {
						t.Errorf("%s: decided: %v, after %v", name, is, took)
						return
					}
				}
			}
			for began := time.Now(); fault.areFew && time.Since(began) < 3*time.Second; time.Sleep(30 * time.Millisecond) {
				if isDecided(limiter, moving) || !isDecided(limiter, own) {
					t.Fatal("the silent node answers, or the other does not")
				}
			}
			if !fault.areFew {
				wait := begin(20, func() { ask(moving, 3*timeout+2*time.Second, false) }) // one for a connection, one to connect
				if fault.areLong {
					time.Sleep(2*timeout + timeout/2) // the first calls may wait for twice the timeout
				}
				ask(own, most, true)
				wait()
			}
			comesBack()
			realserver.Eventually(t, "it is back", func() bool { return fault.isUnserved || isDecided(limiter, moving) })
		})
	}
}

func TestCallersThatLeaveOpenNoMoreConnectionsThanThePoolHas(t *testing.T) {
	cluster, let := realserver.StartCluster(t), make(chan struct{})
	var atOnce, most atomic.Int64
	limiter := limiterOf(t, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{cluster.Nodes[1].Address()}, PoolSize: 2,
		Dialer: dialling(cluster.Nodes[0].Address(), func() {
			if now := atOnce.Add(1); now > most.Load() {
				most.Store(now)
			}
			<-let
		}),
	}))
	name, began := cluster.Names()[0], time.Now()
	for i := 0; i < 40; i++ {
		hurried, leave := context.WithTimeout(ctx, 20*time.Millisecond)
		_, _ = limiter.Take(hurried, name, 1)
		leave()
	}
	places := 2 * (1 + int64(time.Since(began)/time.Second)) // each for a second
	close(let)
	if dials := most.Load(); dials < 1 || dials > places {
		t.Fatalf("%d dials at a time, with %d places", dials, places)
	}
}

func TestCallersThatLeaveSayNothingAboutANodeToWhichOthersRedirect(t *testing.T) {
	cluster, let := realserver.StartCluster(t), make(chan struct{})
	source, target, name := cluster.Nodes[0], cluster.Nodes[1], cluster.Names()[0]
	move(name, source, target, true)
	limiter := limiterOf(t, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{source.Address()}, Dialer: dialling(target.Address(), func() { <-let }),
	}), tokenbucket.Timeout(500*time.Millisecond))
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
	limiter := limiterOf(t, clusterOf(cluster.Nodes[0]), tokenbucket.Timeout(10*time.Second))
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
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{empty.Address(), cluster.Nodes[0].Address()}})
		limiter := limiterOf(t, client, tokenbucket.Timeout(5*time.Second))
		for _, name := range names[:2] {
			left(t, 10)(limiter.Peek(ctx, name, 0))
		}
	}
}

// It was the master of slots that another serves now, and still tells that it has them.
func TestANodeThatIsCutOffFromTheOthersIsNotBelieved(t *testing.T) {
	cluster := realserver.StartCluster(t)
	former, promoted, third, names := cluster.Nodes[0], cluster.Nodes[1], cluster.Nodes[2], cluster.Names()
	for _, other := range []*realserver.Server{promoted, third} {
		former.Do("CLUSTER", "FORGET", id(other))
		other.Do("CLUSTER", "FORGET", id(former))
	}
	slots := []any{"CLUSTER", "ADDSLOTS"}
	for slot := 0; slot <= 16383/3; slot++ {
		slots = append(slots, fmt.Sprint(slot))
	}
	promoted.Do(slots...)
	former.Do("CLUSTER", "ADDSLOTS", fmt.Sprint(former.Do("CLUSTER", "KEYSLOT", names[1])))
	for node, says := range map[*realserver.Server]string{former: "CLUSTERDOWN The cluster is down", promoted: "<nil>", third: "MOVED "} {
		realserver.Eventually(t, says, func() bool {
			_, err := node.Doer().Do(ctx, "EXISTS", names[0])
			return strings.HasPrefix(fmt.Sprint(err), says)
		})
	}
	move(names[1], promoted, third, true) // each call that is redirected lets go-redis ask any node for the slots
	addresses := []string{former.Address(), promoted.Address(), third.Address()}
	limiter := limiterOf(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses}), tokenbucket.RetryEvery(20*time.Millisecond))
	areAsked := func() bool { return isDecided(limiter, names[0]) && isDecided(limiter, names[1]) }
	realserver.Eventually(t, "the former master is asked", func() bool { return !areAsked() })
	realserver.Eventually(t, "the other is asked", areAsked)
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if !areAsked() {
			t.Fatal("the former master is asked again")
		}
	}
}

func TestASlotThatNoNodeServesIsNoSignOfLife(t *testing.T) {
	cluster := realserver.StartCluster(t)
	names := cluster.Names()
	unserve(cluster, names[1])
	var outages atomic.Int64
	limiter := limiterOf(t, clusterOf(cluster.Nodes[1]), tokenbucket.RetryEvery(time.Hour), tokenbucket.LogTo(func(format string, args ...any) {
		if strings.Contains(fmt.Sprintf(format, args...), "cannot ask the node "+cluster.Nodes[0].Address()) {
			outages.Add(1)
		}
	}))
	realserver.Eventually(t, "connected", func() bool { return isDecided(limiter, names[0]) })
	over, leave := context.WithCancel(ctx)
	defer leave()
	begin(20, func() {
		for over.Err() == nil {
			_, _ = limiter.Take(over, names[1], 1)
		}
	})
	cluster.Nodes[0].Do("CLIENT", "PAUSE", "60000", "ALL")
	realserver.Eventually(t, "the node that is silent is away", func() bool {
		_, _ = limiter.Take(ctx, names[0], 1)
		return outages.Load() > 0
	})
}

func TestANodeThatExecutesNoWritesIsAway(t *testing.T) {
	cluster, log := realserver.StartCluster(t), &realserver.Log{}
	name := cluster.Names()[0]
	limiter := limiterOf(t, clusterOf(cluster.Nodes[0]),
		tokenbucket.Timeout(time.Second), tokenbucket.RetryEvery(time.Hour), tokenbucket.LogTo(log.Printf))
	left(t, 9)(limiter.Take(ctx, name, 1))
	cluster.Nodes[0].Do("CLIENT", "PAUSE", "60000", "WRITE")
	degraded(t)(limiter.Take(ctx, name, 1))
	log.Expect(t, "cannot ask the node "+cluster.Nodes[0].Address())
}
