package tokenbucket

import (
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
)

// cluster knows which node has which slot, as its nodes tell by redirections. Each node has a circuit and connections of its
// own.
type cluster struct {
	server *Server
	doer   ClusterDoer

	mutex    sync.RWMutex
	nodes    map[string]*node // by address
	slots    map[int64]*node
	isClosed bool
}

func newCluster(s *Server, doer ClusterDoer) *cluster {
	c := &cluster{server: s, doer: doer, nodes: map[string]*node{}, slots: map[int64]*node{}}
	for _, address := range doer.Addresses() {
		c.nodeAt(address)
	}
	return c
}

// nodeOf returns the node of the key; while that is unknown, one that redirects to it unless it is the one.
func (c *cluster) nodeOf(key string) *node {
	slot := slotOf(key)
	c.mutex.RLock()
	n := c.slots[slot]
	c.mutex.RUnlock()
	if n != nil {
		return n
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, n = range c.nodes {
		if !n.circuit.away.Load() {
			break
		}
	}
	c.slots[slot] = n
	return n
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

// forget lets the other nodes tell which node has the slots of this one.
func (c *cluster) forget(away *node) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for slot, n := range c.slots {
		if n == away {
			delete(c.slots, slot)
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

var asking = []any{"ASKING"}

// follow returns the node that a redirection names, and what to send before the command. Without a host, the node is on
// that of the one that replied.
func (c *cluster) follow(from *node, move *redirection) (n *node, first []any) {
	if host, port, err := net.SplitHostPort(move.address); err == nil && (host == "" || host == "?") {
		host, _, _ = net.SplitHostPort(from.address)
		move.address = net.JoinHostPort(host, port)
	}
	n = c.nodeAt(move.address)
	if move.isAsk {
		return n, asking
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.slots[move.slot] = n
	return n, nil
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
