package realserver

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// Log is what was logged.
type Log struct {
	mutex sync.Mutex
	lines []string
}

// Printf is for tokenbucket.LogTo.
func (l *Log) Printf(format string, args ...any) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

// Expect compares what has been logged with parts of the lines.
func (l *Log) Expect(t testing.TB, parts ...string) {
	t.Helper()
	l.mutex.Lock()
	defer l.mutex.Unlock()
	matches := len(l.lines) == len(parts)
	for i := 0; matches && i < len(parts); i++ {
		matches = strings.Contains(l.lines[i], parts[i])
	}
	if !matches {
		t.Fatalf("logged %q, want %q", l.lines, parts)
	}
}

// Eventually asks until it is so: half a minute is long enough for any machine.
func Eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within half a minute", what)
		}
	}
}
