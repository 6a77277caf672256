package httplimit_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tokenbucket"
	"tokenbucket/httplimit"
	"tokenbucket/tokenbuckettest"
)

var (
	hourly = tokenbucket.Limit{Capacity: 2, Rate: "2/h"}
	hello  = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
)

// expect compares an answer, and returns its headers.
func expect(t *testing.T, handler http.Handler, path, user string, status int, body string) http.Header {
	t.Helper()
	response := answer(handler, path, user)
	got, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != status || strings.TrimSpace(string(got)) != body {
		t.Fatalf("%d %q, want %d %q", response.StatusCode, got, status, body)
	}
	return response.Header
}

func limited(limit tokenbucket.Limit, options ...httplimit.Option) http.Handler {
	server := tokenbucket.NewServer(tokenbuckettest.NewServer())
	return httplimit.New(tokenbucket.NewLimiter(server, limit), options...)(hello)
}

func TestAnIPv6CallerIsItsNetwork(t *testing.T) {
	handler := limited(hourly)
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

func TestJitterOnlyLengthensRetryAfter(t *testing.T) {
	handler, drawn := limited(tokenbucket.Limit{Capacity: 1, Rate: "1/h"}, httplimit.Jitter(1)), map[string]bool{}
	expect(t, handler, "/", "", 200, "hello")
	for i := 0; i < 20; i++ {
		after := expect(t, handler, "/", "", 429, "Too Many Requests").Get("Retry-After")
		if len(after) != 4 || after < "3600" || after > "7200" {
			t.Fatal(after)
		}
		drawn[after] = true
	}
	if len(drawn) < 2 {
		t.Fatal("there is no jitter")
	}
}

func TestAnErrorOfTheLimiterIsAnsweredByDefault(t *testing.T) {
	expect(t, limited(tokenbucket.Limit{Capacity: 1, Rate: "often"}), "/", "", 500, "Internal Server Error")
}

func TestMiddlewaresInsideEachOtherWriteAllTheirHeaders(t *testing.T) {
	server := tokenbucket.NewServer(tokenbuckettest.NewServer())
	handler := http.Handler(hello)
	for i, policy := range []string{"form", "page", "site"} {
		limit := tokenbucket.Limit{Capacity: float64(1 + i), Rate: "1/h"}
		limiter := tokenbucket.NewLimiter(server, limit, tokenbucket.Prefix(policy))
		handler = httplimit.New(limiter, httplimit.Policy(policy))(handler)
	}
	headers := expect(t, handler, "/", "", 200, "hello")
	if got := headers.Values("RateLimit"); len(got) != 1 || got[0] != `"site";r=2;t=3600, "page";r=1;t=3600, "form";r=0;t=3600` {
		t.Fatal(got)
	}
	if got := headers.Get("RateLimit-Policy"); got != `"site";q=3;w=10800, "page";q=2;w=7200, "form";q=1;w=3600` {
		t.Fatal(got)
	}
	headers = expect(t, handler, "/", "", 429, "Too Many Requests")
	if got := headers.Get("RateLimit"); len(strings.Split(got, ", ")) != 3 || len(headers.Values("Retry-After")) != 1 {
		t.Fatal(headers)
	}
}
