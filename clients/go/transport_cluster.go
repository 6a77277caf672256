package tokenbucket

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// cluster knows which node has which slots. Each node has a circuit and connections of its own.
type cluster struct {
	server *Server
	doer   ClusterDoer

	hasAsked sync.Once
	learning sync.Mutex

	mutex    sync.RWMutex
	nodes    map[string]*node // by address
	ranges   []slotRange
	isClosed bool
}

// slotRange is slots of a cluster that are on one node.
type slotRange struct {
	first, last int64
	address     string
}

func newCluster(s *Server, doer ClusterDoer) *cluster {
	return &cluster{server: s, doer: doer, nodes: map[string]*node{}}
}

func (c *cluster) nodeOf(key string) *node {
	c.hasAsked.Do(c.learn)
	c.mutex.RLock()
	address := c.addressOf(key)
	n := c.nodes[address]
	c.mutex.RUnlock()
	if n != nil {
		return n
	}
	return c.nodeAt(address)
}

// addressOf returns the first known node if the key's is unknown: it knows better.
func (c *cluster) addressOf(key string) string {
	if len(c.ranges) == 0 {
		return c.doer.Addresses()[0]
	}
	if key == "" {
		return c.ranges[0].address
	}
	slot := slotOf(key)
	for _, one := range c.ranges {
		if one.first <= slot && slot <= one.last {
			return one.address
		}
	}
	return c.ranges[0].address
}

func (c *cluster) nodeAt(address string) *node {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	n := c.nodes[address]
	if n == nil {
		n = newNode(c.server, c.doer.Node(address), "the node "+address)
		n.address, n.isClosed = address, c.isClosed
		c.nodes[address] = n
	}
	return n
}

// learn asks one node after the other where the slots are.
func (c *cluster) learn() {
	if !c.learning.TryLock() {
		return
	}
	defer c.learning.Unlock()
	for _, n := range c.known() {
		reply, err := n.call(context.Background(), command{args: []any{"CLUSTER", "SLOTS"}, always: true})
		if err == nil {
			c.use(slotRanges(reply, n.address))
			return
		}
	}
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

// use also closes the connections to nodes that have left the cluster, when calls under way are over.
func (c *cluster) use(ranges []slotRange) {
	if len(ranges) == 0 {
		return
	}
	isUsed := map[string]bool{}
	for _, one := range ranges {
		isUsed[one.address] = true
	}
	for _, address := range c.doer.Addresses() {
		isUsed[address] = true
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.ranges = ranges
	for address, n := range c.nodes {
		if !isUsed[address] {
			delete(c.nodes, address)
			time.AfterFunc(connectTimeout, n.close)
		}
	}
}

func (c *cluster) closeNodes() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.isClosed = true
	for _, n := range c.nodes {
		n.close()
	}
}

func (n *node) close() {
	n.closeWaiters()
	if closer, ok := n.doer.(io.Closer); ok {
		_ = closer.Close()
	}
}

// redirection is a node's reply that another node has the key: MOVED for good, or ASK for one command.
type redirection struct {
	isAsk   bool
	address string
}

func (s *Server) moveOf(err error) *redirection {
	line, _ := serverLine(err)
	words := strings.Fields(line)
	if s.cluster == nil || len(words) != 3 || words[0] != "MOVED" && words[0] != "ASK" {
		return nil
	}
	return &redirection{words[0] == "ASK", words[2]}
}

var asking = []any{"ASKING"}

// follow returns the node that a redirection names, and what to send before the command. Without a host, the node is on
// that of the one that replied.
func (c *cluster) follow(from *node, move *redirection) (n *node, first []any) {
	if host, port, err := net.SplitHostPort(move.address); err == nil && host == "" {
		host, _, _ = net.SplitHostPort(from.address)
		move.address = net.JoinHostPort(host, port)
	}
	if move.isAsk {
		return c.nodeAt(move.address), asking
	}
	go c.learn()
	return c.nodeAt(move.address), nil
}

// slotRanges reads groups of the first slot, the last one, and nodes, the master's first: its host, its port, and more. A
// node that does not know its host is the one that replied.
func slotRanges(reply any, from string) []slotRange {
	groups, _ := reply.([]any)
	ranges := make([]slotRange, 0, len(groups))
	for _, group := range groups {
		fields, _ := group.([]any)
		if len(fields) < 3 {
			continue
		}
		master, _ := fields[2].([]any)
		first, isFirst := fields[0].(int64)
		last, isLast := fields[1].(int64)
		if !isFirst || !isLast || len(master) < 2 {
			continue
		}
		host := text(master[0])
		if host == "" || host == "?" || master[0] == nil {
			host, _, _ = net.SplitHostPort(from)
		}
		ranges = append(ranges, slotRange{first, last, net.JoinHostPort(host, text(master[1]))})
	}
	return ranges
}

// text reads a string: client libraries have them as they like.
func text(word any) string {
	if bytes, ok := word.([]byte); ok {
		return string(bytes)
	}
	return fmt.Sprint(word)
}

// keyPositions has the commands whose key is not their first argument; 0: there is none.
var keyPositions = map[string]int{
	"TB.MTAKE": 2, "TB.MSETTLE": 3, "TB.MHOLD": 4, "EVALSHA": 3, "EVAL": 3, "CLUSTER": 0, "PING": 0, "INFO": 0, "TB.TOP": 0,
}

// keyPosition returns which argument is the key that selects the node; 0: any node will do.
func keyPosition(args []any) int {
	position, isKnown := keyPositions[args[0].(string)]
	if !isKnown {
		position = 1
	}
	if position >= len(args) {
		return 0
	}
	return position
}

const slots = 16384

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
	return int64(crc % slots)
}
