// Package realserver starts servers for the tests, on free ports and in temporary folders, and ends them.
package realserver

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// Server is a real one, of SERVER with MODULE.
type Server struct {
	t          testing.TB
	folder     string
	port       int
	withModule bool
	options    []string
	clock      *Clock
	process    *exec.Cmd
	exited     chan struct{}
}

// Start starts one, and ends it with the test.
func Start(t testing.TB) *Server { return start(t, &Server{withModule: true}) }

// StartWithoutModule starts one that loads the module only when told to.
func StartWithoutModule(t testing.TB) *Server { return start(t, &Server{}) }

// StartWithClock starts one that obeys a clock.
func StartWithClock(t testing.TB) (*Server, *Clock) {
	clock := newClock(t)
	return start(t, &Server{withModule: true, clock: clock}), clock
}

func start(t testing.TB, s *Server) *Server {
	t.Helper()
	for _, name := range []string{"SERVER", "MODULE"} {
		if os.Getenv(name) == "" {
			t.Fatalf("%s is not set; run the tests with: make test", name)
		}
	}
	s.t, s.folder, s.port = t, t.TempDir(), FreePort(t)
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

// Start starts it again, on the same port.
func (s *Server) Start() {
	s.t.Helper()
	logFile := filepath.Join(s.folder, "server.log")
	s.process = exec.Command(os.Getenv("SERVER"), "--port", fmt.Sprint(s.port), "--bind", "127.0.0.1", "--save", "",
		"--dir", s.folder, "--logfile", logFile)
	s.process.Args = append(s.process.Args, s.options...)
	if s.withModule {
		s.process.Args = append(s.process.Args, "--loadmodule", os.Getenv("MODULE"))
	} else if s.asksBeforeModules() {
		s.process.Args = append(s.process.Args, "--enable-module-command", "yes")
	}
	if s.clock != nil {
		s.process.Env = append(os.Environ(), "LD_PRELOAD="+s.clock.library, "FAKECLOCK="+s.clock.path)
	}
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	process, exited := s.process, make(chan struct{})
	s.exited = exited
	go func() { _ = process.Wait(); close(exited) }()
	for deadline := time.Now().Add(20 * time.Second); !s.answers(); time.Sleep(10 * time.Millisecond) {
		select {
		case <-exited:
			deadline = time.Time{}
		default:
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(logFile)
			s.Stop()
			s.t.Fatalf("the server did not start:\n%s", log)
		}
	}
}

func (s *Server) answers() bool {
	_, err := address(s.Address()).Do(context.Background(), "PING")
	return err == nil
}

var version = regexp.MustCompile(`v=(\d+)\.`)

// From Redis 7 on, MODULE LOAD has to be allowed.
func (s *Server) asksBeforeModules() bool {
	output, err := exec.Command(os.Getenv("SERVER"), "--version").Output()
	found := version.FindSubmatch(output)
	if err != nil || found == nil {
		s.t.Fatalf("%s --version: %s %v", os.Getenv("SERVER"), output, err)
	}
	major, _ := strconv.Atoi(string(found[1]))
	return major >= 7
}

// Stop ends it at once, as a crash does.
func (s *Server) Stop() {
	_ = s.process.Process.Kill()
	<-s.exited
}

// Address is its host and port.
func (s *Server) Address() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// LoadModule gives it the module while it runs, and whenever it is started again.
func (s *Server) LoadModule() {
	s.t.Helper()
	s.withModule = true
	s.Do("MODULE", "LOAD", os.Getenv("MODULE"))
}

// The node of a cluster talks to the others on a port so far above its own.
const clusterBus = 10_000

// FreePort is one below those that a system gives to clients, so that it is still free when a server is started again.
func FreePort(t testing.TB) int {
	t.Helper()
	random := rand.New(rand.NewSource(time.Now().UnixNano() + int64(os.Getpid())))
	for try := 0; try < 100; try++ {
		port := 10_000 + random.Intn(12_000)
		if isFree(port) && isFree(port+clusterBus) {
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

func isFree(port int) bool {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	listener.Close()
	return true
}

// Clock is the time that a server sees.
type Clock struct {
	t       testing.TB
	path    string
	library string
	nowUs   int64
}

func newClock(t testing.TB) *Clock {
	_, here, _, _ := runtime.Caller(0)
	source := filepath.Join(filepath.Dir(here), "../../../../tests/common/fakeclock.c")
	folder := t.TempDir()
	c := &Clock{t, filepath.Join(folder, "clock"), filepath.Join(folder, "fakeclock.so"), 1_767_225_600_000_000}
	if output, err := exec.Command("cc", "-O2", "-shared", "-fPIC", "-o", c.library, source, "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("the clock does not compile: %v\n%s", err, output)
	}
	c.Advance(0)
	return c
}

// Advance lets time pass, by whole microseconds.
func (c *Clock) Advance(by time.Duration) {
	c.t.Helper()
	c.nowUs += by.Microseconds()
	var bytes [8]byte
	binary.BigEndian.PutUint64(bytes[:], uint64(c.nowUs))
	file, err := os.OpenFile(c.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		_, err = file.WriteAt(bytes[:], 0)
		file.Close()
	}
	if err != nil {
		c.t.Fatal(err)
	}
}
