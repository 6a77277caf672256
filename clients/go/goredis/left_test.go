package goredis

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
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
