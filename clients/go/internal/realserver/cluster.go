package realserver

import (
	"fmt"
	"strings"
	"testing"
)

// Cluster is three masters, and whatever a test adds.
type Cluster struct {
	t          testing.TB
	withModule bool
	Nodes      []*Server
}

const (
	slots = 16384
	share = (slots + 2) / 3
)

// StartCluster starts one of three nodes, and ends it with the test.
func StartCluster(t testing.TB, withModule bool) *Cluster {
	t.Helper()
	c := &Cluster{t: t, withModule: withModule}
	for i := 0; i < 3; i++ {
		c.Nodes = append(c.Nodes, c.start())
	}
	for i, node := range c.Nodes {
		node.Do("CLUSTER", "SET-CONFIG-EPOCH", i+1)
		words := []any{"CLUSTER", "ADDSLOTS"}
		for slot := i * share; slot < (i+1)*share && slot < slots; slot++ {
			words = append(words, slot)
		}
		node.Do(words...)
		c.meet(node)
	}
	for _, node := range c.Nodes {
		node.waitFor("cluster_state:ok", "CLUSTER", "INFO")
		node.waitFor(fmt.Sprint("cluster_slots_ok:", slots), "CLUSTER", "INFO")
	}
	return c
}

// A node that is away takes its slots with it, and leaves the others at work.
var nodeOptions = []string{"--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0"}

func (c *Cluster) start() *Server {
	c.t.Helper()
	return start(c.t, &Server{withModule: c.withModule, options: nodeOptions})
}

func (c *Cluster) meet(node *Server) {
	c.t.Helper()
	node.Do("CLUSTER", "MEET", "127.0.0.1", c.Nodes[0].port)
}

// waitFor asks until some text is in the answer.
func (s *Server) waitFor(wanted string, args ...any) {
	s.t.Helper()
	Eventually(s.t, fmt.Sprintf("%v: %q", args, wanted), func() bool { return strings.Contains(fmt.Sprint(s.Do(args...)), wanted) })
}

// NodeOf is the node that has the key, by its number, as the slots were dealt.
func (c *Cluster) NodeOf(key string) int {
	c.t.Helper()
	return int(c.Nodes[0].Do("CLUSTER", "KEYSLOT", key).(int64)) / share
}

// Names are one for each node, with a hash tag.
func (c *Cluster) Names() []string {
	c.t.Helper()
	names := make([]string, len(c.Nodes))
	for i, missing := 0, len(names); missing > 0; i++ {
		name := fmt.Sprintf("{%d}", i)
		if node := c.NodeOf(name); names[node] == "" {
			names[node] = name
			missing--
		}
	}
	return names
}

// MoveSlotOf moves a slot in which there is nothing yet.
func (c *Cluster) MoveSlotOf(key string, to int) {
	c.t.Helper()
	slot, owner := c.Nodes[0].Do("CLUSTER", "KEYSLOT", key), c.NodeOf(key)
	set := func(node int, how string, other int) {
		c.Nodes[node].Do("CLUSTER", "SETSLOT", slot, how, c.Nodes[other].Do("CLUSTER", "MYID"))
	}
	// Else an owner of a later epoch might have it back.
	set(to, "IMPORTING", owner)
	set(owner, "MIGRATING", to)
	for i := range c.Nodes {
		set((to+i)%len(c.Nodes), "NODE", to)
	}
}

// ReplicaOf is a replica that has all that its master has.
func (c *Cluster) ReplicaOf(master int) *Server {
	c.t.Helper()
	replica := c.start()
	c.meet(replica)
	id := c.Nodes[master].Do("CLUSTER", "MYID").(string)
	replica.waitFor(id, "CLUSTER", "NODES")
	replica.Do("CLUSTER", "REPLICATE", id)
	replica.waitFor("master_link_status:up", "INFO", "replication")
	// Or it would take over before it knows which slots its master has.
	replica.waitFor(fmt.Sprint("cluster_slots_assigned:", slots), "CLUSTER", "INFO")
	return replica
}

// TakeOver makes a replica the master of those that are gone, and waits until the others know.
func (c *Cluster) TakeOver(replica *Server, gone int) {
	c.t.Helper()
	id := replica.Do("CLUSTER", "MYID").(string)
	replica.Do("CLUSTER", "FAILOVER", "TAKEOVER")
	for i, node := range c.Nodes {
		if i != gone {
			node.waitFor(fmt.Sprintf("%s %s@%d master", id, replica.Address(), replica.port+clusterBus), "CLUSTER", "NODES")
		}
	}
}
