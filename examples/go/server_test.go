package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
)

// server is a real server of the test's own, with the module loaded.
type server struct {
	t       *testing.T
	folder  string
	port    int
	process *exec.Cmd
	exited  chan struct{}
}

// startServer starts one on a free port and ends it with the test.
func startServer(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, folder: t.TempDir(), port: freePort(t)}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *server) address() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

func (s *server) start() {
	s.t.Helper()
	logFile := filepath.Join(s.folder, "server.log")
	s.process = exec.Command(os.Getenv("SERVER"), "--port", fmt.Sprint(s.port), "--bind", "127.0.0.1",
		"--save", "", "--dir", s.folder, "--logfile", logFile, "--loadmodule", os.Getenv("MODULE"))
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	process, exited := s.process, make(chan struct{})
	s.exited = exited
	go func() { _ = process.Wait(); close(exited) }()

	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := redis.Dial("tcp", s.address())
		if err == nil {
			_, err = conn.Do("PING")
			conn.Close()
		}
		if err == nil {
			return
		}
		dead := false
		select {
		case <-exited:
			dead = true
		default:
		}
		if dead || time.Now().After(deadline) {
			log, _ := os.ReadFile(logFile)
			s.stop()
			s.t.Fatalf("the server did not start: %v\n%s", err, log)
		}
	}
}

func (s *server) stop() {
	_ = s.process.Process.Kill()
	<-s.exited
}

// freePort is free now; nobody else on loopback is likely to take it before the server does.
func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
