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
	"regexp"
	"strings"
	"sync"
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
	late       chan lateConn // for calls that have ended
	generation atomic.Int64  // connections of earlier ones are not used again
	ends       atomic.Int64  // how often one has ended
	replies    atomic.Int64  // that any connection has read
	life       context.Context
	end        context.CancelFunc
	master     *master // or nil
}

// lateConn is a connection that nobody has used yet, and would find out that it has ended.
type lateConn struct {
	net.Conn
	generation int64
	ends       int64 // the dialer's, before it was opened
}

// master is the one that Sentinel names.
type master struct {
	mutex     sync.Mutex
	address   string        // to which the last connection leads
	moved     chan struct{} // closed when it is another
	isLooking atomic.Bool
}

const (
	// lateWithin bounds a dial whose call has ended, and keeping its connection.
	lateWithin = 10 * time.Second
	// lookEvery is how often Sentinel is asked for the master while calls run.
	lookEvery = time.Second
)

// see begins a new generation when a connection ends, or leads to a former master: so do those that are idle. So it is when one
// is silent, and no other has heard anything meanwhile. Those that ask Sentinel stay when one ends: opening others may take
// seconds, and go-redis finds out which have ended.
func (d *dialer) see(err error) {
	if isEnd(err) || isReset(err) {
		d.ends.Add(1)
	}
	if isReset(err) || redis.HasErrorPrefix(err, "READONLY") || isEnd(err) && d.master == nil {
		d.generation.Add(1)
	}
}

// renew begins a new generation, unless one has begun since.
func (d *dialer) renew(since int64) { d.generation.CompareAndSwap(since, since+1) }

func isEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// look opens a connection now and then while calls run, to find out whether Sentinel names another master. The former one answers
// for some seconds, and forgets what it answered.
func (d *dialer) look() {
	if d.master == nil || d.master.isLooking.Load() || d.life.Err() != nil || !d.master.isLooking.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer d.master.isLooking.Store(false)
		within, end := context.WithTimeout(d.life, lateWithin)
		defer end()
		if conn, _, err := d.open(within, "tcp", ""); err == nil {
			_ = conn.Close()
		}
		select {
		case <-time.After(lookEvery):
		case <-d.life.Done():
		}
	}()
}

// moved is closed when Sentinel names another master.
func (d *dialer) moved() <-chan struct{} {
	if d.master == nil {
		return nil
	}
	d.master.mutex.Lock()
	defer d.master.mutex.Unlock()
	return d.master.moved
}

// arrive begins a new generation if a connection leads to another master than the one before it. It returns the generation of
// the connection.
func (d *dialer) arrive(conn net.Conn, generation int64) int64 {
	address := conn.RemoteAddr()
	if d.master == nil || address == nil {
		return generation
	}
	d.master.mutex.Lock()
	defer d.master.mutex.Unlock()
	before, now := d.master.address, address.String()
	if before == now || generation != d.generation.Load() { // it was dialled before what others found out
		return generation
	}
	if d.master.address = now; before != "" {
		close(d.master.moved)
		d.master.moved = make(chan struct{})
		generation = d.generation.Add(1)
	}
	return generation
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
		ends := d.ends.Load()
		conn, generation, err := d.open(life, network, address)
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
		case d.late <- lateConn{conn, generation, ends}:
		case <-life.Done():
			_ = conn.Close()
		}
	}()
	for {
		select {
		case conn := <-dialled:
			return conn, nil
		case late := <-d.late:
			if late.generation == d.generation.Load() && late.ends == d.ends.Load() {
				return late.Conn, nil
			}
			_ = late.Close() // with those that ended meanwhile
		case err := <-failed:
			return nil, err
		case <-within.Done():
			return nil, tokenbucket.Unsent(fmt.Errorf("no connection to %s within %v: %w", address, rules.ConnectWithin, os.ErrDeadlineExceeded))
		}
	}
}

