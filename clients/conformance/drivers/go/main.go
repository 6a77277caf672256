// The driver of the Go package: it reads one request a line, as JSON, and writes one reply a line. The README of the suite
// says what they are.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/goredis"
	"tokenbucket/httplimit"
)

// request has the fields of all requests. Names are compared without their case, so that only others have tags.
type request struct {
	ID         int64
	Do, On, As string
	Ref        string `json:"hold"`

	// of servers
	URL, By  string
	Cluster  []string
	Sentinel *struct {
		Nodes  []string
		Master string
	}
	TimeoutMs    *float64 `json:"timeout_ms"`
	RetryEveryMs *float64 `json:"retry_every_ms"`

	// of limiters
	Server, Rate    string
	Capacity        float64
	Limits          map[string]limit
	Prefix          *string
	OnError         string `json:"on_error"`
	Batch           int64
	RememberDenials int `json:"remember_denials"`
	Shadow          bool

	// of calls
	Name, Op, Share string
	Limit           *limit // for this call alone
	Cost, Weight    float64
	Amount          amount
	Used            *amount
	Costs           map[string]float64
	Alternatives    []map[string]float64
	MaxWaitMs       float64  `json:"max_wait_ms"`
	TTLMs           float64  `json:"ttl_ms"`
	DeadlineUs      *float64 `json:"deadline_us"`

	// of many calls, and of others
	Names, Count int64
	Concurrency  int
	ForMs        float64 `json:"for_ms"`
	PerSecond    float64 `json:"per_second"`
	Command      []any
	Bare         bool
}

// amount is a number, or one for each of several limits.
type amount struct {
	number float64
	each   map[string]float64
}

func (a *amount) UnmarshalJSON(text []byte) error {
	if text[0] == '{' {
		return json.Unmarshal(text, &a.each)
	}
	return json.Unmarshal(text, &a.number)
}

type limit [2]any // capacity and rate

func (l limit) made() tokenbucket.Limit {
	return tokenbucket.Limit{Capacity: l[0].(float64), Rate: l[1].(string)}
}

type object = map[string]any

// named has what requests have made, by its name.
type named[T any] struct{ sync.Map }

func (n *named[T]) find(name string) (T, bool) {
	found, _ := n.Load(name)
	one, ok := found.(T)
	return one, ok
}

// get ends the driver, and so its scenario, if there is none.
func (n *named[T]) get(name string) T {
	one, ok := n.find(name)
	if !ok {
		panic(fmt.Sprintf("there is no %T %q", one, name))
	}
	return one
}

var errUnsupported = errors.New("not supported")

var (
	servers  named[*tokenbucket.Server]
	clients  named[redis.UniversalClient] // by the names of their servers
	limiters named[*tokenbucket.Limiter]
	joints   named[*tokenbucket.JointLimiter]
	holds    named[*tokenbucket.Hold]
)

func main() {
	var output sync.Mutex
	write := func(reply object) {
		output.Lock()
		defer output.Unlock()
		_ = json.NewEncoder(os.Stdout).Encode(reply)
	}
	write(object{"ready": true, "clients": []string{"go-redis"}})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		r := request{Cost: 1, Weight: 1, Count: 1, Concurrency: 1}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			panic(err)
		}
		go func() {
			if reply, err := do(r); err != nil {
				write(object{"id": r.ID, "error": object{"kind": kind(err), "text": err.Error()}})
			} else {
				write(object{"id": r.ID, "ok": reply})
			}
		}()
	}
}

var kinds = map[string]error{"ServerAway": tokenbucket.ErrServerAway, "ModuleMissing": tokenbucket.ErrModuleMissing,
	"ReplyLost": tokenbucket.ErrReplyLost, "BadArgument": tokenbucket.ErrBadArgument,
	"Unsupported": errUnsupported}

func kind(err error) string {
	for name, of := range kinds {
		if errors.Is(err, of) {
			return name
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return "Cancelled"
	}
	return "Other"
}

func do(r request) (object, error) {
	switch r.Do {
	case "server":
		return newServer(r)
	case "limiter", "joint":
		return newLimiter(r), nil
	case "settle", "lost":
		return withHold(r)
	case "degraded":
		return object{"count": servers.get(r.Server).DegradedCount()}, nil
	case "memory":
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return object{"bytes": stats.HeapAlloc}, nil
	case "close":
		if limiter, ok := limiters.find(r.Name); ok {
			return object{}, limiter.Close(context.Background())
		}
		return object{}, servers.get(r.Name).Close()
	}
	if joint, ok := joints.find(r.On); ok {
		decision, err := jointly(joint, r)
		return described(decision), err
	}
	limiter := limiters.get(r.On)
	switch r.Do {
	case "hold_cancelled":
		return holdCancelled(limiter, r)
	case "many":
		return many(limiter, r)
	case "cost":
		return cost(limiter, r)
	case "http":
		return serve(limiter, r), nil
	case "reset":
		return object{}, limiter.Reset(context.Background(), r.Name)
	}
	decision, err := call(limiter, r, r.Do, r.Name)
	return described(decision), err
}

func ms(number float64) time.Duration { return time.Duration(number * float64(time.Millisecond)) }

func newClient(r request) (redis.UniversalClient, error) {
	switch {
	case r.Sentinel != nil:
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: r.Sentinel.Master, SentinelAddrs: r.Sentinel.Nodes}), nil
	case r.Cluster != nil: // one node knows the others
		options, err := redis.ParseClusterURL(r.Cluster[0])
		if err != nil {
			return nil, err
		}
		for _, url := range r.Cluster[1:] {
			if other, err := redis.ParseURL(url); err == nil {
				options.Addrs = append(options.Addrs, other.Addr)
			}
		}
		return redis.NewClusterClient(options), nil
	}
	options, err := redis.ParseURL(r.URL)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(options), nil
}

