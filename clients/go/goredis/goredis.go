// Package goredis connects limiters to single servers, Sentinel and clusters through go-redis.
package goredis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/internal/rules"
)

// From makes a Doer with the options of a *redis.Client, also one of Sentinel, or of a *redis.ClusterClient. It opens
// connections of its own, as many as PoolSize says, because your client may repeat a command whose reply was lost.
// Server.Close closes them; your client stays open.
func From(client redis.UniversalClient) (tokenbucket.Doer, error) {
	switch client := client.(type) {
	case *redis.Client:
		if client != nil {
			return newNode(*client.Options()), nil
		}
	case *redis.ClusterClient:
		if client != nil && (len(client.Options().Addrs) > 0 || client.Options().ClusterSlots != nil) {
			return newCluster(*client.Options()), nil
		}
	}
	const takes = "%w: goredis.From takes a *redis.Client, or a *redis.ClusterClient that has addresses, and neither nil nor another %T"
	return nil, fmt.Errorf(takes, tokenbucket.ErrBadArgument, client)
}

const (
	// slotsWithin bounds how long a node may take to say where the slots are: go-redis then asks another.
	slotsWithin = 500 * time.Millisecond
	// poolSize keeps go-redis from dialling but once a second, which it does after so many dials that failed. Permits bound the calls.
	poolSize = 1 << 13
)

// node asks one server. Its options are not those of a client in use, which go-redis changes.
type node struct {
	options redis.Options
	client  *redis.Client
	dialer  *dialer
	size    int
	cluster *cluster    // that it is of, or nil
	known   string      // its address as the cluster knows it: NewClient may change that of the options
	isDown  atomic.Bool // it said that the cluster is down, which may be true of it alone
	doubted atomic.Bool // what it told of the slots was not believed, and no other was since
}

func newNode(options redis.Options) *node {
	n := &node{size: mostAtOnce(options.PoolSize, options.MaxActiveConns)}
	n.dialer = limit(&options, n.size)
	if options.Addr == "FailoverClient" { // as go-redis calls those of Sentinel
		n.dialer.master = &master{moved: make(chan struct{})}
	}
	n.options, n.client = options, redis.NewClient(&options)
	return n
}

// limit lets go-redis repeat nothing, and the deadline of the context bound reading: go-redis measures its own timeouts by a
// clock that may be 50 ms late. A client dials once, because the Server decides when to dial again. Permits bound its connections
// but for those that ask for slots; dials go on when their call has left, and have a bound of their own. It shares with the program's
// client neither the handler of notifications nor the settings of maintenance, which a client in use changes.
func limit(options *redis.Options, size int) *dialer {
	options.MaxRetries, options.MinIdleConns, options.MaxActiveConns = -1, 0, 0
	options.ReadTimeout, options.WriteTimeout, options.ContextTimeoutEnabled = -1, -1, true
	options.DialTimeout, options.PoolTimeout, options.PoolSize = rules.ConnectWithin, rules.ConnectWithin, poolSize
	setNewer(options, fmt.Sprintf(`{"DialerRetries": 1, "DialerRetryTimeout": 1, "PushNotificationProcessor": null,
		"MaintNotificationsConfig": null, "MaintNotificationsConfig": {"Mode": "disabled"}, "MaxConcurrentDials": %d}`, size))
	d := &dialer{next: options.Dialer, late: make(chan lateConn)}
	if d.next == nil {
		d.next = redis.NewDialer(options)
	}
	d.life, d.end = context.WithCancel(context.Background())
	options.Dialer = d.dial
	bound(options)
	return d
}

// mostAtOnce returns how many connections the program allows.
func mostAtOnce(poolSize, maxActive int) int {
	if maxActive > 0 && maxActive < poolSize {
		return maxActive
	}
	return poolSize
}

// setNewer sets options that not every version of go-redis 9 has.
func setNewer(options any, values string) {
	if err := json.Unmarshal([]byte(values), options); err != nil {
		panic(err) // the text is a constant
	}
}

func (n *node) Address() string { return n.options.Addr }

func (n *node) Connections() int { return n.size }

func (n *node) Close() error {
	n.dialer.end()
	return n.client.Close()
}

func (n *node) Do(ctx context.Context, args ...any) (any, error) {
	n.dialer.look()
	reply, err := n.client.Do(ctx, args...).Result()
	n.dialer.see(err)
	return reply, cause(err)
}

// Wait makes a client of one connection: go-redis closes a connection that waits only together with its client.
func (n *node) Wait(ctx context.Context, args ...any) (any, error) {
	options := n.options
	options.PoolSize, options.MaxIdleConns = 1, 0
	client := redis.NewClient(&options)
	moved := n.dialer.moved()
	go func() {
		select {
		case <-ctx.Done():
		case <-moved:
		}
		_ = client.Close()
	}()
	reply, err := client.Do(ctx, args...).Result()
	return reply, cause(err)
}

