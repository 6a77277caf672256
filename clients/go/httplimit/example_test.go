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
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 1, Rate: "1/s"})
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	handler := httplimit.New(limiter)(hello)
	for i := 0; i < 2; i++ {
		response := answer(handler, "/", "")
		fmt.Printf("%d, Retry-After: %q\n", response.StatusCode, response.Header.Get("Retry-After"))
	}
	// Output:
	// 200, Retry-After: ""
	// 429, Retry-After: "1"
}

func ExampleName() {
	server := tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 1, Rate: "1/s"})
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	user := httplimit.Name(func(r *http.Request) string { return r.Header.Get("X-User") }) // as authenticated
	handler := httplimit.New(limiter, user)(hello)
	fmt.Println(answer(handler, "/", "ada").StatusCode, answer(handler, "/", "bob").StatusCode)
	// Output: 200 200
}

func ExampleCost() {
	server := tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "1/s"})
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	cost := httplimit.Cost(func(r *http.Request) float64 {
		if r.URL.Path == "/export" {
			return 10
		}
		return 1
	})
	handler := httplimit.New(limiter, cost, httplimit.Policy("api"))(hello)
	fmt.Println(answer(handler, "/export", "").Header.Get("RateLimit"))
	fmt.Println(answer(handler, "/", "").StatusCode)
	// Output:
	// "api";r=0;t=10
	// 429
}

func ExampleDenied() {
	server := tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 0, Rate: "1/s"})
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	busy := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	handler := httplimit.New(limiter, httplimit.Denied(busy), httplimit.Jitter(0.5))(hello)
	fmt.Println(answer(handler, "/", "").StatusCode)
	// Output: 503
}

func ExampleFailed() {
	server := tokenbucket.NewServer(tokenbuckettest.NewServer())
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 1, Rate: "often"})
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	failed := httplimit.Failed(func(w http.ResponseWriter, _ *http.Request, err error) {
		fmt.Println(err != nil) // log err, which callers need not see
		w.WriteHeader(http.StatusInternalServerError)
	})
	fmt.Println(answer(httplimit.New(limiter, failed)(hello), "/", "").StatusCode)
	// Output:
	// true
	// 500
}