func newServer(r request) (object, error) {
	client, err := newClient(r)
	if err != nil {
		return nil, err
	}
	doer, err := goredis.From(client)
	if err != nil {
		return nil, err
	}
	options := []tokenbucket.ServerOption{tokenbucket.LogTo(func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
	})}
	if r.TimeoutMs != nil {
		options = append(options, tokenbucket.Timeout(ms(*r.TimeoutMs)))
	}
	if r.RetryEveryMs != nil {
		options = append(options, tokenbucket.RetryEvery(ms(*r.RetryEveryMs)))
	}
	if r.By == "script" {
		options = append(options, tokenbucket.ByScript())
	}
	servers.Store(r.Name, tokenbucket.NewServer(doer, options...))
	clients.Store(r.Name, client)
	return object{}, nil
}

var policies = map[string]tokenbucket.Policy{"local": tokenbucket.FailLocal, "open": tokenbucket.FailOpen,
	"closed": tokenbucket.FailClosed, "raise": tokenbucket.FailWithError}

func newLimiter(r request) object {
	server := servers.get(r.Server)
	options := []tokenbucket.LimiterOption{tokenbucket.OnError(policies[r.OnError]), tokenbucket.Shadow(r.Shadow),
		tokenbucket.Batch(r.Batch), tokenbucket.RememberDenials(r.RememberDenials)}
	if r.Prefix != nil {
		options = append(options, tokenbucket.Prefix(*r.Prefix))
	}
	if r.Do == "limiter" {
		limit := tokenbucket.Limit{Capacity: r.Capacity, Rate: r.Rate}
		limiters.Store(r.Name, tokenbucket.NewLimiter(server, limit, options...))
		return object{}
	}
	limits := map[string]tokenbucket.Limit{}
	for name, l := range r.Limits {
		limits[name] = l.made()
	}
	joints.Store(r.Name, tokenbucket.NewJointLimiter(server, limits, options...))
	return object{}
}

func (r request) context() (context.Context, context.CancelFunc) {
	if r.DeadlineUs == nil {
		return context.Background(), func() {}
	}
	return context.WithTimeout(context.Background(), ms(*r.DeadlineUs/1000))
}

// waits are the options of takes and holds; without max_wait_ms, they do not wait.
func (r request) waits() []tokenbucket.CallOption {
	options := []tokenbucket.CallOption{tokenbucket.MaxWait(ms(r.MaxWaitMs))}
	if r.Share != "" {
		options = append(options, tokenbucket.Share(r.Share, r.Weight))
	}
	return options
}

func described(decision tokenbucket.Decision) object {
	each := object{}
	for which, own := range decision.Each {
		each[which] = described(own)
	}
	return object{"allowed": decision.Allowed, "granted": decision.Granted, "remaining": decision.Remaining,
		"retry_after_ms": decision.RetryAfter.Milliseconds(), "degraded": decision.Degraded, "lost": decision.Lost,
		"shadowed": decision.Shadowed, "each": each}
}

func call(limiter *tokenbucket.Limiter, r request, op, name string) (tokenbucket.Decision, error) {
	ctx, cancel := r.context()
	defer cancel()
	if r.Limit != nil {
		limiter = limiter.With(r.Limit.made())
	}
	switch op {
	case "take":
		return limiter.Take(ctx, name, r.Cost, r.waits()...)
	case "take_up_to":
		return limiter.TakeUpTo(ctx, name, int64(r.Amount.number))
	case "charge":
		return limiter.Charge(ctx, name, r.Amount.number)
	case "give":
		return limiter.Give(ctx, name, r.Amount.number)
	case "wait":
		return limiter.Wait(ctx, name, r.Cost, ms(r.MaxWaitMs))
	case "hold":
		return r.keep(limiter.Hold(ctx, name, r.Amount.number, ms(r.TTLMs), r.waits()...))
	}
	return tokenbucket.Decision{}, fmt.Errorf("%w: %s", errUnsupported, op)
}