// cluster lets go-redis know which node has which slots, and follow redirections, but repeat nothing else.
type cluster struct {
	client   *redis.ClusterClient
	nodes    sync.Map                  // by their clients
	targets  sync.Map                  // of redirections: addresses, and when
	unserved atomic.Pointer[time.Time] // until when a slot that a node does not serve counts as one that none serves
	looking  chan struct{}             // has room for the one call that looks for the slots
	hasSlots atomic.Bool
}

func newCluster(options redis.ClusterOptions) *cluster {
	c := &cluster{looking: make(chan struct{}, 1)}
	newClient := options.NewClient
	options.NewClient = func(of *redis.Options) *redis.Client {
		c.forgetLeft()
		n := &node{size: mostAtOnce(of.PoolSize, of.MaxActiveConns), cluster: c, known: of.Addr}
		n.dialer = limit(of, n.size)
		n.options, n.client = *of, newClient(of)
		n.client.AddHook(n)
		c.nodes.Store(n.client, n)
		return n.client
	}
	options.ReadOnly, options.RouteByLatency, options.RouteRandomly = false, false, false
	options.MaxRedirects, options.MinRetryBackoff, options.MaxRetryBackoff = rules.MostRedirections, -1, -1
	setNewer(&options, `{"DisableRoutingPolicies": true}`) // for which go-redis asks any node for COMMAND
	c.client = redis.NewClusterClient(&options)
	return c
}

func (c *cluster) Address() string { return strings.Join(c.client.Options().Addrs, ", ") }

func (c *cluster) Connections() int {
	return mostAtOnce(c.client.Options().PoolSize, c.client.Options().MaxActiveConns)
}

func (c *cluster) Close() error {
	c.nodes.Range(func(_, one any) bool { one.(*node).dialer.end(); return true })
	return c.client.Close()
}

func (c *cluster) Do(ctx context.Context, args ...any) (any, error) { return c.DoFor(ctx, "", args...) }

func (c *cluster) DoFor(ctx context.Context, key string, args ...any) (any, error) {
	command := redis.NewCmd(ctx, args...)
	for at, arg := range args {
		if at > 0 && arg == key { // go-redis does not know the commands of modules
			command.SetFirstKeyPos(int8(at))
			break
		}
	}
	err := c.client.Process(context.WithValue(ctx, (*hops)(nil), &hops{}), command)
	return command.Val(), cause(err)
}

func (c *cluster) NodeOf(ctx context.Context, key string) (tokenbucket.Doer, error) {
	if key == "" {
		key = "\x00" // of the same slot: go-redis takes any node for none
	}
	if err := c.findSlots(ctx, key); err != nil {
		return nil, cause(ofSentinel(err))
	}
	client, err := c.client.MasterForKey(ctx, key)
	if err != nil {
		return nil, cause(err)
	}
	one, ok := c.nodes.Load(client)
	if !ok {
		return nil, tokenbucket.Unsent(redis.ErrClosed) // it has just left
	}
	return one.(*node), nil
}

// findSlots goes on when its call has left, so that go-redis knows the slots at last: with NewFailoverClusterClient it asks one
// Sentinel after the other, each for seconds.
func (c *cluster) findSlots(ctx context.Context, key string) error {
	if c.hasSlots.Load() {
		return nil
	}
	select {
	case c.looking <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	return detached(ctx, func() error {
		defer func() { <-c.looking }()
		_, err := c.client.MasterForKey(context.Background(), key)
		c.hasSlots.Store(err == nil)
		return err
	})
}

func (c *cluster) Has(one tokenbucket.Doer) bool {
	_, has := c.nodes.Load(one.(*node).client)
	return has
}

// forgetLeft forgets the nodes whose clients go-redis has closed, because they left. A client says so before it heeds its context.
func (c *cluster) forgetLeft() {
	over, end := context.WithCancel(context.Background())
	end()
	c.nodes.Range(func(client, one any) bool {
		if errors.Is(client.(*redis.Client).Ping(over).Err(), redis.ErrClosed) {
			c.nodes.Delete(client)
			one.(*node).dialer.end()
		}
		return true
	})
}

// failure is the error of a command that go-redis would repeat if it knew what it was, also by its text.
type failure struct{ cause error }

func (f failure) Error() string { return "of a node: " + f.cause.Error() }

// cause returns the error that go-redis got. It heeds the end of a context only before it sends.
func cause(err error) error {
	var f failure
	if errors.As(err, &f) { // perhaps within the error of a hook of the program's
		err = f.cause
	}
	var reply redis.Error
	switch {
	case err == nil || errors.As(err, &reply):
		return err
	case err == context.Canceled || err == context.DeadlineExceeded:
		return tokenbucket.Unsent(err)
	}
	return tokenbucket.Unanswered(err)
}

// DialHook changes nothing.
func (n *node) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook is called for each command to a node of a cluster. It lets go-redis ask another node where the slots are: this one is
// not of the cluster, or knows of no other yet, or is cut off from the others and names nodes that were masters. Where no other
// knows better, it is believed when it is asked again.
func (n *node) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		if _, isOurs := command.(*redis.Cmd); isOurs {
			return n.follow(ctx, func() error { return next(ctx, command) })
		}
		slots, isOfSlots := command.(*redis.ClusterSlotsCmd)
		if !isOfSlots {
			return next(ctx, command) // of a connection that is opened for a call
		}
		within, cancel := context.WithTimeout(ctx, slotsWithin)
		defer cancel()
		err := next(slotsContext{within}, command)
		if err == nil && (len(slots.Val()) == 0 || n.isDown.Load() && !n.doubted.Swap(true)) {
			err = errors.New("it may not know the slots")
		}
		if err == nil {
			n.cluster.nodes.Range(func(_, one any) bool { one.(*node).doubted.Store(false); return true })
			n.cluster.keepTargets(slots.Val())
		}
		return err
	}
}

