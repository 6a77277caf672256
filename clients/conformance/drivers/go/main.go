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
	"os"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"tokenbucket"
	"tokenbucket/httplimit"
)

// request has the fields of all requests.
type request struct {
	ID  int64  `json:"id"`
	Do  string `json:"do"`
	On  string `json:"on"`
	As  string `json:"as"`
	Ref string `json:"hold"`

	// of servers
	Client       string   `json:"client"`
	URL          string   `json:"url"`
	Cluster      []string `json:"cluster"`
	Sentinel     *sentry  `json:"sentinel"`
	TimeoutMs    *float64 `json:"timeout_ms"`
	RetryEveryMs *float64 `json:"retry_every_ms"`
	Fallback     string   `json:"fallback"`

	// of limiters
	Server          string           `json:"server"`
	Capacity        float64          `json:"capacity"`
	Rate            string           `json:"rate"`
	Limits          map[string]limit `json:"limits"`
	Prefix          *string          `json:"prefix"`
	OnError         string           `json:"on_error"`
	Batch           int64            `json:"batch"`
	RememberDenials int              `json:"remember_denials"`
	Shadow          bool             `json:"shadow"`

	// of calls
	Name       string             `json:"name"`
	Names      int64              `json:"names"`
	Op         string             `json:"op"`
	Cost       float64            `json:"cost"`
	Amount     amount             `json:"amount"`
	Costs      map[string]float64 `json:"costs"`
	Used       *amount            `json:"used"`
	MaxWaitMs  float64            `json:"max_wait_ms"`
	Share      string             `json:"share"`
	Weight     float64            `json:"weight"`
	TTLMs      float64            `json:"ttl_ms"`
	DeadlineUs *float64           `json:"deadline_us"`

	Framework   string   `json:"framework"`
	Command     []string `json:"command"`
	Bare        bool     `json:"bare"`
	Count       int64    `json:"count"`
	Concurrency int      `json:"concurrency"`
	ForMs       float64  `json:"for_ms"`
	PerSecond   float64  `json:"per_second"`
}

type sentry struct {
	Nodes  []string `json:"nodes"`
	Master string   `json:"master"`
}

// limit is [capacity, rate].
type limit struct{ tokenbucket.Limit }

func (l *limit) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&l.Capacity, &l.Rate})
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

type object = map[string]any

// named has what requests have made, by its name.
type named[T any] struct{ sync.Map }

func (n *named[T]) get(name string) (T, error) {
	found, ok := n.Load(name)
	if !ok {
		var none T
		return none, fmt.Errorf("%w: there is no %T %q", errUnsupported, none, name)
	}
	return found.(T), nil
}

// client is a Doer, and the client library alone where a single server is asked.
type client struct {
	doer tokenbucket.Doer
	bare func(words ...any) error
}

// clients are made by the name of the client library.
var clients = map[string]func(request) (client, error){"go-redis": goredisClient}

var errUnsupported = errors.New("not supported")

var (
	servers  named[*tokenbucket.Server]
	bares    named[func(words ...any) error]
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
	names := make([]string, 0, len(clients))
	for name := range clients {
		names = append(names, name)
	}
	sort.Strings(names)
	write(object{"ready": true, "clients": names})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		r := request{Cost: 1, Weight: 1, Count: 1, Concurrency: 1}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			write(object{"id": r.ID, "error": object{"kind": "Other", "text": err.Error()}})
			continue
		}
		go func() {
			reply, err := do(r)
			if err != nil {
				write(object{"id": r.ID, "error": object{"kind": kind(err), "text": err.Error()}})
				return
			}
			write(object{"id": r.ID, "ok": reply})
		}()
	}
}