func jointly(joint *tokenbucket.JointLimiter, r request) (tokenbucket.Decision, error) {
	ctx, cancel := r.context()
	defer cancel()
	switch r.Do {
	case "hold":
		return r.keep(joint.Hold(ctx, r.Name, r.Amount.each, ms(r.TTLMs), r.waits()...))
	case "hold_any":
		return r.keep(joint.HoldAny(ctx, r.Name, r.Alternatives, ms(r.TTLMs)))
	case "take_any":
		return joint.TakeAny(ctx, r.Name, r.Alternatives)
	}
	return joint.TakeAll(ctx, r.Name, r.Costs, r.waits()...)
}

// keep keeps a hold for the requests about it. One of many is settled, as no request does so.
func (r request) keep(hold *tokenbucket.Hold, err error) (tokenbucket.Decision, error) {
	switch {
	case err != nil:
		return tokenbucket.Decision{}, err
	case r.Do == "many":
		defer hold.Settle()
	default:
		holds.Store(r.As, hold)
	}
	return hold.Decision(), nil
}

// withHold settles a hold, or says whether it is lost.
func withHold(r request) (_ object, err error) {
	hold := holds.get(r.Ref)
	if r.Do == "lost" {
		is := object{"lost": false, "granted": hold.Decision().Granted}
		select {
		case <-hold.Lost():
			is["lost"] = true
		default:
		}
		return is, nil
	}
	if r.Used != nil && r.Used.each == nil {
		err = hold.Used(r.Used.number)
	} else if r.Used != nil {
		for which, used := range r.Used.each {
			if failed := hold.UsedOf(which, used); failed != nil {
				err = failed
			}
		}
	}
	if err != nil {
		return nil, err
	}
	decision, err := hold.Settle()
	return described(decision), err
}

// atOnce runs work so many times together, and returns an error of one of them.
func atOnce(count int, work func() error) (err error) {
	ended := make(chan error, count)
	for i := 0; i < count; i++ {
		go func() { ended <- work() }()
	}
	for i := 0; i < count; i++ {
		if failed := <-ended; failed != nil {
			err = failed
		}
	}
	return err
}

// holdCancelled enters the holds, and cancels them all together at work.
func holdCancelled(limiter *tokenbucket.Limiter, r request) (object, error) {
	ctx, cancel := context.WithCancel(context.Background())
	var entered sync.WaitGroup
	entered.Add(int(r.Count))
	go func() { entered.Wait(); cancel() }()
	return object{}, atOnce(int(r.Count), func() error {
		hold, err := limiter.Hold(ctx, r.Name, r.Amount.number, ms(r.TTLMs))
		entered.Done()
		if err == nil {
			<-ctx.Done() // the work
			_, err = hold.Settle()
		}
		return err
	})
}

// tally is what many calls came to.
type tally struct {
	mutex                                       sync.Mutex
	calls, allowed, denied, degraded, cancelled int64
	errors                                      map[string]int64
}

func (t *tally) add(decision tokenbucket.Decision, err error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.calls++
	switch {
	case err != nil && kind(err) == "Cancelled":
		t.cancelled++
	case err != nil:
		t.errors[kind(err)]++
	case decision.Allowed:
		t.allowed++
	default:
		t.denied++
	}
	if err == nil && decision.Degraded {
		t.degraded++
	}
}

func many(limiter *tokenbucket.Limiter, r request) (object, error) {
	began := time.Now()
	var next int64
	total := &tally{errors: map[string]int64{}}
	_ = atOnce(r.Concurrency, func() error {
		for {
			number, due := atomic.AddInt64(&next, 1)-1, time.Now()
			if r.PerSecond > 0 {
				due = began.Add(time.Duration(float64(number) / r.PerSecond * float64(time.Second)))
			}
			if r.ForMs > 0 && due.Sub(began) >= ms(r.ForMs) || r.ForMs == 0 && number >= r.Count {
				return nil
			}
			time.Sleep(time.Until(due))
			name := r.Name
			if r.Names > 0 {
				name = fmt.Sprint("n", number%r.Names)
			}
			total.add(call(limiter, r, r.Op, name))
		}
	})
	perCall := float64(time.Since(began).Microseconds()) / float64(total.calls)
	return object{"calls": total.calls, "allowed": total.allowed, "denied": total.denied, "degraded": total.degraded,
		"cancelled": total.cancelled, "errors": total.errors, "per_call_us": perCall}, nil
}

// cost times takes, or the same command by the client library alone.
func cost(limiter *tokenbucket.Limiter, r request) (object, error) {
	client, began := clients.get(r.Server), time.Now()
	err := atOnce(r.Concurrency, func() (err error) {
		for left := r.Count / int64(r.Concurrency); left > 0 && err == nil; left-- {
			if r.Bare {
				err = client.Do(context.Background(), r.Command...).Err()
			} else {
				_, err = limiter.Take(context.Background(), "user", 1)
			}
		}
		return err
	})
	return object{"per_call_us": float64(time.Since(began).Nanoseconds()) / 1000 / float64(r.Count)}, err
}

func serve(limiter *tokenbucket.Limiter, r request) object {
	name := httplimit.Name(func(*http.Request) string { return r.Name })
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	server := httptest.NewServer(httplimit.New(limiter, name)(hello))
	return object{"port": server.Listener.Addr().(*net.TCPAddr).Port}
}
