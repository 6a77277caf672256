package goredis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// setup is a cluster, and limits on it.
type setup struct {
	*realserver.Cluster
	t    *testing.T
	doer tokenbucket.Doer
}

func TestOnClusters(t *testing.T) {
	for name, test := range map[string]func(*testing.T, setup){
		"each node decides": eachNodeDecidesOnItsBuckets, "several limits": severalLimitsOfOneNameShareANode,
		"without the module": withoutTheModuleTheScriptDecidesOnEveryNode, "a slot that is moving": aSlotThatIsMovingIsFollowed,
		"a first node that is silent": aFirstNodeThatIsSilentIsAwayWhileOthersConnect,
		"a node that is away":         aNodeThatIsAwayIsAnOutageOfItsBucketsAloneUntilItsReplicaTakesOver,
	} {
		t.Run(name, func(t *testing.T) {
			cluster := realserver.StartCluster(t, name != "without the module")
			client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{cluster.Nodes[0].Address()}})
			test(t, setup{cluster, t, from(t, client)})
		})
	}
}

// limits has a timeout that lets a slow machine answer.
func (s setup) limits(options ...tokenbucket.ServerOption) *tokenbucket.Server {
	all := append([]tokenbucket.ServerOption{tokenbucket.Timeout(20 * time.Second)}, options...)
	return tokenbucket.NewServer(s.doer, all...)
}

