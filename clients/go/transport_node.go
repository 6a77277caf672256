package tokenbucket

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"tokenbucket/internal/rules"
)

// node is one server, or one node of a cluster. An outage is one number, so that nothing can get stuck.
type node struct {
	server  *Server
	doer    Doer
	who     string
	permits chan struct{} // bounds the calls that are with the client library at a time
	// Moments of the server's steady clock.
	awayUntil   atomic.Int64 // no call asks before; 0: it is there
	heard       atomic.Int64 // when it last said something; 0: never
	nextRefusal atomic.Int64 // when one may be logged
	outages     atomic.Int64 // how many have begun
	pulse       sync.Mutex   // of the wait that asks whether it is there
}

const betweenRefusalsLogged = time.Minute

func newNode(s *Server, doer Doer, who string) *node {
	most := mostPermits
	if pooled, ok := doer.(PooledDoer); ok {
		if pooled.Address() != "" {
			who += " " + pooled.Address()
		}
		if pooled.Connections() > 0 {
			most = pooled.Connections()
		}
	}
	return &node{server: s, doer: doer, who: who, permits: make(chan struct{}, most)}
}

// nodeOf returns the node that has the key. It asks for all calls, so that the end of one says nothing about the server.
func (s *Server) nodeOf(ctx context.Context, key string) (*node, error) {
	if s.cluster == nil {
		return s.home, nil
	}
	if err := s.home.takePermit(ctx); err != nil {
		return nil, err
	}
	defer s.home.returnPermit()
	within, cancel := context.WithTimeout(s.life, rules.ConnectWithin)
	defer cancel()
	doer, err := s.cluster.NodeOf(within, key)
	if err != nil {
		return nil, s.home.judge(command{}, err, s.now(), false)
	}
	s.home.answered()
	return s.nodeAt(doer), nil
}

func (s *Server) nodeAt(doer Doer) *node {
	known, ok := s.nodes.Load(doer)
	if !ok {
		s.nodes.Range(func(other, _ any) bool {
			if !s.cluster.Has(other.(Doer)) {
				s.nodes.Delete(other)
			}
			return true
		})
		known, _ = s.nodes.LoadOrStore(doer, newNode(s, doer, "the node"))
	}
	return known.(*node)
}

// call returns the reply, an *awayError, or the error of a call that is wrong.
func (s *Server) call(ctx context.Context, c command) (reply any, n *node, err error) {
	if n, err = s.nodeOf(ctx, c.key); err == nil {
		reply, err = n.call(ctx, c)
	}
	return reply, n, err
}

// call goes in this order: is it away, permit, command, judgement. While a slot moves, calls of several buckets are tried some times.
func (n *node) call(ctx context.Context, c command) (reply any, err error) {
	var t *turn
	defer func() { // after the judgement: else those that wait for it try a node that is away
		if t != nil && t.at != nil {
			t.at.returnPermit()
		}
	}()
	began, within, isSent := int64(0), n.server.patience(), false
	for tries := 1; ; tries++ {
		if err := n.takePermit(ctx); err != nil {
			return nil, err
		}
		t = &turn{Context: ctx, server: n.server, at: n, last: n, began: n.server.now()}
		if tries == 1 {
			began = t.began
		}
		var isSentNow bool
		reply, isSentNow, err = t.send(c)
		isSent = isSent || isSentNow
		if t.at == nil || !n.server.isMoving(err) || tries == rules.TriesOfSplitSlot || n.server.now()-began >= int64(within) {
			break
		}
		t.at.returnPermit()
		t = nil
		if ended := n.server.clock.Sleep(ctx, within/rules.TriesOfSplitSlot); ended != nil {
			return nil, ended
		}
	}
	if ended := ctx.Err(); ended != nil && err != nil && (!isSent || isBroken(err) || errors.Is(err, ended)) {
		go guarded(t.last.beat) // the caller's end says nothing about the server, not even that it is there
		return nil, ended
	}
	if t.at == nil {
		return nil, t.failed
	}
	return reply, t.at.judge(c, err, t.began, isSent)
}

// turn is the context of a call and a permit of the node that it is with, which may redirect it to another. The context is the
// caller's, with a deadline that begins when it is asked for: time in a queue is not silence. The caller's deadline is none of the
// server.
type turn struct {
	context.Context
	server *Server
	at     *node // nil if there was no permit of the last
	last   *node
	began  int64 // when it had that permit
	failed error // why there was none
}

type turnKey struct{}

func (t *turn) Deadline() (time.Time, bool) {
	return time.Now().Add(t.server.timeout), t.server.timeout > 0
}

func (t *turn) Value(key any) any {
	if key == (turnKey{}) {
		return t
	}
	return t.Context.Value(key)
}

// PassTo says that the node to which a command is sent next may be another than before. A ClusterDoer calls it with the context that
// DoFor got. Each node has permits of its own: calls that it redirects to one that is slow or away keep none of it. Returns why the
// command must not be sent.
func PassTo(ctx context.Context, next Doer) error {
	t, _ := ctx.Value(turnKey{}).(*turn)
	if t == nil || t.at == nil || t.at == t.server.nodeAt(next) {
		return nil
	}
	before, now := t.at, t.server.nodeAt(next)
	if began := t.server.now(); before.awayUntil.Load() != 0 { // no other call may try it
		if before.ping(t.Context, began, nil); before.heard.Load() > began {
			before.answered()
		}
	}
	t.at, t.last = nil, now
	before.returnPermit()
	if t.failed = now.takePermit(t.Context); t.failed != nil {
		return Unsent(t.failed)
	}
	t.at, t.began = now, t.server.now()
	return nil
}

var ping = command{args: []any{"PING"}}

