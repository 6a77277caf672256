// Package goredis asks through clients of go-redis: single servers, Sentinel and clusters.
package goredis

import (
	"context"
	"fmt"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
)

// From makes a Doer with the options of a *redis.Client, also one of Sentinel, or of a *redis.ClusterClient. It opens
// connections of its own, as commands that must happen once may not be repeated by the client: see Server.Close. Of a
// cluster client, give the tokenbucket.Server the option Cluster.
func From(client redis.UniversalClient) (tokenbucket.Doer, error) {
	switch client := client.(type) {
	case *redis.Client:
		options := *client.Options()
		one := &single{}
		options.Dialer = listen(options.Dialer, &one.heard)
		options.MaxRetries, options.ReadTimeout, options.ContextTimeoutEnabled = -1, -1, true
		one.client = redis.NewClient(separate(&options))
		return one, nil
	case *redis.ClusterClient:
		options := *client.Options()
		options.Dialer = listen(orDialer(options), nil)
		options.MaxRetries, options.ReadTimeout, options.ContextTimeoutEnabled = -1, -1, true
		options.NewClient = separately(options.NewClient)
		return &cluster{client: redis.NewClusterClient(&options)}, nil
	}
	return nil, fmt.Errorf("%w: goredis.From takes a *redis.Client or a *redis.ClusterClient, not a %T", tokenbucket.ErrBadArgument, client)
}

// separate sets options that not every version of go-redis 9 has: a client dials once, because the circuit decides when to
// dial again, and shares no handler of notifications with the client that it was copied from.
func separate(options *redis.Options) *redis.Options {
	fields := reflect.ValueOf(options).Elem()
	for name, value := range map[string]int64{"DialerRetries": 1, "DialerRetryTimeout": 1} {
		if field := fields.FieldByName(name); field.IsValid() {
			field.SetInt(value)
		}
	}
	if field := fields.FieldByName("PushNotificationProcessor"); field.IsValid() {
		field.Set(reflect.Zero(field.Type()))
	}
	return options
}

// separately does so for the clients of a cluster's nodes.
func separately(newClient func(*redis.Options) *redis.Client) func(*redis.Options) *redis.Client {
	if newClient == nil {
		newClient = redis.NewClient
	}
	return func(options *redis.Options) *redis.Client { return newClient(separate(options)) }
}

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// orDialer is what a cluster's clients dial with.
func orDialer(options redis.ClusterOptions) dialer {
	if options.Dialer != nil {
		return options.Dialer
	}
	return redis.NewDialer(&redis.Options{DialTimeout: options.DialTimeout, TLSConfig: options.TLSConfig})
}

// listen lets the limiter know that a connection is being opened, and of every byte that arrives. Some versions of go-redis
// dial under a context of their own: then it is the server that was asked before.
func listen(dial dialer, before *atomic.Value) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		tokenbucket.Connecting(ctx)
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		_ = tokenbucket.Sent(ctx) // the client greets the server next
		heard := tokenbucket.Heard(ctx)
		if heard == nil && before != nil {
			heard, _ = before.Load().(func())
		}
		return &listening{conn, heard}, nil
	}
}

type listening struct {
	net.Conn
	heard func()
}

func (l *listening) Read(bytes []byte) (int, error) {
	n, err := l.Conn.Read(bytes)
	if n > 0 && l.heard != nil {
		l.heard()
	}
	return n, err
}

// SyscallConn is how the client finds out that an idle connection has ended.
func (l *listening) SyscallConn() (syscall.RawConn, error) {
	if conn, ok := l.Conn.(syscall.Conn); ok {
		return conn.SyscallConn()
	}
	return nil, fmt.Errorf("goredis: %T is no connection of the system", l.Conn)
}

type single struct {
	client *redis.Client
	heard  atomic.Value // func(), once there was a call

	waiters waiters
}

// Address is for errors.
func (s *single) Address() string { return s.client.Options().Addr }

// Connections bounds how many commands are sent at a time.
func (s *single) Connections() int { return s.client.Options().PoolSize }

// Close closes the connections.
func (s *single) Close() error {
	s.waiters.closeAll()
	return s.client.Close()
}

