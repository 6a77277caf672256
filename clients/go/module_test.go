package tokenbucket_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"tokenbucket"
	"tokenbucket/internal/realserver"
	"tokenbucket/tokenbuckettest"
)

// gaining is a server that gains the module. Without it, the script grants everything.
type gaining struct {
	*tokenbuckettest.Server
	hasModule bool
	deleted   []any
}

func (g *gaining) Do(ctx context.Context, args ...any) (any, error) {
	switch {
	case args[0] == "EVALSHA":
		return granted, nil
	case args[0] == "DEL":
		g.deleted = append(g.deleted, args[1:]...)
	case !g.hasModule && strings.HasPrefix(args[0].(string), "TB."):
		return nil, errors.New("ERR unknown command")
	case args[0] == "SCRIPT":
		return "loaded", nil
	}
	return g.Server.Do(ctx, args...)
}

func TestAServerThatGainsTheModule(t *testing.T) {
	server, log := &gaining{Server: tokenbuckettest.NewServer()}, &realserver.Log{}
	limits := tokenbucket.NewServer(server, tokenbucket.FallbackScript(), tokenbucket.LogTo(log.Printf))
	limiter := tokenbucket.NewLimiter(limits, hourly)
	must(t)(limiter.Take(ctx, "a", 1))
	server.hasModule = true
	must(t)(limiter.Take(ctx, "a", 1))
	if got := remaining(t, limiter, "a"); got != 9 {
		t.Fatal("the module is looked for once a minute, not at each call", got)
	}
	server.Advance(time.Minute)
	expectRemaining(t, limiter, "a", 10) // in the module's own bucket
	if err := limiter.Reset(ctx, "a"); err != nil || fmt.Sprint(server.deleted) != "[tb:a tb:a:script]" {
		t.Fatal(server.deleted, err)
	}
	log.Expect(t, "the script decides until it has", "the script decides no longer")
}