func kind(err error) string {
	for name, target := range map[string]error{"ServerAway": tokenbucket.ErrServerAway, "ModuleMissing": tokenbucket.ErrModuleMissing,
		"CrossSlot": tokenbucket.ErrCrossSlot, "Denied": tokenbucket.ErrDenied, "ReplyLost": tokenbucket.ErrReplyLost,
		"BadArgument": tokenbucket.ErrBadArgument, "Unsupported": errUnsupported} {
		if errors.Is(err, target) {
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
		return newLimiter(r)
	case "take_all":
		return takeAll(r)
	case "hold":
		return enter(r)
	case "settle":
		return settle(r)
	case "lost":
		return lost(r)
	case "settle_inside":
		return settleInside(r)
	case "hold_cancelled":
		return holdCancelled(r)
	case "many", "second_runtime": // goroutines have one runtime
		return many(r)
	case "cost":
		return cost(r)
	case "http":
		return serve(r)
	case "degraded":
		server, err := servers.get(r.Server)
		if err != nil {
			return nil, err
		}
		return object{"count": server.DegradedCount()}, nil
	case "memory":
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return object{"bytes": stats.HeapAlloc}, nil
	case "close":
		return object{}, closeNamed(r.Name)
	}
	limiter, err := limiters.get(r.On)
	if err != nil {
		return nil, err
	}
	decision, err := call(limiter, r, r.Do, r.Name)
	return described(decision), err
}

func ms(number float64) time.Duration { return time.Duration(number * float64(time.Millisecond)) }

func newServer(r request) (object, error) {
	newClient, ok := clients[r.Client]
	if !ok {
		return nil, fmt.Errorf("%w: client %q", errUnsupported, r.Client)
	}
	client, err := newClient(r)
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
	if r.Fallback != "" {
		options = append(options, tokenbucket.FallbackScript())
	}
	servers.Store(r.Name, tokenbucket.NewServer(client.doer, options...))
	bares.Store(r.Name, client.bare)
	return object{}, nil
}

var policies = map[string]tokenbucket.Policy{"local": tokenbucket.FailLocal, "open": tokenbucket.FailOpen,
	"closed": tokenbucket.FailClosed, "raise": tokenbucket.FailWithError}

func newLimiter(r request) (object, error) {
	server, err := servers.get(r.Server)
	if err != nil {
		return nil, err
	}
	options := []tokenbucket.LimiterOption{tokenbucket.OnError(policies[r.OnError]), tokenbucket.Shadow(r.Shadow)}
	if r.Prefix != nil {
		options = append(options, tokenbucket.Prefix(*r.Prefix))
	}
	if r.Do == "joint" {
		limits := map[string]tokenbucket.Limit{}
		for name, l := range r.Limits {
			limits[name] = l.Limit
		}
		joints.Store(r.Name, tokenbucket.NewJointLimiter(server, limits, options...))
		return object{}, nil
	}
	options = append(options, tokenbucket.Batch(r.Batch), tokenbucket.RememberDenials(r.RememberDenials))
	limit := tokenbucket.Limit{Capacity: r.Capacity, Rate: r.Rate}
	limiters.Store(r.Name, tokenbucket.NewLimiter(server, limit, options...))
	return object{}, nil
}

func (r request) context() (context.Context, context.CancelFunc) {
	if r.DeadlineUs == nil {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), time.Duration(*r.DeadlineUs*float64(time.Microsecond)))
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
	return object{"allowed": decision.Allowed, "granted": decision.Granted, "remaining": decision.Remaining,
		"retry_after_ms": decision.RetryAfter.Milliseconds(), "degraded": decision.Degraded, "lost": decision.Lost,
		"shadowed": decision.Shadowed}
}

func describedJointly(joint tokenbucket.JointDecision) object {
	all := described(joint.Decision)
	each := object{}
	for which, own := range joint.Each {
		each[which] = described(own)
	}
	all["each"] = each
	return all
}

func takeAll(r request) (object, error) {
	joint, err := joints.get(r.On)
	if err != nil {
		return nil, err
	}
	ctx, cancel := r.context()
	defer cancel()
	decision, err := joint.TakeAll(ctx, r.Name, r.Costs, r.waits()...)
	return describedJointly(decision), err
}

func call(limiter *tokenbucket.Limiter, r request, op, name string) (tokenbucket.Decision, error) {
	ctx, cancel := r.context()
	defer cancel()
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
		hold, err := limiter.Hold(ctx, name, r.Amount.number, ms(r.TTLMs), r.waits()...)
		if err != nil {
			return tokenbucket.Decision{}, err
		}
		defer hold.Settle()
		return hold.Decision().Decision, nil
	}
	return tokenbucket.Decision{}, fmt.Errorf("%w: %s", errUnsupported, op)
}

func enter(r request) (object, error) {
	// Without a deadline, so that the hold lasts beyond this request.
	ctx := context.Background()
	if r.DeadlineUs != nil {
		limited, cancel := r.context()
		defer cancel()
		ctx = limited
	}
	var hold *tokenbucket.Hold
	joint, err := joints.get(r.On)
	if err == nil {
		hold, err = joint.Hold(ctx, r.Name, r.Amount.each, ms(r.TTLMs), r.waits()...)
	} else if limiter, found := limiters.get(r.On); found == nil {
		hold, err = limiter.Hold(ctx, r.Name, r.Amount.number, ms(r.TTLMs), r.waits()...)
	}
	if err != nil {
		return nil, err
	}
	holds.Store(r.As, hold)
	return describedJointly(hold.Decision()), nil
}

// settleInside settles twice inside the block, and the end of the block does once more.
func settleInside(r request) (object, error) {
	limiter, err := limiters.get(r.On)
	if err != nil {
		return nil, err
	}
	var settled tokenbucket.JointDecision
	err = limiter.WithHold(context.Background(), r.Name, r.Amount.number, ms(r.TTLMs), func(hold *tokenbucket.Hold) error {
		if err := hold.Used(r.Used.number); err != nil {
			return err
		}
		_, _ = hold.Settle()
		var err error
		settled, err = hold.Settle()
		return err
	})
	return describedJointly(settled), err
}

func settle(r request) (object, error) {
	hold, err := holds.get(r.Ref)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Used == nil:
	case r.Used.each == nil:
		err = hold.Used(r.Used.number)
	default:
		for which, used := range r.Used.each {
			if err = hold.UsedOf(which, used); err != nil {
				break
			}
		}
	}
	if err != nil {
		return nil, err
	}
	decision, err := hold.Settle()
	return describedJointly(decision), err
}

