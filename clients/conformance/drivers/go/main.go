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
	Fallback     *string  `json:"fallback"`

	// of limiters
	Server          string           `json:"server"`
	Capacity        float64          `json:"capacity"`
	Rate            string           `json:"rate"`
	Limits          map[string]limit `json:"limits"`
	Prefix          *string          `json:"prefix"`
	OnError         *string          `json:"on_error"`
	Batch           int64            `json:"batch"`
	RememberDenials int              `json:"remember_denials"`

	// of calls
	Name       string             `json:"name"`
	Names      json.RawMessage    `json:"names"`
	Op         string             `json:"op"`
	Cost       *float64           `json:"cost"`
	Most       *int64             `json:"most"`
	Amount     json.RawMessage    `json:"amount"`
	Costs      map[string]float64 `json:"costs"`
	Used       json.RawMessage    `json:"used"`
	MaxWaitMs  float64            `json:"max_wait_ms"`
	Share      string             `json:"share"`
	Weight     *float64           `json:"weight"`
	TTLMs      float64            `json:"ttl_ms"`
	DeadlineUs *float64           `json:"deadline_us"`

	Framework   string   `json:"framework"`
	Command     []string `json:"command"`
	Bare        bool     `json:"bare"`
	Count       int64    `json:"count"`
	Concurrency int      `json:"concurrency"`
	ForMs       *float64 `json:"for_ms"`
	PerSecond   *float64 `json:"per_second"`
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

type object = map[string]any

// client is a Doer, and the client library alone where a single server is asked.
type client struct {
	doer tokenbucket.Doer
	bare func(words ...any) error
}

// clients are made by the name of the client library.
var clients = map[string]func(request) (client, error){"redigo": redigoClient, "go-redis": goredisClient}

var errUnsupported = errors.New("not supported")

// driver has what requests have made.
type driver struct {
	mutex    sync.Mutex
	servers  map[string]*tokenbucket.Server
	bare     map[string]func(words ...any) error
	limiters map[string]*tokenbucket.Limiter
	joints   map[string]*tokenbucket.JointLimiter
	holds    map[string]*tokenbucket.Hold
}

func main() {
	d := &driver{servers: map[string]*tokenbucket.Server{}, bare: map[string]func(...any) error{},
		limiters: map[string]*tokenbucket.Limiter{}, joints: map[string]*tokenbucket.JointLimiter{}, holds: map[string]*tokenbucket.Hold{}}
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
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			write(object{"id": r.ID, "error": object{"kind": "Other", "text": err.Error()}})
			continue
		}
		go func() {
			reply, err := d.do(r)
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

func (d *driver) do(r request) (object, error) {
	switch r.Do {
	case "server":
		return d.server(r)
	case "limiter", "joint":
		return d.limiter(r)
	case "hold":
		return d.hold(r)
	case "settle":
		return d.settle(r)
	case "settle_inside":
		return d.settleInside(r)
	case "hold_cancelled":
		return d.holdCancelled(r)
	case "many", "second_runtime": // goroutines have one runtime
		return d.many(r)
	case "cost":
		return d.cost(r)
	case "http":
		return d.http(r)
	case "degraded":
		return object{"count": d.serverOf(r.Server).DegradedCount()}, nil
	case "memory":
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return object{"bytes": stats.HeapAlloc}, nil
	case "close":
		return d.close(r)
	}
	return d.call(r)
}

func (d *driver) serverOf(name string) *tokenbucket.Server {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.servers[name]
}

func ms(number float64) time.Duration { return time.Duration(number * float64(time.Millisecond)) }

func (d *driver) server(r request) (object, error) {
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
	if r.Fallback != nil {
		options = append(options, tokenbucket.FallbackScript())
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.servers[r.Name], d.bare[r.Name] = tokenbucket.NewServer(client.doer, options...), client.bare
	return object{}, nil
}

var policies = map[string]tokenbucket.Policy{"local": tokenbucket.FailLocal, "open": tokenbucket.FailOpen,
	"closed": tokenbucket.FailClosed, "raise": tokenbucket.FailWithError}

func (d *driver) limiter(r request) (object, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	server, ok := d.servers[r.Server]
	if !ok {
		return nil, fmt.Errorf("there is no server %q", r.Server)
	}
	var options []tokenbucket.LimiterOption
	if r.Prefix != nil {
		options = append(options, tokenbucket.Prefix(*r.Prefix))
	}
	if r.OnError != nil {
		options = append(options, tokenbucket.OnError(policies[*r.OnError]))
	}
	if r.Do == "joint" {
		limits := map[string]tokenbucket.Limit{}
		for name, l := range r.Limits {
			limits[name] = l.Limit
		}
		d.joints[r.Name] = tokenbucket.NewJointLimiter(server, limits, options...)
		return object{}, nil
	}
	options = append(options, tokenbucket.Batch(r.Batch), tokenbucket.RememberDenials(r.RememberDenials))
	d.limiters[r.Name] = tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: r.Capacity, Rate: r.Rate}, options...)
	return object{}, nil
}

