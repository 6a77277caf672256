package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"tokenbucket"
	"tokenbucket/httplimit"
	"tokenbucket/tokenbuckettest"
)

func answer(handler http.Handler, path, user string) *http.Response {
	request := httptest.NewRequest(http.MethodGet, path, nil)
	request.Header.Set("X-User", user)
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	return recorder.Result()
}

func ExampleNew() {
	server := tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "1/s"})
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	handler := httplimit.New(limiter,
		httplimit.Policy("api"),
		httplimit.Name(func(r *http.Request) string { return r.Header.Get("X-User") }), // as authenticated
		httplimit.Cost(func(r *http.Request) float64 {
			if r.URL.Path == "/export" {
				return 10
			}
			return 1
		}),
		httplimit.Failed(func(w http.ResponseWriter, _ *http.Request, err error) {
			fmt.Println(err) // callers need not see it
			w.WriteHeader(http.StatusInternalServerError)
		}))(hello)
	for _, user := range []string{"ada", "ada", "bob"} {
		response := answer(handler, "/export", user)
		fmt.Printf("%d, RateLimit: %s, Retry-After: %q\n", response.StatusCode, response.Header.Get("RateLimit"), response.Header.Get("Retry-After"))
	}
	// Output:
	// 200, RateLimit: "api";r=0;t=10, Retry-After: ""
	// 429, RateLimit: "api";r=0;t=10, Retry-After: "10"
	// 200, RateLimit: "api";r=0;t=10, Retry-After: ""
}

func ExampleDenied() {
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(tokenbuckettest.NewServer()), tokenbucket.Limit{Capacity: 1, Rate: "1/h"})
	upgrade := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusPaymentRequired) })
	// Jitter lengthens Retry-After by up to a fifth, so that denied callers do not come back together.
	handler := httplimit.New(limiter, httplimit.Denied(upgrade), httplimit.Jitter(0.2))(http.NotFoundHandler())
	for i := 0; i < 2; i++ {
		fmt.Println(answer(handler, "/", "ada").StatusCode)
	}
	// Output:
	// 404
	// 402
}
