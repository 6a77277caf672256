package realserver

import (
	"fmt"
	"testing"
)

// Cluster is three masters.
type Cluster struct {
	*launcher
	Nodes []*Server
}

// StartCluster starts one of three nodes, and ends it with the test.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	l := launch(t, "--cluster")
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
