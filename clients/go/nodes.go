package tokenbucket

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
)

// nodes are those that were asked, by their addresses. A single server is one without, and so are nodes while the cluster
// has not said where its slots are.
type nodes struct {
	mutex    sync.RWMutex
	known    map[string]*lane
	ranges   []slotRange
	hasAsked sync.Once
}

// slotRange is slots of a cluster that are on one node.
type slotRange struct {
	first, last int64
	address     string
}

func (s *Server) node(key string) *lane {
	if !s.settings.isCluster {
		key = ""
	} else if key != "" {
		s.nodes.hasAsked.Do(s.learnSlots)
	}
	s.nodes.mutex.RLock()
	address := s.nodes.addressOf(key)
	of := s.nodes.known[address]
	s.nodes.mutex.RUnlock()
	if of != nil {
		return of
	}
	s.nodes.mutex.Lock()
	defer s.nodes.mutex.Unlock()
	if of, ok := s.nodes.known[address]; ok {
		return of
	}
	who := "the server"
	if address != "" {
		who = "the node " + address
	} else if s.address != "" {
		who = "the server " + s.address
	}
	of = &lane{server: s, who: who, script: script{who: who}}
	of.circuit = circuit{who: who, retryEvery: s.settings.retryEvery, logf: s.settings.logf}
	if s.nodes.known == nil {
		s.nodes.known = map[string]*lane{}
	}
	s.nodes.known[address] = of
	return of
}

// addressOf is as far as is known; of a single server, nothing is.
func (n *nodes) addressOf(key string) string {
	if key == "" || n.ranges == nil {
		return ""
	}
	slot := slotOf(key)
	for _, one := range n.ranges {
		if one.first <= slot && slot <= one.last {
			return one.address
		}
	}
	return ""
}

// learnSlots asks any node where the slots are.
func (s *Server) learnSlots() {
	of := s.node("")
	reply, err := of.run(context.Background(), &call{lane: of, args: []any{"CLUSTER", "SLOTS"}, aside: true})
	if err != nil {
		return // the next failure asks again
	}
	ranges := slotRanges(reply)
	s.nodes.mutex.Lock()
	defer s.nodes.mutex.Unlock()
	s.nodes.ranges = ranges
}

// slotsMayHaveMoved, as a call has failed.
func (s *Server) slotsMayHaveMoved() {
	if s.settings.isCluster {
		go s.learnSlots()
	}
}

// slotRanges reads groups of the first slot, the last one, and nodes, the master's first: its host, its port, and more.
func slotRanges(reply any) []slotRange {
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
		if isFirst && isLast && len(master) >= 2 {
			ranges = append(ranges, slotRange{first, last, net.JoinHostPort(text(master[0]), text(master[1]))})
		}
	}
	return ranges
}

// text: client libraries have strings as they like.
func text(word any) string {
	if bytes, ok := word.([]byte); ok {
		return string(bytes)
	}
	return fmt.Sprint(word)
}

// Where the key stands, if not right behind the name of the command; 0: there is none.
var keyPositions = map[string]int{
	"TB.MTAKE": 2, "TB.MSETTLE": 3, "TB.MHOLD": 4, "EVALSHA": 3, "EVAL": 3, "CLUSTER": 0, "PING": 0, "INFO": 0, "TB.TOP": 0,
}

// keyPosition tells which of the arguments is the key that selects the node; 0: any node will do.
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

// slotOf is what the cluster computes: CRC16 of the key, or of the first braces in it if there is something between them.
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