func (s setup) closed(options ...tokenbucket.ServerOption) *tokenbucket.Limiter {
	return tokenbucket.NewLimiter(s.limits(options...), hourly, tokenbucket.OnError(tokenbucket.FailClosed))
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

func eachNodeDecidesOnItsBuckets(t *testing.T, cluster setup) {
	limiter := cluster.closed()
	for i, name := range cluster.Names() {
		left(t, 6)(limiter.Take(ctx, name, 4))
		left(t, 4)(limiter.TakeUpTo(ctx, name, 2))
		hold, err := limiter.Hold(ctx, name, 3, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		left(t, 1)(limiter.Peek(ctx, name, 0))
		if err := hold.Used(1); err != nil {
			t.Fatal(err)
		}
		if _, err := hold.Settle(); err != nil {
			t.Fatal(err)
		}
		left(t, 3)(limiter.Peek(ctx, name, 0))
		left(t, 2)(limiter.Charge(ctx, name, 1))
		left(t, 4)(limiter.Give(ctx, name, 2))
		if keys := fmt.Sprintf("%s", cluster.Nodes[i].Do("KEYS", "*")); keys != "[tb:"+name+"]" {
			t.Fatal(keys)
		}
		if err := limiter.Reset(ctx, name); err != nil {
			t.Fatal(err)
		}
		left(t, 10)(limiter.Peek(ctx, name, 0))
	}
}

func severalLimitsOfOneNameShareANode(t *testing.T, cluster setup) {
	joint := tokenbucket.NewJointLimiter(cluster.limits(), map[string]tokenbucket.Limit{"r": hourly, "t": hourly})
	names := []string{"ada", "bob", "eve"}
	left(t, 10)(cluster.closed().Peek(ctx, names[0], 0)) // the client learns where the slots are
	before := cluster.redirections()
	for _, name := range names {
		decision, err := joint.TakeAll(ctx, name, map[string]float64{"r": 1, "t": 2})
		left(t, 8)(decision.Decision, err)
		hold, err := joint.Hold(ctx, name, map[string]float64{"r": 1, "t": 2}, time.Minute)
		if err != nil || !hold.Decision().Allowed {
			t.Fatal(hold, err)
		}
		if _, err := hold.Settle(); err != nil {
			t.Fatal(err)
		}
	}
	if redirected := cluster.redirections() - before; redirected != 0 {
		t.Fatalf("%d calls went to the wrong node first", redirected)
	}
	across := cluster.Names()
	_, err := cluster.limits().Do(ctx, "TB.MTAKE", "2", across[0], "10", "1", "1", across[1], "10", "1", "1")
	if !errors.Is(err, tokenbucket.ErrCrossSlot) || !strings.Contains(err.Error(), "share a hash tag") {
		t.Fatal(err)
	}
}

// redirections is how often nodes have answered MOVED.
func (s setup) redirections() (count int) {
	for _, node := range s.Nodes {
		count += info(node, "errorstat_MOVED:count=%d")
	}
	return count
}

// info is the number in the line of that format, or 0 if there is no such line.
func info(node *realserver.Server, format string) (number int) {
	for _, line := range strings.Split(fmt.Sprintf("%s", node.Do("INFO", "everything")), "\r\n") {
		if _, err := fmt.Sscanf(line, format, &number); err == nil {
			return number
		}
	}
	return 0
}

func withoutTheModuleTheScriptDecidesOnEveryNode(t *testing.T, cluster setup) {
	limiter := cluster.closed(tokenbucket.FallbackScript())
	// Of those without a hash tag, the script's key may be on another node than the module's.
	for _, name := range append(cluster.Names(), "a", "b", "c", "d", "e", "f", "g", "h") {
		left(t, 6)(limiter.Take(ctx, name, 4))
		left(t, 2)(limiter.Take(ctx, name, 4))
		if decision, err := limiter.Take(ctx, name, 4); err != nil || decision.Allowed {
			t.Fatal(decision, err)
		}
	}
	if _, err := limiter.Hold(ctx, "a", 1, time.Minute); !errors.Is(err, tokenbucket.ErrModuleMissing) {
		t.Fatal(err)
	}
	if _, err := cluster.closed().Take(ctx, "a", 1); !errors.Is(err, tokenbucket.ErrModuleMissing) {
		t.Fatal(err)
	}
	// The others go on without it.
	cluster.Nodes[0].LoadModule()
	limiter = cluster.closed(tokenbucket.FallbackScript())
	for i, name := range cluster.Names() {
		if left(t, 1)(limiter.Take(ctx, "x"+name, 9)); i > 0 {
			continue
		}
		if kind := cluster.Nodes[0].Do("TYPE", "tb:x"+name); kind != "tb-bucket" {
			t.Fatal(kind)
		}
	}
}

func aSlotThatIsMovingIsFollowed(t *testing.T, cluster setup) {
	limiter := cluster.closed()
	left(t, 10)(limiter.Peek(ctx, "a", 0)) // the client learns where the slots are
	from := cluster.NodeOf("tb:a")
	owner, other := cluster.Nodes[from], cluster.Nodes[(from+1)%3]
	slot := owner.Do("CLUSTER", "KEYSLOT", "tb:a")
	other.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", owner.Do("CLUSTER", "MYID"))
	owner.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", other.Do("CLUSTER", "MYID"))
	left(t, 9)(limiter.Take(ctx, "a", 1))
	left(t, 10)(limiter.Give(ctx, "a", 1))
	left(t, 8)(limiter.Take(ctx, "a", 2))
	if calls := fmt.Sprintf("%s", other.Do("INFO", "commandstats")); !strings.Contains(strings.ToLower(calls), "cmdstat_tb.give") {
		t.Fatal(calls)
	}
}

func aNodeThatIsAwayIsAnOutageOfItsBucketsAloneUntilItsReplicaTakesOver(t *testing.T, cluster setup) {
	replica := cluster.ReplicaOf(1)
	log := &realserver.Log{}
	limiter := cluster.closed(tokenbucket.RetryEvery(20*time.Millisecond), tokenbucket.LogTo(log.Printf))
	names := cluster.Names()
	for _, name := range names {
		left(t, 6)(limiter.Take(ctx, name, 4))
	}
	realserver.Eventually(t, "the replica", func() bool { return replica.Do("DBSIZE") == int64(1) })

	cluster.Nodes[1].Stop()
	for i := 0; i < 10; i++ {
		left(t, 6)(limiter.Peek(ctx, names[0], 0))
		if decision, err := limiter.Take(ctx, names[1], 1); err != nil || !decision.Degraded || decision.Allowed {
			t.Fatal(decision, err)
		}
		left(t, 6)(limiter.Peek(ctx, names[2], 0))
	}
	log.Expect(t, cluster.Nodes[1].Address())

	cluster.TakeOver(replica)
	realserver.Eventually(t, "limiting again", func() bool {
		decision, err := limiter.Peek(ctx, names[1], 0)
		return err == nil && !decision.Degraded
	})
	left(t, 5)(limiter.Take(ctx, names[1], 1)) // what was taken before is known
}

// The connections that others open are no sign of its life.
func aFirstNodeThatIsSilentIsAwayWhileOthersConnect(t *testing.T, cluster setup) {
	log := &realserver.Log{}
	limits := tokenbucket.NewServer(cluster.doer, tokenbucket.RetryEvery(time.Hour), tokenbucket.LogTo(log.Printf))
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