func lost(r request) (object, error) {
	hold, err := holds.get(r.Ref)
	if err != nil {
		return nil, err
	}
	select {
	case <-hold.Lost():
		return object{"lost": true}, nil
	default:
		return object{"lost": false}, nil
	}
}

// holdCancelled enters the holds, and cancels them all together at work.
func holdCancelled(r request) (object, error) {
	limiter, err := limiters.get(r.On)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var entered sync.WaitGroup
	entered.Add(int(r.Count))
	ended := make(chan error, r.Count)
	for i := int64(0); i < r.Count; i++ {
		go func() {
			hold, err := limiter.Hold(ctx, r.Name, r.Amount.number, ms(r.TTLMs))
			entered.Done()
			if err == nil {
				<-ctx.Done() // the work
				_, err = hold.Settle()
			}
			ended <- err
		}()
	}
	entered.Wait()
	cancel()
	for i := int64(0); i < r.Count; i++ {
		if failed := <-ended; failed != nil {
			err = failed
		}
	}
	return object{}, err
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
		return
	case err != nil:
		t.errors[kind(err)]++
		return
	case decision.Allowed:
		t.allowed++
	default:
		t.denied++
	}
	if decision.Degraded {
		t.degraded++
	}
}

func many(r request) (object, error) {
	limiter, err := limiters.get(r.On)
	if err != nil {
		return nil, err
	}
	if r.Do == "second_runtime" {
		r.Op, r.Concurrency = "take", int(r.Count)
	}
	began := time.Now()
	var next int64
	total := &tally{errors: map[string]int64{}}
	var over sync.WaitGroup
	for i := 0; i < r.Concurrency; i++ {
		over.Add(1)
		go func() {
			defer over.Done()
			for {
				number, due := atomic.AddInt64(&next, 1)-1, time.Now()
				if r.PerSecond > 0 {
					due = began.Add(time.Duration(float64(number) / r.PerSecond * float64(time.Second)))
				}
				if r.ForMs > 0 && due.Sub(began) >= ms(r.ForMs) || r.ForMs == 0 && number >= r.Count {
					return
				}
				time.Sleep(time.Until(due))
				name := r.Name
				if r.Names > 0 {
					name = fmt.Sprint("n", number%r.Names)
				}
				total.add(call(limiter, r, r.Op, name))
			}
		}()
	}
	over.Wait()
	perCall := float64(time.Since(began).Microseconds()) / float64(total.calls)
	return object{"calls": total.calls, "allowed": total.allowed, "denied": total.denied, "degraded": total.degraded,
		"cancelled": total.cancelled, "errors": total.errors, "per_call_us": perCall}, nil
}

// cost times takes, or the same command by the client library alone.
func cost(r request) (object, error) {
	limiter, err := limiters.get(r.On)
	if err != nil {
		return nil, err
	}
	bare, err := bares.get(r.Server)
	if err != nil {
		return nil, err
	}
	words := make([]any, len(r.Command))
	for i, word := range r.Command {
		words[i] = word
	}
	call := func() error {
		_, err := limiter.Take(context.Background(), "user", 1)
		return err
	}
	if r.Bare {
		call = func() error { return bare(words...) }
	}
	failures := make(chan error, r.Concurrency)
	began := time.Now()
	for i := 0; i < r.Concurrency; i++ {
		go func() {
			var err error
			for left := r.Count / int64(r.Concurrency); left > 0 && err == nil; left-- {
				err = call()
			}
			failures <- err
		}()
	}
	for i := 0; i < r.Concurrency; i++ {
		if err := <-failures; err != nil {
			return nil, err
		}
	}
	return object{"per_call_us": float64(time.Since(began).Nanoseconds()) / 1000 / float64(r.Count)}, nil
}

func serve(r request) (object, error) {
	limiter, err := limiters.get(r.On)
	if err != nil || r.Framework != "net/http" {
		return nil, fmt.Errorf("%w: http by %q: %v", errUnsupported, r.Framework, err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	if r.Name == "" {
		go func() { _ = http.Serve(listener, forwarded(httplimit.New(limiter)(hello))) }()
	} else {
		named := httplimit.Name(func(*http.Request) string { return r.Name })
		go func() { _ = http.Serve(listener, httplimit.New(limiter, named)(hello)) }()
	}
	return object{"port": listener.Addr().(*net.TCPAddr).Port}, nil
}

// forwarded trusts the header that tells the caller's address, as an application behind its own proxy does.
func forwarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = net.JoinHostPort(r.Header.Get("X-Forwarded-For"), "0")
		next.ServeHTTP(w, r)
	})
}

func closeNamed(name string) error {
	if limiter, err := limiters.get(name); err == nil {
		return limiter.Close(context.Background())
	}
	server, err := servers.get(name)
	if err != nil {
		return err
	}
	return server.Close()
}