func (d *driver) on(r request) (*tokenbucket.Limiter, *tokenbucket.JointLimiter, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	single, joint := d.limiters[r.On], d.joints[r.On]
	if single == nil && joint == nil {
		return nil, nil, fmt.Errorf("there is no limiter %q", r.On)
	}
	return single, joint, nil
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
	if r.Share == "" {
		return options
	}
	weight := 1.0
	if r.Weight != nil {
		weight = *r.Weight
	}
	return append(options, tokenbucket.Share(r.Share, weight))
}

func described(decision tokenbucket.Decision) object {
	return object{"allowed": decision.Allowed, "granted": decision.Granted, "remaining": decision.Remaining,
		"retry_after_ms": decision.RetryAfter.Milliseconds(), "reset_after_ms": decision.ResetAfter.Milliseconds(),
		"degraded": decision.Degraded, "lost": decision.Lost}
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

func (d *driver) call(r request) (object, error) {
	single, joint, err := d.on(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := r.context()
	defer cancel()
	if r.Do == "reset" {
		if joint != nil {
			return object{}, joint.Reset(ctx, r.Name)
		}
		return object{}, single.Reset(ctx, r.Name)
	}
	if joint != nil {
		if r.Do != "take_all" {
			return nil, fmt.Errorf("%w: %s of a joint limiter", errUnsupported, r.Do)
		}
		decision, err := joint.TakeAll(ctx, r.Name, r.Costs, r.waits()...)
		return describedJointly(decision), err
	}
	decision, err := one(ctx, single, r, r.Do, r.Name)
	return described(decision), err
}

func one(ctx context.Context, limiter *tokenbucket.Limiter, r request, op, name string) (tokenbucket.Decision, error) {
	cost, most, amount := 1.0, int64(1), 1.0
	if r.Cost != nil {
		cost = *r.Cost
	}
	if r.Most != nil {
		most = *r.Most
	}
	if r.Amount != nil {
		if err := json.Unmarshal(r.Amount, &amount); err != nil {
			return tokenbucket.Decision{}, err
		}
	}
	switch op {
	case "take":
		return limiter.Take(ctx, name, cost, r.waits()...)
	case "peek":
		return limiter.Peek(ctx, name, cost)
	case "take_up_to":
		return limiter.TakeUpTo(ctx, name, most)
	case "charge":
		return limiter.Charge(ctx, name, amount)
	case "give":
		return limiter.Give(ctx, name, amount)
	case "reserve":
		return limiter.Reserve(ctx, name, cost, ms(r.MaxWaitMs))
	case "wait":
		maxWait := ms(r.MaxWaitMs)
		if maxWait == 0 {
			maxWait = 24 * time.Hour
		}
		return limiter.Wait(ctx, name, cost, maxWait)
	case "hold":
		ttl := ms(r.TTLMs)
		if ttl == 0 {
			ttl = time.Minute
		}
		hold, err := limiter.Hold(ctx, name, amount, ttl, r.waits()...)
		if err != nil {
			return tokenbucket.Decision{}, err
		}
		defer hold.Settle()
		return hold.Decision().Decision, nil
	}
	return tokenbucket.Decision{}, fmt.Errorf("%w: %s", errUnsupported, op)
}

func (d *driver) enter(ctx context.Context, r request) (*tokenbucket.Hold, error) {
	single, joint, err := d.on(r)
	if err != nil {
		return nil, err
	}
	if joint != nil {
		var amounts map[string]float64
		if err := json.Unmarshal(r.Amount, &amounts); err != nil {
			return nil, err
		}
		return joint.Hold(ctx, r.Name, amounts, ms(r.TTLMs), r.waits()...)
	}
	amount := 1.0
	if r.Amount != nil {
		if err := json.Unmarshal(r.Amount, &amount); err != nil {
			return nil, err
		}
	}
	return single.Hold(ctx, r.Name, amount, ms(r.TTLMs), r.waits()...)
}

func (d *driver) hold(r request) (object, error) {
	ctx := context.Background() // the hold lasts beyond this request
	if r.DeadlineUs != nil {
		limited, cancel := r.context()
		defer cancel()
		ctx = limited
	}
	hold, err := d.enter(ctx, r)
	if err != nil {
		return nil, err
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.holds[r.As] = hold
	return describedJointly(hold.Decision()), nil
}

// settleInside settles twice inside the block, and the end of the block does once more.
func (d *driver) settleInside(r request) (object, error) {
	single, _, err := d.on(r)
	if err != nil || single == nil {
		return nil, fmt.Errorf("%w: settle_inside of %q: %v", errUnsupported, r.On, err)
	}
	var amount, used float64
	_ = json.Unmarshal(r.Amount, &amount)
	_ = json.Unmarshal(r.Used, &used)
	var settled tokenbucket.JointDecision
	err = single.WithHold(context.Background(), r.Name, amount, ms(r.TTLMs), func(hold *tokenbucket.Hold) error {
		if err := hold.Used(used); err != nil {
			return err
		}
		_, _ = hold.Settle()
		var err error
		settled, err = hold.Settle()
		return err
	})
	return describedJointly(settled), err
}

func (d *driver) settle(r request) (object, error) {
	d.mutex.Lock()
	hold := d.holds[r.Ref]
	d.mutex.Unlock()
	if hold == nil {
		return nil, fmt.Errorf("there is no hold %q", r.Ref)
	}
	if err := use(hold, r.Used); err != nil {
		return nil, err
	}
	decision, err := hold.Settle()
	return describedJointly(decision), err
}

// use reports what is a number, numbers by the names of limits, or missing.
func use(hold *tokenbucket.Hold, used json.RawMessage) error {
	if used == nil || string(used) == "null" {
		return nil
	}
	var amount float64
	if json.Unmarshal(used, &amount) == nil {
		return hold.Used(amount)
	}
	var amounts map[string]float64
	if err := json.Unmarshal(used, &amounts); err != nil {
		return err
	}
	for which, amount := range amounts {
		if err := hold.UsedOf(which, amount); err != nil {
			return err
		}
	}
	return nil
}

func (d *driver) holdCancelled(r request) (object, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var entered, over sync.WaitGroup
	var mutex sync.Mutex
	var first error
	for i := int64(0); i < r.Count; i++ {
		entered.Add(1)
		over.Add(1)
		go func() {
			defer over.Done()
			hold, err := d.enter(ctx, r)
			entered.Done()
			if err == nil {
				<-ctx.Done() // the work
				_, err = hold.Settle()
			}
			if err != nil {
				mutex.Lock()
				defer mutex.Unlock()
				first = err
			}
		}()
	}
	entered.Wait()
	cancel()
	over.Wait()
	return object{}, first
}

// tally is what many calls came to.
type tally struct {
	calls, allowed, denied, degraded, cancelled int64
	errors                                      map[string]int64
	slowest                                     time.Duration
}

func (t *tally) add(decision tokenbucket.Decision, err error, took time.Duration) {
	t.calls++
	if took > t.slowest {
		t.slowest = took
	}
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

func (d *driver) many(r request) (object, error) {
	limiter, _, err := d.on(r)
	if err != nil || limiter == nil {
		return nil, fmt.Errorf("%w: many of %q: %v", errUnsupported, r.On, err)
	}
	if r.Op == "" {
		r.Op = "take"
	}
	if r.Concurrency < 1 {
		r.Concurrency = int(r.Count)
	}
	var names int64
	_ = json.Unmarshal(r.Names, &names)
	began := time.Now()
	var next int64
	total := &tally{errors: map[string]int64{}}
	var mutex sync.Mutex
	// draw is the number of the next call, and when it is due.
	draw := func() (number int64, due time.Time, ok bool) {
		mutex.Lock()
		defer mutex.Unlock()
		number, due = next, time.Now()
		next++
		if r.PerSecond != nil {
			due = began.Add(time.Duration(float64(number) / *r.PerSecond * float64(time.Second)))
		}
		if r.ForMs != nil {
			return number, due, due.Before(began.Add(ms(*r.ForMs)))
		}
		return number, due, number < r.Count
	}
	var over sync.WaitGroup
	for i := 0; i < r.Concurrency; i++ {
		over.Add(1)
		go func() {
			defer over.Done()
			for {
				number, due, ok := draw()
				if !ok {
					return
				}
				if wait := time.Until(due); wait > 0 {
					time.Sleep(wait)
				}
				name := r.Name
				if names > 0 {
					name = fmt.Sprint("n", number%names)
				}
				ctx, cancel := r.context()
				start := time.Now()
				decision, err := one(ctx, limiter, r, r.Op, name)
				took := time.Since(start)
				cancel()
				mutex.Lock()
				total.add(decision, err, took)
				mutex.Unlock()
			}
		}()
	}
	over.Wait()
	elapsed := time.Since(began)
	perCall := 0.0
	if total.calls > 0 {
		perCall = float64(elapsed.Microseconds()) / float64(total.calls)
	}
	return object{"calls": total.calls, "allowed": total.allowed, "denied": total.denied, "degraded": total.degraded,
		"cancelled": total.cancelled, "errors": total.errors, "slowest_ms": float64(total.slowest.Microseconds()) / 1000,
		"elapsed_ms": float64(elapsed.Microseconds()) / 1000, "per_call_us": perCall}, nil
}

// cost times takes, or the same command by the client library alone.
func (d *driver) cost(r request) (object, error) {
	limiter, _, err := d.on(r)
	if err != nil {
		return nil, err
	}
	d.mutex.Lock()
	bare := d.bare[r.Server]
	d.mutex.Unlock()
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

func (d *driver) http(r request) (object, error) {
	limiter, _, err := d.on(r)
	if err != nil || limiter == nil || r.Framework != "net/http" {
		return nil, fmt.Errorf("%w: http on %q: %v", errUnsupported, r.On, err)
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

func (d *driver) close(r request) (object, error) {
	d.mutex.Lock()
	limiter, server := d.limiters[r.Name], d.servers[r.Name]
	d.mutex.Unlock()
	if limiter != nil {
		return object{}, limiter.Close(context.Background())
	}
	if server != nil {
		return object{}, server.Close()
	}
	return object{}, nil
}
