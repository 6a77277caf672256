package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
)

// server is a real server of the test's own, with the module loaded. ../../testing/launch.py starts it, and ends it when its input ends.
type server struct {
	t      *testing.T
	input  io.Writer
	output *bufio.Scanner
	port   int
}

func startServer(t *testing.T) *server {
	t.Helper()
	launcher := exec.Command("../../testing/launch.py", "serve")
	launcher.Stderr = os.Stderr
	input, _ := launcher.StdinPipe()
	output, _ := launcher.StdoutPipe()
	if err := launcher.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { input.Close(); _ = launcher.Wait() })
	s := &server{t: t, input: input, output: bufio.NewScanner(output)}
	var started struct{ Nodes []struct{ Port int } }
	if err := json.Unmarshal(s.line(), &started); err != nil {
		t.Fatal(err)
	}
	s.port = started.Nodes[0].Port
	return s
}

func (s *server) address() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// start starts it again, on its port.
func (s *server) start() { s.tell(`["start", 0]`) }

// stop ends it at once, as a crash does.
func (s *server) stop() { s.tell(`["stop", 0]`) }

func (s *server) tell(line string) {
	s.t.Helper()
	fmt.Fprintln(s.input, line)
	s.line()
}

func (s *server) line() []byte {
	s.t.Helper()
	if !s.output.Scan() {
		s.t.Fatal("the launcher of the server has ended")
	}
	return s.output.Bytes()
}
