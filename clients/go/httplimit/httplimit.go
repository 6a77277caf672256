// Package httplimit limits requests before a handler of net/http sees them.
package httplimit

import (
	"net/http"
	"net/netip"

	"tokenbucket"
)

// Option sets an option of a middleware.
type Option func(*middleware)

// Name sets the name of the bucket that a request takes from. By default it is the host of RemoteAddr, of IPv6 its /64: a
// caller has all of those addresses. Behind a proxy that is the proxy's: take the name from what you authenticated, or from
// a header that only your proxy can set.
func Name(of func(*http.Request) string) Option { return func(m *middleware) { m.name = of } }

// Cost sets how many tokens a request takes; 1 by default.
func Cost(of func(*http.Request) float64) Option { return func(m *middleware) { m.cost = of } }

// Denied sets the handler of denied requests, whose headers are already set; by default 429 with a line of text.
func Denied(handler http.Handler) Option { return func(m *middleware) { m.denied = handler } }

// Failed sets what answers when the limiter returns an error: the limit is wrong, or the server is away under FailWithError.
// By default that is 500 with a line of text, which does not show the error.
func Failed(answer func(http.ResponseWriter, *http.Request, error)) Option {
	return func(m *middleware) { m.failed = answer }
}

// Policy sets the name of the limit in the headers; "default" by default. Middlewares inside each other add up their
// headers, so give each a name of its own.
func Policy(name string) Option { return func(m *middleware) { m.policy = name } }

// Jitter lengthens Retry-After by up to this share: see tokenbucket.Decision.Headers.
func Jitter(share float64) Option { return func(m *middleware) { m.jitter = share } }

type middleware struct {
	limiter *tokenbucket.Limiter
	name    func(*http.Request) string
	cost    func(*http.Request) float64
	denied  http.Handler
	failed  func(http.ResponseWriter, *http.Request, error)
	policy  string
	jitter  float64
}

// New makes a middleware: httplimit.New(limiter)(handler).
func New(limiter *tokenbucket.Limiter, options ...Option) func(http.Handler) http.Handler {
	m := middleware{limiter: limiter, name: remoteHost, denied: answering(http.StatusTooManyRequests), policy: "default"}
	m.cost = func(*http.Request) float64 { return 1 }
	m.failed = func(w http.ResponseWriter, r *http.Request, _ error) { answering(http.StatusInternalServerError)(w, r) }
	for _, option := range options {
		option(&m)
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

func (m middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	decision, err := m.limiter.Take(r.Context(), m.name(r), m.cost(r))
	if err != nil {
		m.failed(w, r, err)
		return
	}
	for name, value := range decision.Headers(m.limiter.Limit(), m.policy, m.jitter) {
		if outer := w.Header().Get(name); outer != "" && name != "Retry-After" {
			value = outer + ", " + value
		}
		w.Header().Set(name, value)
	}
	if !decision.Allowed {
		next = m.denied
	}
	next.ServeHTTP(w, r)
}

func remoteHost(r *http.Request) string {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	address := remote.Addr().Unmap().WithZone("")
	if address.Is4() {
		return address.String()
	}
	return netip.PrefixFrom(address, 64).Masked().String() // the caller's network
}

func answering(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, http.StatusText(status), status) }
}
