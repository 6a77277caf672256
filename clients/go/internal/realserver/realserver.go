// Package realserver starts servers for the tests: those of testing/launch.py, which says how.
package realserver

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// Server is a real one, of SERVER with MODULE.
type Server struct {
	*launcher
	node int
	port int
}

// Start starts one, and ends it with the test.
func Start(t testing.TB) *Server { return launch(t).nodes[0] }

// StartWithClock starts one that obeys a clock.
func StartWithClock(t testing.TB) (*Server, *Clock) {
	l := launch(t, "--clock")
	clock := &Clock{t, filepath.Join(l.folder, "clock"), 1_767_225_600_000_000}
	clock.Advance(0)
	return l.nodes[0], clock
}

// launcher is a program that has started servers, and ends them when its input ends.
type launcher struct {
	t      testing.TB
	input  *json.Encoder
	output *json.Decoder
	folder string
	nodes  []*Server
}

func launch(t testing.TB, options ...string) *launcher {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	program := filepath.Join(filepath.Dir(here), "../../../../testing/launch.py")
	process := exec.Command("python3", append([]string{program, "serve"}, options...)...)
	process.Stderr = os.Stderr
	input, err := process.StdinPipe()
	l := &launcher{t: t, input: json.NewEncoder(input)}
	if output, failed := process.StdoutPipe(); failed == nil && err == nil {
		l.output = json.NewDecoder(output)
		err = process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { input.Close(); _ = process.Wait() })
	var started struct {
		Folder string
		Nodes  []struct{ Port int }
	}
	if err := l.output.Decode(&started); err != nil {
		t.Fatalf("no server was started; run the tests with: make test (%v)", err)
	}
	l.folder = started.Folder
	for node, at := range started.Nodes {
		l.nodes = append(l.nodes, &Server{launcher: l, node: node, port: at.Port})
	}
	return l
}

// tell sends a line to the launcher, and reads its reply.
func (l *launcher) tell(reply any, words ...any) {
	l.t.Helper()
	line := struct {
		Reply any
		Error string
	}{Reply: reply}
	err := l.input.Encode(words)
	if err == nil {
		err = l.output.Decode(&line)
	}
	if err != nil || line.Error != "" {
		l.t.Fatalf("%v: %s %v", words, line.Error, err)
	}
}

// Stop ends it at once, as a crash does.
func (s *Server) Stop() {
	s.t.Helper()
	s.tell(nil, "stop", s.node)
}

// Address is its host and port.
func (s *Server) Address() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// Clock is the time that a server sees.
type Clock struct {
	t     testing.TB
	path  string
	nowUs int64
}

// Advance lets time pass, by whole microseconds.
func (c *Clock) Advance(by time.Duration) {
	c.t.Helper()
	c.nowUs += by.Microseconds()
	var bytes [8]byte
	binary.BigEndian.PutUint64(bytes[:], uint64(c.nowUs))
	file, err := os.OpenFile(c.path, os.O_RDWR, 0)
	if err == nil {
		_, err = file.WriteAt(bytes[:], 0)
		file.Close()
	}
	if err != nil {
		c.t.Fatal(err)
	}
}
