package goredis_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/internal/realserver"
)

// What becomes of a call that waits longer than the timeouts of its client. The scenarios of all packages assert more.
func TestCallsThatWait(t *testing.T) {
	for name, c := range map[string]struct {
		timeout           time.Duration
		meanwhile         func(*realserver.Server, *tokenbucket.Server)
		allowed, degraded bool
		err               error
	}{
		"its turn":  {20 * time.Second, func(*realserver.Server, *tokenbucket.Server) {}, true, false, nil},
		"killed":    {20 * time.Second, func(s *realserver.Server, _ *tokenbucket.Server) { s.Do("CLIENT", "KILL", "ID", waits(t, s)) }, true, false, nil},
		"unblocked": {20 * time.Second, func(s *realserver.Server, _ *tokenbucket.Server) { s.Do("CLIENT", "UNBLOCK", waits(t, s), "ERROR") }, true, false, nil},
		"demoted":   {20 * time.Second, func(s *realserver.Server, _ *tokenbucket.Server) { s.Do("REPLICAOF", "127.0.0.1", "1") }, false, true, nil},
		"silent":    {time.Second, func(s *realserver.Server, _ *tokenbucket.Server) { s.Do("CLIENT", "PAUSE", "3600000", "ALL") }, false, true, nil},
		"closed":    {20 * time.Second, func(_ *realserver.Server, limits *tokenbucket.Server) { limits.Close() }, false, false, tokenbucket.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			server := realserver.Start(t)
			const short = 50 * time.Millisecond
			client := redis.NewClient(&redis.Options{Addr: server.Address(), PoolSize: 2, ReadTimeout: short, WriteTimeout: short})
			limits := serverOf(t, client, tokenbucket.Timeout(c.timeout))
			limiter := tokenbucket.NewLimiter(limits, hourly, tokenbucket.OnError(tokenbucket.FailClosed))
			left(t, 0)(limiter.Take(ctx, "a", 10))
			type outcome struct {
				decision tokenbucket.Decision
				err      error
			}
			ended := make(chan outcome, 1)
			go func() {
				decision, err := limiter.Take(ctx, "a", 1, tokenbucket.MaxWait(time.Hour))
				ended <- outcome{decision, err}
			}()
			waits(t, server)
			time.Sleep(3 * short)
			c.meanwhile(server, limits)
			realserver.Eventually(t, "it ends", func() bool {
				if c.allowed { // perhaps once more: a client that was killed may have got the first
					server.Do("TB.GIVE", "tb:a", "10", "10/h", "1")
				}
				return len(ended) == 1
			})
			if got := <-ended; got.decision.Allowed != c.allowed || got.decision.Degraded != c.degraded || !errors.Is(got.err, c.err) {
				t.Fatalf("%+v", got)
			}
		})
	}
}

// waits returns the id of the client that waits in the server, as soon as there is one.
func waits(t *testing.T, server *realserver.Server) (id string) {
	t.Helper()
	realserver.Eventually(t, "a client waits", func() bool {
		for _, line := range strings.Split(fmt.Sprint(server.Do("CLIENT", "LIST")), "\n") {
			if strings.Contains(strings.ToLower(line), "cmd=tb.btake") && strings.Contains(line, "flags=b") {
				_, _ = fmt.Sscanf(line, "id=%s", &id)
			}
		}
		return id != ""
	})
	return id
}