// slotsContext has a deadline that begins when it is asked for: a connection that is new takes several round trips.
type slotsContext struct{ context.Context }

func (slotsContext) Deadline() (time.Time, bool) { return time.Now().Add(slotsWithin), true }

// keepTargets lets nodes to which calls are redirected count as replicas: go-redis closes a minute later those that have no slots.
func (c *cluster) keepTargets(slots []redis.ClusterSlot) {
	c.targets.Range(func(address, at any) bool {
		if time.Since(at.(time.Time)) > time.Minute {
			c.targets.Delete(address)
		} else {
			slots[0].Nodes = append(slots[0].Nodes, redis.ClusterNode{Addr: address.(string)})
		}
		return true
	})
}

// ProcessPipelineHook is for ASKING and the command behind it.
func (n *node) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		if commands[0].Name() != "asking" {
			return next(ctx, commands)
		}
		return n.follow(ctx, func() error { return next(ctx, commands) })
	}
}

// hops are what a call has followed from node to node. Nil is their key in its context.
type hops struct {
	until    time.Time // it follows no more: one Timeout after the first
	unserved int       // how many nodes said that none serves the slot
	isToNext bool      // it was redirected to the node to which it is sent next
}

const (
	// mostUnserved is how many nodes are asked for a slot that none serves: one that left the cluster says so of all slots.
	mostUnserved = 4
	// unservedFor is how long calls ask one alone after that, so that they take no permits from those of other slots.
	unservedFor = 100 * time.Millisecond
)

// isFollowed returns whether a call that is redirected follows.
func (h *hops) isFollowed(ctx context.Context) bool {
	if end, has := ctx.Deadline(); has && h.until.IsZero() {
		h.until = end
	}
	return h.until.IsZero() || time.Now().Before(h.until)
}

// asksAnother returns whether a call goes on to another node after one said that none serves the slot.
func (h *hops) asksAnother(ctx context.Context, of *cluster) bool {
	if until := of.unserved.Load(); until != nil && time.Now().Before(*until) {
		return false
	}
	if h.unserved++; h.unserved == mostUnserved {
		until := time.Now().Add(unservedFor)
		of.unserved.Store(&until)
	}
	return h.unserved < mostUnserved && h.isFollowed(ctx)
}

// follow sends a command to this node, to which it may be redirected.
func (n *node) follow(ctx context.Context, send func() error) error {
	h, _ := ctx.Value((*hops)(nil)).(*hops)
	if h != nil && h.isToNext {
		h.isToNext = false
		n.cluster.targets.Store(n.known, time.Now())
	}
	err := tokenbucket.PassTo(ctx, n)
	if err == nil {
		err = send()
	}
	return n.see(ctx, h, err)
}

// ofMasters are replies after which another node may be the master. Most refuse a call before a replica would redirect it. After
// others, as of a wrong call, it is the same.
var ofMasters = regexp.MustCompile(`^((CLUSTERDOWN|DENIED|LOADING|MASTERDOWN|MOVED|NOAUTH|NOPERM|NOREPLICAS|READONLY|WRONGPASS) |ERR unknown command)`)

// see lets go-redis follow redirections, and look for the masters anew where they may be others.
func (n *node) see(ctx context.Context, h *hops, err error) error {
	// Until it answers a call of a key.
	if isDown := err != nil && redis.HasErrorPrefix(err, "CLUSTERDOWN The cluster"); isDown || err == nil && h != nil && n.isDown.Load() {
		n.isDown.Store(isDown)
	}
	if err == nil || err == redis.ErrClosed {
		return err
	}
	if h != nil && (redis.HasErrorPrefix(err, "MOVED ") || redis.HasErrorPrefix(err, "ASK ")) {
		if h.isToNext = h.isFollowed(ctx); h.isToNext {
			return err
		}
		return failure{err}
	}
	n.dialer.see(err)
	if _, isReply := err.(redis.Error); !isReply || ofMasters.MatchString(err.Error()) {
		n.cluster.client.ReloadState(ctx)
	}
	if h != nil && redis.HasErrorPrefix(err, "CLUSTERDOWN Hash slot not served") && h.asksAnother(ctx, n.cluster) {
		return err
	}
	return failure{err}
}
