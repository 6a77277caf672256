package tokenbucket

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// cluster knows which node has which slot. Each node has a circuit and connections of its own.
type cluster struct {
	server *Server
	doer   ClusterDoer

	hasAsked sync.Once
	learning sync.Mutex

	mutex sync.RWMutex
	nodes map[string]*node // by address
	slots map[int64]*node
}

// nodeOf returns the node of the key; while that is unknown, one that can redirect to it.
func (c *cluster) nodeOf(key string) *node {
	c.hasAsked.Do(c.learn)
	c.mutex.RLock()
	n := c.slots[slotOf(key)]
	c.mutex.RUnlock()
	if n != nil {
		return n
	}
	return c.known()[0]
}

func (c *cluster) nodeAt(address string) *node {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	n := c.nodes[address]
	if n == nil {
		n = newNode(c.server, c.doer.Node(address), "the node "+address)
		n.address = address
		if c.server.closed.Load() {
			n.end()
		}
		c.nodes[address] = n
	}
	return n
}

// known lists the nodes, those that are away last.
func (c *cluster) known() (nodes []*node) {
	for _, address := range c.doer.Addresses() {
		c.nodeAt(address)
	}
	c.mutex.RLock()
	defer c.mutex.RUnlock()
	var away []*node
	for _, n := range c.nodes {
		if n.circuit.away.Load() {
			away = append(away, n)
		} else {
			nodes = append(nodes, n)
		}
	}
	return append(nodes, away...)
}

// learn asks one node after the other where the slots are, unless another call does so. Closes the connections to nodes that
// have left the cluster, when calls under way are over.
func (c *cluster) learn() {
	if !c.learning.TryLock() {
		return
	}
	defer c.learning.Unlock()
	for _, n := range c.known() {
		reply, err := n.call(context.Background(), command{args: []any{"CLUSTER", "SLOTS"}, always: true})
		if groups, _ := reply.([]any); err == nil && len(groups) > 0 {
			slots := map[int64]*node{}
			for _, group := range groups {
				c.read(group, n, slots)
			}
			c.use(slots)
			return
		}
	}
}

func (c *cluster) use(slots map[int64]*node) {
	isUsed := map[*node]bool{}
	for _, n := range slots {
		isUsed[n] = true
	}
	for _, address := range c.doer.Addresses() {
		isUsed[c.nodeAt(address)] = true
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.slots = slots
	for address, n := range c.nodes {
		if !isUsed[n] {
			n := n
			delete(c.nodes, address)
			time.AfterFunc(connectTimeout, func() { _ = n.close() })
		}
	}
}

// read notes the slots of a group: the first one, the last one, and nodes, the master's first, as its host, its port, and
// more. Client libraries have strings as they like.
func (c *cluster) read(group any, teller *node, slots map[int64]*node) {
	fields, _ := group.([]any)
	if len(fields) < 3 {
		return
	}
	first, isFirst := fields[0].(int64)
	last, isLast := fields[1].(int64)
	master, _ := fields[2].([]any)
	if !isFirst || !isLast || len(master) < 2 {
		return
	}
	host := ""
	if master[0] != nil {
		host = fmt.Sprintf("%s", master[0])
	}
	n := c.nodeFrom(teller, net.JoinHostPort(host, fmt.Sprint(master[1])))
	for slot := first; slot <= last; slot++ {
		slots[slot] = n
	}
}

// nodeFrom returns the node at an address. Without a host, it is on that of the one that replied.
func (c *cluster) nodeFrom(teller *node, address string) *node {
	if host, port, err := net.SplitHostPort(address); err == nil && (host == "" || host == "?") {
		host, _, _ = net.SplitHostPort(teller.address)
		address = net.JoinHostPort(host, port)
	}
	return c.nodeAt(address)
}

func (c *cluster) closeNodes() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, n := range c.nodes {
		_ = n.close()
	}
}

func (n *node) close() error {
	n.end()
	n.keepWaiter(nil, net.ErrClosed)
	return closeDoer(n.doer)
}

func closeDoer(doer Doer) error {
	if closer, ok := doer.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// redirection is a node's reply that another node has the key: MOVED for good, or ASK for one command.
type redirection struct {
	isAsk   bool
	slot    int64
	address string
}

func (s *Server) moveOf(err error) *redirection {
	line, _ := serverLine(err)
	words := strings.Fields(line)
	if s.cluster == nil || len(words) != 3 || words[0] != "MOVED" && words[0] != "ASK" {
		return nil
	}
	slot, _ := strconv.ParseInt(words[1], 10, 64)
	return &redirection{words[0] == "ASK", slot, words[2]}
}

// follow returns the node that a redirection names, and what to send before the command.
func (c *cluster) follow(from *node, move *redirection) (n *node, first []any) {
	n = c.nodeFrom(from, move.address)
	if move.isAsk {
		return n, []any{"ASKING"}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.slots[move.slot] = n
	go c.learn()
	return n, nil
}

// keyPositions has the commands whose key is not their first argument; 0: there is none.
var keyPositions = map[string]int{
	"TB.MTAKE": 2, "TB.MSETTLE": 3, "TB.MHOLD": 4, "TB.MRENEW": 4, "EVALSHA": 3, "EVAL": 3, "CLUSTER": 0, "PING": 0, "INFO": 0, "TB.TOP": 0,
}

// keyOf returns the key that selects the node; "": any node will do.
func keyOf(words []string) string {
	position, isKnown := keyPositions[words[0]]
	if !isKnown {
		position = 1
	}
	if position == 0 || position >= len(words) {
		return ""
	}
	return words[position]
}

// slotOf computes what the cluster does: CRC16 of the key, or of the first braces in it if there is something between them.
func slotOf(key string) int64 {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if length := strings.IndexByte(key[open+1:], '}'); length > 0 {
			key = key[open+1 : open+1+length]
		}
	}
	var crc uint16
	for i := 0; i < len(key); i++ {
		crc ^= uint16(key[i]) << 8
		for bit := 0; bit < 8; bit++ {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return int64(crc % 16384)
}
