package realserver

import (
	"fmt"
	"testing"
)

// Cluster is three masters, and whatever a test adds.
type Cluster struct {
	*launcher
	Nodes []*Server
}

// StartCluster starts one of three nodes, and ends it with the test.
func StartCluster(t testing.TB, withModule bool) *Cluster {
	t.Helper()
	options := []string{"--cluster"}
	if !withModule {
		options = append(options, "--without-module")
	}
	l := launch(t, options...)
	return &Cluster{l, l.nodes}
}

// NodeOf is the node that has the key, by its number, as the slots were dealt.
func (c *Cluster) NodeOf(key string) (node int) {
	c.t.Helper()
	c.tell(&node, "node_of", key)
	return node
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
	c.tell(nil, "move_slot", key, to)
}

// ReplicaOf is a replica that has all that its master has.
func (c *Cluster) ReplicaOf(master int) *Server {
	c.t.Helper()
	replica := &Server{launcher: c.launcher}
	var at struct{ Node, Port int }
	c.tell(&at, "replica", master)
	replica.node, replica.port = at.Node, at.Port
	return replica
}

// TakeOver makes a replica the master of one that is gone, and waits until the others know.
func (c *Cluster) TakeOver(replica *Server) {
	c.t.Helper()
	c.tell(nil, "take_over", replica.node)
}
