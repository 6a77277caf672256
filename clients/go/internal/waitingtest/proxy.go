package waitingtest

import (
	"bytes"
	"net"
	"sync/atomic"
	"testing"
)

// proxy stands between a client and a server. While it delays, the reply to a take that waits passes when another connection
// sends what ends the wait.
type proxy struct {
	listener net.Listener
	server   string
	delays   atomic.Bool
	left     chan struct{}
}

func startProxy(t testing.TB, server string) *proxy {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, server: server, left: make(chan struct{}, 1)}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(client)
		}
	}()
	return p
}

// delay keeps the next reply back. What left before says nothing about it.
func (p *proxy) delay() {
	select {
	case <-p.left:
	default:
	}
	p.delays.Store(true)
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	var waits atomic.Bool
	go func() {
		command := make([]byte, 4096)
		for {
			n, err := client.Read(command)
			if err != nil {
				break
			}
			if p.delays.Load() { // a call is to leave: what ends its wait comes on another connection
				select {
				case p.left <- struct{}{}:
				default:
				}
			} else {
				waits.Store(bytes.Contains(command[:n], []byte("TB.BTAKE")))
			}
			if _, err := server.Write(command[:n]); err != nil {
				break
			}
		}
		_ = server.(*net.TCPConn).CloseWrite()
	}()
	reply := make([]byte, 4096)
	for {
		n, err := server.Read(reply)
		if err != nil {
			return
		}
		if p.delays.Load() && waits.Load() {
			<-p.left
			p.delays.Store(false)
		}
		if _, err := client.Write(reply[:n]); err != nil {
			return
		}
	}
}