func (s *single) Do(ctx context.Context, args ...any) (any, error) {
	if s.heard.Load() == nil {
		if heard := tokenbucket.Heard(ctx); heard != nil {
			s.heard.Store(heard)
		}
	}
	return do(ctx, s.client, args)
}

// do replaces connections to a master that has become a replica: the client closes one at each such reply, which says
// that nothing happened.
func do(ctx context.Context, client *redis.Client, args []any) (reply any, err error) {
	for stale := client.PoolStats().IdleConns + 1; ; stale-- {
		reply, err = send(ctx, client, args)
		if stale == 0 || err == nil || !strings.HasPrefix(err.Error(), "READONLY ") {
			return reply, err
		}
	}
}

// send asks a connection first, of a command that must happen once: a dead one would take it and lose the reply.
func send(ctx context.Context, client *redis.Client, args []any) (any, error) {
	if !tokenbucket.IsOnce(ctx) {
		return client.Do(ctx, args...).Result()
	}
	for stale := client.PoolStats().IdleConns + 1; ; stale-- {
		conn := client.Conn()
		err := conn.Ping(ctx).Err()
		if _, isAnswer := err.(redis.Error); err == nil || isAnswer {
			defer conn.Close()
			command := redis.NewCmd(ctx, args...)
			_ = conn.Process(ctx, command)
			return command.Result()
		}
		conn.Close()
		if stale == 0 || ctx.Err() != nil {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err} // nothing was sent
		}
	}
}

type cluster struct {
	client *redis.ClusterClient

	mutex    sync.Mutex
	waiters  map[string]*waiters // of nodes, by their addresses
	isClosed bool
}

// Close closes the connections.
func (c *cluster) Close() error {
	c.mutex.Lock()
	c.isClosed = true
	for _, waiters := range c.waiters {
		waiters.closeAll()
	}
	c.mutex.Unlock()
	return c.client.Close()
}

// A slot that moves back and forth is not followed for ever.
const mostRedirections = 3

// Do finds the node by the key itself: the client would take the first argument for the key.
func (c *cluster) Do(ctx context.Context, args ...any) (reply any, err error) {
	for redirected := 0; ; redirected++ {
		node, unknown := c.client.MasterForKey(ctx, tokenbucket.KeyOf(ctx))
		if unknown != nil {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: unknown} // nothing was sent
		}
		reply, err = do(ctx, node, args)
		var move *move
		if move = moveOf(err); move == nil || redirected == mostRedirections {
			return reply, err
		}
		if move.isAsk {
			return c.ask(ctx, move.address, args)
		}
		c.learnSlots(ctx)
	}
}

// learnSlots returns when the client has read where the slots are.
func (c *cluster) learnSlots(ctx context.Context) {
	_ = c.client.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
}

// ask asks the node that a slot is moving to.
func (c *cluster) ask(ctx context.Context, address string, args []any) (any, error) {
	node, err := c.nodeAt(ctx, address)
	if err != nil {
		return nil, err
	}
	return askOn(ctx, node, args)
}

func askOn(ctx context.Context, node *redis.Client, args []any) (any, error) {
	pipeline := node.Pipeline()
	pipeline.Do(ctx, "ASKING")
	answer := pipeline.Do(ctx, args...)
	_, _ = pipeline.Exec(ctx)
	return answer.Result()
}

func (c *cluster) nodeAt(ctx context.Context, address string) (*redis.Client, error) {
	found := make(chan *redis.Client, 1) // the nodes are visited concurrently
	_ = c.client.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		if node.Options().Addr == address {
			found <- node
		}
		return nil
	})
	select {
	case node := <-found:
		return node, nil
	default:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: fmt.Errorf("%s is not known", address)}
	}
}

type move struct {
	isAsk   bool
	address string
}

func moveOf(err error) *move {
	if err == nil {
		return nil
	}
	words := strings.Fields(err.Error())
	if len(words) != 3 || words[0] != "MOVED" && words[0] != "ASK" {
		return nil
	}
	return &move{words[0] == "ASK", words[2]}
}
