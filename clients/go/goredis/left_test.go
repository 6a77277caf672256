package goredis

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket/internal/realserver"
)

// go-redis closes the client of a node a minute after it has left. The test does so at once.
func TestNodesThatLeftAreForgotten(t *testing.T) {
	var port atomic.Int64
	port.Store(1)
	client := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: fmt.Sprint("127.0.0.1:", port.Load())}}}}, nil
	}})
	c := newCluster(*client.Options())
	defer c.Close()
	first, err := c.NodeOf(context.Background(), "a")
	if err != nil || !c.Has(first) {
		t.Fatal(first, err)
	}
	port.Store(2)
	second := first
	for deadline := time.Now().Add(30 * time.Second); second == first && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		_ = first.(*node).client.Close()
		c.client.ReloadState(context.Background())
		if other, err := c.NodeOf(context.Background(), "a"); err == nil { // else it has just left
			second = other
		}
	}
	if c.Has(first) || !c.Has(second) || first.(*node).dialer.life.Err() == nil {
		t.Fatal("it is still known, or the other is not")
	}
}

// go-redis closes the client of a node without slots a minute after it has loaded the slots, but not that of a replica.
func TestANodeToWhichCallsAreRedirectedCountsAsAReplica(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "::1"} {
		t.Run(address, func(t *testing.T) {
			cluster := realserver.StartCluster(t)
			source, target, key := cluster.Nodes[0], cluster.Nodes[1], cluster.Names()[0]
			announced := net.JoinHostPort(address, port(target.Address()))
			target.Do("CONFIG", "SET", "cluster-announce-ip", address)
			for _, node := range cluster.Nodes {
				realserver.Eventually(t, "each knows the address", func() bool {
					return strings.Contains(fmt.Sprint(node.Do("CLUSTER", "NODES")), " "+address+":"+port(target.Address()))
				})
			}
			source.Do("CLUSTER", "SETSLOT", fmt.Sprint(source.Do("CLUSTER", "KEYSLOT", key)), "MIGRATING", fmt.Sprint(target.Do("CLUSTER", "MYID")))
			c := newCluster(*redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: []string{source.Address()},
				NewClient: func(of *redis.Options) *redis.Client { // as behind a translation of addresses
					if port(of.Addr) == port(announced) && of.Addr != announced {
						t.Error("no node announced", of.Addr)
					}
					of.Addr = "127.0.0.1:" + port(of.Addr)
					return redis.NewClient(of)
				},
			}).Options())
			defer c.Close()
			realserver.Eventually(t, "it is kept", func() bool {
				var isKept atomic.Bool
				_, _ = c.DoFor(context.Background(), key, "GET", key)
				c.client.ReloadState(context.Background())
				_ = c.client.ForEachSlave(context.Background(), func(_ context.Context, replica *redis.Client) error {
					if replica.Options().Addr == target.Address() {
						isKept.Store(true)
					}
					return nil
				})
				return isKept.Load()
			})
		})
	}
}

func port(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}
