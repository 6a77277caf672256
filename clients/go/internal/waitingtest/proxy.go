package waitingtest

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
)

// proxy stands between a client and a server. While it delays, a reply passes when its client has closed its side.
type proxy struct {
	listener net.Listener
	server   string
	delays   atomic.Bool
}

func startProxy(t testing.TB, server string) *proxy {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, server: server}
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

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	left := make(chan struct{})
	go func() {
		_, _ = io.Copy(server, client)
		close(left)
		if !p.delays.Swap(false) {
			_ = server.(*net.TCPConn).CloseWrite()
		}
	}()
	reply := make([]byte, 4096)
	for {
		n, err := server.Read(reply)
		if err != nil {
			return
		}
		if p.delays.Load() {
			<-left
		}
		if _, err := client.Write(reply[:n]); err != nil {
			return
		}
	}
}