// open also returns the generation of the connection.
func (d *dialer) open(ctx context.Context, network, address string) (conn net.Conn, generation int64, err error) {
	generation = d.generation.Load()
	defer recovered(&err)
	if conn, err = d.next(ctx, network, address); err != nil {
		return nil, 0, tokenbucket.Unsent(ofSentinel(err))
	}
	generation = d.arrive(conn, generation)
	wrapped := &patientConn{Conn: conn, dialer: d, generation: generation}
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	if lingering, ok := conn.(interface{ SetLinger(seconds int) error }); ok {
		// What it has not delivered when it is closed would arrive seconds later: a hold that is nobody's until its ttl.
		_ = lingering.SetLinger(0)
	}
	if wrapped.system, _ = conn.(syscall.Conn); wrapped.system == nil {
		return struct{ net.Conn }{wrapped}, generation, nil
	}
	return wrapped, generation, nil
}

// bound lets the program's functions that go-redis calls for each connection take no longer than a dial, nor end the process.
func bound(options *redis.Options) {
	if next := options.OnConnect; next != nil {
		options.OnConnect = func(ctx context.Context, conn *redis.Conn) error {
			return inTime(ctx, func(ctx context.Context) error { return next(ctx, conn) })
		}
	}
	next := options.CredentialsProviderContext
	if plain := options.CredentialsProvider; next == nil && plain != nil {
		next = func(context.Context) (string, string, error) { user, password := plain(); return user, password, nil }
	}
	if next != nil {
		options.CredentialsProviderContext = func(ctx context.Context) (string, string, error) {
			var user, password string
			err := inTime(ctx, func(ctx context.Context) (err error) { user, password, err = next(ctx); return err })
			if err != nil {
				return "", "", err
			}
			return user, password, nil
		}
	}
}

func inTime(ctx context.Context, call func(context.Context) error) error {
	within, leave := context.WithCancel(ctx) // the deadline of a call begins when it is asked for
	defer leave()
	defer time.AfterFunc(rules.ConnectWithin, leave).Stop()
	err := detached(within, func() error { return call(within) })
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case within.Err() != nil:
		err = os.ErrDeadlineExceeded
	}
	return tokenbucket.Unsent(fmt.Errorf("a function of the program: %w", err))
}

// detached lets a function go on when the context ends. A panic is its error.
func detached(ctx context.Context, call func() error) error {
	ended := make(chan error, 1)
	go func() {
		var err error
		defer func() { ended <- err }()
		defer recovered(&err)
		err = call()
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// recovered lets a function return the panic of one that the program gave.
func recovered(err *error) {
	if reason := recover(); reason != nil {
		*err = tokenbucket.Unsent(fmt.Errorf("a function of the program panicked: %v", reason))
	}
}

const ofSentinels = "redis: all sentinels specified in configuration are unreachable: "

var ofMistake = regexp.MustCompile(`^((NOAUTH|WRONGPASS|NOPERM|DENIED|ERR) |(remote error: )?(tls|x509): )`)

// ofSentinel returns an ErrBadArgument for what a Sentinel said that waiting does not change, or else the error. go-redis makes one
// text of the errors of all.
func ofSentinel(err error) error {
	_, said, _ := strings.Cut(err.Error(), ofSentinels)
	for _, line := range strings.Split(said, "\n") {
		if line == redis.Nil.Error() {
			line = "ERR it knows no master of that name"
		}
		if ofMistake.MatchString(line) && !strings.HasPrefix(line, string(tooMany[1:])) && !strings.HasSuffix(line, "timed out") {
			return fmt.Errorf("%w: Sentinel: %s", tokenbucket.ErrBadArgument, strings.TrimPrefix(line, "ERR "))
		}
	}
	return err
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
	isExtended bool  // the deadline of the last command
}

// readWithin is how long reading what has arrived may take.
const readWithin = 5 * time.Millisecond

var tooMany = []byte("-ERR max number of clients")

func (c *patientConn) Read(buffer []byte) (int, error) {
	if c.failed != nil {
		return 0, c.failed // go-redis overlooks the first error
	}
	n, err := c.Conn.Read(buffer)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && !c.isExtended && c.SetReadDeadline(time.Now().Add(readWithin)) == nil {
		c.isExtended = true
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
	c.asked, c.isExtended = c.dialer.replies.Load(), false
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
	raw, err := c.system.SyscallConn()
	if _, isPlain := c.Conn.(syscall.Conn); err == nil && !isPlain && !c.isGreeted {
		return unread{raw}, nil // what TLS has sent so far is no reply: go-redis would wait for one, with no deadline
	}
	return raw, err
}

// unread is a connection into which go-redis does not look.
type unread struct{ syscall.RawConn }

func (unread) Read(func(fd uintptr) bool) error { return nil }
