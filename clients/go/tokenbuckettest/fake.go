// Package tokenbuckettest has a server in memory for your tests. It decides as the module does, in exact arithmetic. Its time
// stands still until a test advances it, for calendar rates by fake.Advance(date.Sub(fake.Now())).
package tokenbuckettest

import (
	"context"
	"sync/atomic"
	"time"

	"tokenbucket/internal/local"
)

// Server is a tokenbucket.Doer, and the tokenbucket.Clock of the limiters that use it.
type Server struct {
	now   atomic.Int64 // in nanoseconds since 1970
	store *local.Store
	away  atomic.Pointer[error]
}

// NewServer makes a server on which every bucket is full. Its time starts at midnight UTC on January 1st, 2026.
func NewServer() *Server {
	s := &Server{store: local.NewStore(0)}
	s.now.Store(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	return s
}

// Advance lets time pass, for buckets and for what limiters cache. Kept to the microsecond.
func (s *Server) Advance(by time.Duration) { s.now.Add(int64(by.Truncate(time.Microsecond))) }

// Break makes every command fail with this error, like a server that is away; nil ends the outage.
func (s *Server) Break(err error) { s.away.Store(&err) }

// Now returns the server's time.
func (s *Server) Now() time.Time { return time.Unix(0, s.now.Load()).UTC() }

// Sleep advances the time by duration.
func (s *Server) Sleep(ctx context.Context, duration time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.Advance(duration)
	return nil
}

// Do executes PING, DEL and the commands that limiters send.
func (s *Server) Do(_ context.Context, args ...any) (any, error) {
	if away := s.away.Load(); away != nil && *away != nil {
		return nil, *away
	}
	if args[0] == "PING" {
		return "PONG", nil
	}
	return s.store.Do(time.Duration(s.now.Load()), args...)
}
