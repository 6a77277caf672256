// Package goredis asks through go-redis: single servers, Sentinel and clusters.
package goredis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
)

// From makes a Doer with the options of a *redis.Client, also one of Sentinel, or of a *redis.ClusterClient. It opens
// connections of its own, because a command that must happen once may not be repeated by the client: see Server.Close.
func From(client redis.UniversalClient) (tokenbucket.Doer, error) {
	switch client := client.(type) {
	case *redis.Client:
		return newNode(*client.Options()), nil
	case *redis.ClusterClient:
		options := *client.Options()
		return &cluster{newNode(nodeOptions(options)), options.Addrs}, nil
	}
	return nil, fmt.Errorf("%w: goredis.From takes a *redis.Client or a *redis.ClusterClient, not a %T", tokenbucket.ErrBadArgument, client)
}

const (
	// connections is the pool's size unless the program chose one.
	connections = 64
	// connectWithin bounds opening a connection.
	connectWithin = time.Second
)

// node asks one server. Its options are not those of a client in use, which go-redis changes.
type node struct {
	options   redis.Options
	client    *redis.Client
	connected *atomic.Int64
}

func newNode(options redis.Options) *node {
	options.MaxRetries = -1
	// The deadline of the context bounds reading: go-redis measures its own timeouts by a clock that may be 50 ms late.
	options.ReadTimeout, options.WriteTimeout, options.ContextTimeoutEnabled = -1, -1, true
	if options.DialTimeout <= 0 || options.DialTimeout > connectWithin {
		options.DialTimeout = connectWithin
	}
	switch options.PoolSize {
	case 5 * runtime.GOMAXPROCS(0), 10 * runtime.GOMAXPROCS(0): // go-redis's default of a cluster or a server
		options.PoolSize = connections
	}
	options.PoolTimeout = time.Minute // callers take turns before
	if err := json.Unmarshal([]byte(newer), &options); err != nil {
		panic(err) // the text is a constant
	}
	n := &node{connected: &atomic.Int64{}}
	n.options = n.noting(options)
	own := n.options
	n.client = redis.NewClient(&own)
	return n
}

// noting notes when the server has greeted a connection: opening one may take longer than the server may be silent.
func (n *node) noting(options redis.Options) redis.Options {
	dial, prepare := options.Dialer, options.OnConnect
	options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if system, ok := conn.(syscall.Conn); ok {
			return systemConn{patientConn{conn}, system}, nil
		}
		return patientConn{conn}, nil
	}
	options.OnConnect = func(ctx context.Context, conn *redis.Conn) error {
		n.connected.Store(time.Now().UnixNano())
		if prepare != nil {
			return prepare(ctx, conn)
		}
		return nil
	}
	return options
}

// patientConn reads once more after a deadline: a process that had no processor finds there what had arrived.
type patientConn struct{ net.Conn }

// readWithin is how long reading what has arrived may take.
const readWithin = 5 * time.Millisecond

func (c patientConn) Read(bytes []byte) (int, error) {
	n, err := c.Conn.Read(bytes)
	if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || c.SetReadDeadline(time.Now().Add(readWithin)) != nil {
		return n, err
	}
	return c.Conn.Read(bytes)
}

// systemConn lets go-redis find out that an idle connection has ended.
type systemConn struct {
	patientConn
	syscall.Conn
}

// Connected returns when the server last greeted a connection.
func (n *node) Connected() time.Time { return time.Unix(0, n.connected.Load()) }

// newer sets options that not every version of go-redis 9 has. A client dials once, because the circuit decides when to
// dial again. It shares with the program's client neither the handler of notifications nor the settings of maintenance,
// which a client in use changes.
const newer = `{"DialerRetries": 1, "DialerRetryTimeout": 1, "PushNotificationProcessor": null,
	"MaintNotificationsConfig": null, "MaintNotificationsConfig": {"Mode": "disabled"}}`

// Address is for errors.
func (n *node) Address() string { return n.options.Addr }

// Connections bounds how many commands are sent at a time.
func (n *node) Connections() int { return n.options.PoolSize }

// Idle returns how many connections may lead to an earlier server.
func (n *node) Idle() int { return int(n.client.PoolStats().IdleConns) }

// Close closes the connections.
func (n *node) Close() error { return n.client.Close() }

func (n *node) Do(ctx context.Context, args ...any) (any, error) {
	return n.client.Do(ctx, args...).Result()
}

// DoBoth sends both commands on one connection of the pool.
func (n *node) DoBoth(ctx context.Context, first, second []any) (any, error) {
	conn := n.client.Conn()
	defer conn.Close()
	if _, err := process(ctx, conn, first); err != nil && !isReply(err) {
		return nil, tokenbucket.Unsent(err)
	}
	return process(ctx, conn, second)
}

func process(ctx context.Context, conn *redis.Conn, args []any) (any, error) {
	command := redis.NewCmd(ctx, args...)
	_ = conn.Process(ctx, command)
	return command.Result()
}

func isReply(err error) bool {
	_, ok := err.(redis.Error)
	return ok
}

// Dial makes a client of one connection: go-redis closes a connection that waits only together with its client.
func (n *node) Dial(context.Context) (tokenbucket.Conn, error) {
	options := n.options
	options.PoolSize, options.MinIdleConns, options.MaxIdleConns = 1, 0, 0
	return conn{redis.NewClient(&options)}, nil
}

type conn struct{ client *redis.Client }

func (c conn) Do(args ...any) (any, error) {
	return c.client.Do(context.Background(), args...).Result()
}

func (c conn) Close() error { return c.client.Close() }

// cluster leads to the nodes of a cluster.
type cluster struct {
	first     *node
	addresses []string
}

// Do asks the first node.
func (c *cluster) Do(ctx context.Context, args ...any) (any, error) { return c.first.Do(ctx, args...) }

func (c *cluster) Addresses() []string { return c.addresses }

func (c *cluster) Node(address string) tokenbucket.Doer {
	if address == c.addresses[0] {
		return c.first
	}
	options := c.first.options
	options.Addr = address
	return newNode(options)
}

// nodeOptions returns the options that a cluster client gives to the clients of its nodes. It lets go-redis make such a
// client, of a cluster of one node, which connects to nothing.
func nodeOptions(options redis.ClusterOptions) (of redis.Options) {
	options.NewClient = func(node *redis.Options) *redis.Client {
		client := redis.NewClient(node)
		of = *client.Options()
		return client
	}
	options.ReadOnly, options.RouteByLatency, options.RouteRandomly, options.MinIdleConns = false, false, false, 0
	options.ClusterSlots = func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: options.Addrs[0]}}}}, nil
	}
	client := redis.NewClusterClient(&options)
	_, _ = client.MasterForKey(context.Background(), "")
	_ = client.Close()
	return of
}
