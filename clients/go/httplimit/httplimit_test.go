package httplimit_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tokenbucket"
	"tokenbucket/httplimit"
	"tokenbucket/internal/realserver"
)

var hourly = tokenbucket.Limit{Capacity: 2, Rate: "2/h"}

// serve is a server of net/http whose handler says hello.
func serve(t *testing.T, limiter *tokenbucket.Limiter, options ...httplimit.Option) *httptest.Server {
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	server := httptest.NewServer(httplimit.New(limiter, options...)(hello))
	t.Cleanup(server.Close)
	return server
}

func get(t *testing.T, url, user string) (status int, body string, headers http.Header) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("User", user)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	bytes, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, strings.TrimSpace(string(bytes)), response.Header
}

func expect(t *testing.T, url, user string, status int, body string) http.Header {
	t.Helper()
	gotStatus, gotBody, headers := get(t, url, user)
	if gotStatus != status || gotBody != body {
		t.Fatalf("%d %q, want %d %q", gotStatus, gotBody, status, body)
	}
	return headers
}

func TestRequestsAreLimitedByTheirHost(t *testing.T) {
	server := realserver.Start(t)
	url := serve(t, tokenbucket.NewLimiter(server.Limits(), hourly)).URL
	headers := expect(t, url, "", 200, "hello")
	if headers.Get("RateLimit") != `"default";r=1;t=1800` || headers.Get("RateLimit-Policy") != `"default";q=2;w=3600` {
		t.Fatal(headers)
	}
	if headers.Get("Retry-After") != "" {
		t.Fatal(headers)
	}
	expect(t, url, "", 200, "hello")
	headers = expect(t, url, "", 429, "Too Many Requests")
	if after := headers.Get("Retry-After"); len(after) != 4 || after > "1800" {
		t.Fatal(headers)
	}
	if server.Do("EXISTS", "tb:127.0.0.1") != int64(1) {
		t.Fatal("the name is not the host")
	}
}

func TestAnIPv6CallerIsItsNetwork(t *testing.T) {
	limiter := tokenbucket.NewLimiter(realserver.Start(t).Limits(), hourly)
	handler := httplimit.New(limiter)(http.NotFoundHandler())
	for i, remote := range []string{"[2001:db8::1]:1", "[2001:db8::ffff:0:2%eth0]:2", "[2001:db8::3]:3", "[2001:db8:0:1::1]:4", "[::ffff:192.0.2.1]:5",
		"192.0.2.1:6", "192.0.2.1:7"} {
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		request.RemoteAddr = remote
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, request)
		if isDenied := i == 2 || i == 6; (recorder.Code == http.StatusTooManyRequests) != isDenied {
			t.Errorf("%s: %d", remote, recorder.Code)
		}
	}
}

func TestNamesCostsAndAnswersAreTheApplications(t *testing.T) {
	limiter := tokenbucket.NewLimiter(realserver.Start(t).Limits(), hourly)
	url := serve(t, limiter,
		httplimit.Name(func(r *http.Request) string { return r.Header.Get("User") }),
		httplimit.Cost(func(r *http.Request) float64 { return float64(len(r.URL.Path)) }),
		httplimit.Policy("api"),
		httplimit.Denied(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, "later")
		}))).URL
	expect(t, url+"/", "ann", 200, "hello")
	headers := expect(t, url+"/b", "ann", 503, "later")
	if !strings.HasPrefix(headers.Get("RateLimit"), `"api";r=1;`) {
		t.Fatal(headers)
	}
	expect(t, url+"/b", "bob", 200, "hello")
	if headers := expect(t, url+"/too-much", "bob", 503, "later"); headers.Get("Retry-After") != "" {
		t.Fatal("waiting does not help", headers)
	}
}

func TestJitterOnlyLengthensRetryAfter(t *testing.T) {
	limiter := tokenbucket.NewLimiter(realserver.Start(t).Limits(), tokenbucket.Limit{Capacity: 1, Rate: "1/h"})
	url := serve(t, limiter, httplimit.Jitter(1)).URL
	expect(t, url, "", 200, "hello")
	drawn := map[string]bool{}
	for i := 0; i < 20; i++ {
		after := expect(t, url, "", 429, "Too Many Requests").Get("Retry-After")
		if len(after) != 4 || after < "3500" || after > "7200" { // a test lasts no 100 s
			t.Fatal(after)
		}
		drawn[after] = true
	}
	if len(drawn) < 2 {
		t.Fatal("there is no jitter")
	}
}

func TestWithoutTheServer(t *testing.T) {
	server := realserver.Start(t)
	server.Stop()
	limits := server.Limits(tokenbucket.LogTo(t.Logf))
	with := func(policy tokenbucket.Policy, options ...httplimit.Option) string {
		return serve(t, tokenbucket.NewLimiter(limits, hourly, tokenbucket.OnError(policy)), options...).URL
	}
	if headers := expect(t, with(tokenbucket.FailOpen), "", 200, "hello"); headers.Get("RateLimit") != "" {
		t.Fatal("nobody looked", headers)
	}
	if headers := expect(t, with(tokenbucket.FailClosed), "", 429, "Too Many Requests"); headers.Get("Retry-After") != "1" {
		t.Fatal(headers)
	}
	expect(t, with(tokenbucket.FailWithError), "", 500, "Internal Server Error")
	failed := httplimit.Failed(func(w http.ResponseWriter, _ *http.Request, err error) {
		if errors.Is(err, tokenbucket.ErrServerAway) {
			http.Error(w, "bad gateway", http.StatusBadGateway)
		}
	})
	expect(t, with(tokenbucket.FailWithError, failed), "", 502, "bad gateway")
}

func TestMiddlewaresInsideEachOtherWriteAllTheirHeaders(t *testing.T) {
	limits := realserver.Start(t).Limits()
	limit := func(capacity float64, policy string) func(http.Handler) http.Handler {
		limiter := tokenbucket.NewLimiter(limits, tokenbucket.Limit{Capacity: capacity, Rate: "1/h"}, tokenbucket.Prefix(policy))
		return httplimit.New(limiter, httplimit.Policy(policy))
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	server := httptest.NewServer(limit(3, "site")(limit(2, "page")(limit(1, "form")(hello))))
	defer server.Close()
	headers := expect(t, server.URL, "", 200, "hello")
	if got := headers.Values("RateLimit"); len(got) != 1 || got[0] != `"site";r=2;t=3600, "page";r=1;t=3600, "form";r=0;t=3600` {
		t.Fatal(got)
	}
	if got := headers.Get("RateLimit-Policy"); got != `"site";q=3;w=10800, "page";q=2;w=7200, "form";q=1;w=3600` {
		t.Fatal(got)
	}
	headers = expect(t, server.URL, "", 429, "Too Many Requests")
	if got := headers.Get("RateLimit"); len(strings.Split(got, ", ")) != 3 || len(headers.Values("Retry-After")) != 1 {
		t.Fatal(headers)
	}
}