// takePermit waits in the order in which calls come, unless the server is away.
func (n *node) takePermit(ctx context.Context) error {
	if !n.admits() {
		return n.away()
	}
	select {
	case n.permits <- struct{}{}:
		return nil
	default:
		if n.isAway() { // the calls that try it have all permits
			return n.away()
		}
	}
	timer := time.NewTimer(rules.ConnectWithin)
	defer timer.Stop()
	select {
	case n.permits <- struct{}{}:
	case <-timer.C:
		return n.judge(command{}, errBusy, n.server.now(), false)
	case <-ctx.Done():
		return ctx.Err()
	}
	if !n.admits() {
		n.returnPermit()
		return n.away()
	}
	return nil
}

func (n *node) returnPermit() { <-n.permits }

// send repeats a call that may be repeated: once on another connection, once to a server that is late. It also returns
// whether the server may have the call.
func (t *turn) send(c command) (reply any, isSent bool, err error) {
	first, began := t.at, t.began
	do := func() {
		reply, err = first.do(t, c)
		isSent = isSent || err == nil || !isUnsent(err)
		if err != nil && !isUnsent(err) && !isServerLine(err) {
			c.doubt()
		}
	}
	if do(); err == nil {
		return reply, true, nil
	}
	if code := codeOf(err); code == "READONLY" || isBroken(err) && !(c.once && isSent) {
		do()
	}
	isLate, isSoon := isTimeout(err), t.server.now()-began < 2*int64(t.server.timeout)
	switch {
	case t.at == nil || t.at.isAway() || t.Err() != nil && !isSent || isLate && !isSoon:
	case isLate && isSoon && t.Err() == nil && !(c.once && isSent):
		do()
	case err != nil && !isServerLine(err):
		t.at.ping(t.Context, t.began, err)
	}
	return reply, isSent, err
}

// do sends a command without a key to this node, and so one of key "", which client libraries take for none.
func (n *node) do(t *turn, c command) (any, error) {
	if n.server.cluster != nil && c.key != "" {
		return n.server.cluster.DoFor(t, c.key, c.args...)
	}
	return n.doer.Do(t, c.args...)
}

// patience is the timeout, or the usual one where calls have none.
func (s *Server) patience() time.Duration {
	if s.timeout > 0 {
		return s.timeout
	}
	return rules.Timeout
}

// isMoving tells a reply about a slot that moves, when the client library does not follow it any more.
func (s *Server) isMoving(err error) bool {
	code := codeOf(err)
	return code == "TRYAGAIN" || s.cluster != nil && (code == "MOVED" || code == "ASK")
}

// ping asks whether the server is there, unless it has said something since. Only where a connection broke does it wait for
// another, as long as the caller does: else a server that is there has one, or opens it in time.
func (n *node) ping(ctx context.Context, began int64, after error) {
	if n.heard.Load() > began {
		return
	}
	if !isBroken(after) {
		within, leave := context.WithTimeout(n.server.life, n.server.patience())
		defer leave()
		ctx = within
	}
	_, err := n.do(&turn{Context: ctx, server: n.server}, ping)
	if err == nil || isServerLine(err) && faultOf(err) != faultOfServer {
		n.heard.Store(n.server.now())
	}
}

func (n *node) isAway() bool {
	until := n.awayUntil.Load()
	return until != 0 && n.server.now() < until
}

// admits returns whether to ask: while the server is away, the first call after that moment moves it, and asks. All ask if none
// has done so for another retryEvery: the outage may be over for long.
func (n *node) admits() bool {
	until, now, every := n.awayUntil.Load(), n.server.now(), int64(n.server.retryEvery)
	return until == 0 || now-until >= every || now >= until && n.awayUntil.CompareAndSwap(until, now+every)
}

// admitAll lets all ask until one finds that the server is away.
func (n *node) admitAll() {
	if n.awayUntil.Load() != 0 {
		n.awayUntil.Store(n.server.now() - int64(n.server.retryEvery))
	}
}

func (n *node) away() error { return &awayError{server: n.who, cause: errAway} }

func (n *node) answered() {
	n.heard.Store(n.server.now())
	if n.awayUntil.Load() != 0 && n.awayUntil.Swap(0) != 0 {
		n.server.logf("tokenbucket: %s is back, limiting again", n.who)
	}
}

func (n *node) failed(err error) {
	if n.awayUntil.Swap(n.server.now()+int64(n.server.retryEvery)) == 0 {
		n.outages.Add(1)
		n.server.logf("tokenbucket: cannot ask %s, every limit does as its OnError says: %v", n.who, err)
	}
}

// refused logs that the server is there, and did not decide this call.
func (n *node) refused(err error) {
	now, next := n.server.now(), n.nextRefusal.Load()
	if now >= next && n.nextRefusal.CompareAndSwap(next, now+int64(betweenRefusalsLogged)) {
		n.server.logf("tokenbucket: %s does not decide a call, OnError does: %v", n.who, err)
	}
}

// judge tells what an error means: a call that is wrong, one that was not decided, or an outage.
func (n *node) judge(c command, err error, began int64, isSent bool) error {
	if err == nil {
		n.answered()
		return nil
	}
	fault := faultOf(err)
	switch {
	case n.server.isClosed():
		return ErrClosed
	case fault == faultOfWrite || n.server.isMoving(err):
		if n.server.cluster == nil || codeOf(err) != "CLUSTERDOWN" { // which any node may have replied
			n.answered()
		}
		n.refused(err)
	case fault == faultOfCaller:
		if isServerLine(err) {
			n.answered()
		}
		return n.wrong(err)
	case fault == faultOfClient || !isServerLine(err) && n.heard.Load() > began: // it may be of one connection alone
		n.refused(err)
	default:
		n.failed(err)
	}
	return &awayError{server: n.who, cause: err, lost: c.once && isSent && !isServerLine(err)}
}
