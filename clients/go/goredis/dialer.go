package goredis

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/internal/rules"
)

// dialer opens the connections of a client.
type dialer struct {
	next       func(ctx context.Context, network, address string) (net.Conn, error)
	late       chan net.Conn // for calls that have ended
	generation atomic.Int64  // connections of earlier ones are not used again
	replies    atomic.Int64  // that any connection has read
	life       context.Context
	end        context.CancelFunc
}

// lateWithin bounds a dial whose call has ended, and keeping its connection.
const lateWithin = 10 * time.Second

// see begins a new generation when a connection ends, or leads to a former master: so do those that are idle. So it is when one
// is silent, and no other has heard anything meanwhile.
func (d *dialer) see(err error) {
	if err != nil && (isBroken(err) || redis.HasErrorPrefix(err, "READONLY")) {
		d.generation.Add(1)
	}
}

// renew begins a new generation, unless one has begun since.
func (d *dialer) renew(since int64) { d.generation.CompareAndSwap(since, since+1) }

func isBroken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// dial returns after ConnectWithin: go-redis may ask one Sentinel after the other, each for seconds. A connection that comes
// later serves the next call.
func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	within, leave := context.WithTimeout(ctx, rules.ConnectWithin)
	defer leave()
	dialled, failed := make(chan net.Conn), make(chan error, 1)
	go func() {
		life, end := context.WithTimeout(d.life, lateWithin)
		defer end()
		conn, err := d.open(life, network, address)
		if err != nil {
			failed <- err
			return
		}
		select {
		case dialled <- conn:
			return
		case <-within.Done():
		}
		select {
		case d.late <- conn:
		case <-life.Done():
			_ = conn.Close()
		}
	}()
	select {
	case conn := <-dialled:
		return conn, nil
	case conn := <-d.late:
		return conn, nil
	case err := <-failed:
		return nil, err
	case <-within.Done():
		return nil, tokenbucket.Unsent(fmt.Errorf("no connection to %s within %v: %w", address, rules.ConnectWithin, os.ErrDeadlineExceeded))
	}
}

func (d *dialer) open(ctx context.Context, network, address string) (conn net.Conn, err error) {
	generation := d.generation.Load()
	defer func() {
		if reason := recover(); reason != nil { // of a function that the program gave
			err = tokenbucket.Unsent(fmt.Errorf("the dialer panicked: %v", reason))
		}
	}()
	if conn, err = d.next(ctx, network, address); err != nil {
		return nil, tokenbucket.Unsent(err)
	}
	wrapped := &patientConn{Conn: conn, dialer: d, generation: generation}
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	if wrapped.system, _ = conn.(syscall.Conn); wrapped.system == nil {
		return struct{ net.Conn }{wrapped}, nil
	}
	return wrapped, nil
}

// patientConn reads once more after a deadline: a process that had no processor finds there what had arrived.
type patientConn struct {
	net.Conn
	isGreeted  bool
	failed     error // before the server has greeted it
	system     syscall.Conn
	dialer     *dialer
	generation int64
	asked      int64 // the dialer's replies at the last command
}

// readWithin is how long reading what has arrived may take.
const readWithin = 5 * time.Millisecond

var tooMany = []byte("-ERR max number of clients")

func (c *patientConn) Read(buffer []byte) (int, error) {
	if c.failed != nil {
		return 0, c.failed // go-redis overlooks the first error
	}
	n, err := c.Conn.Read(buffer)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && c.SetReadDeadline(time.Now().Add(readWithin)) == nil {
		n, err = c.Conn.Read(buffer)
	}
	if !c.isGreeted {
		if bytes.HasPrefix(buffer[:n], tooMany) { // go-redis would miss it
			line, _, _ := bytes.Cut(buffer[1:n], []byte("\r\n"))
			err = errors.New(string(line))
		}
		if err != nil {
			c.failed = tokenbucket.Unsent(tokenbucket.Unsent(err)) // go-redis unwraps it once
			return 0, c.failed
		}
		c.isGreeted = true
	}
	switch {
	case n > 0:
		c.dialer.replies.Add(1)
	case errors.Is(err, os.ErrDeadlineExceeded) && c.dialer.replies.Load() == c.asked:
		c.dialer.renew(c.generation)
	}
	return n, err
}

// Write lets Read find out why it failed before the server has greeted: the server may have said so.
func (c *patientConn) Write(buffer []byte) (int, error) {
	c.asked = c.dialer.replies.Load()
	n, err := c.Conn.Write(buffer)
	if err != nil && !c.isGreeted {
		return len(buffer), nil
	}
	return n, err
}

// SyscallConn lets go-redis find out that an idle connection has ended.
func (c *patientConn) SyscallConn() (syscall.RawConn, error) {
	if c.generation != c.dialer.generation.Load() {
		return nil, net.ErrClosed
	}
	return c.system.SyscallConn()
}
