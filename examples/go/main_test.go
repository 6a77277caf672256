package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"tokenbucket"
)

var program string // the built example, run as a user runs it

func TestMain(m *testing.M) {
	os.Exit(func() int {
		for _, name := range []string{"SERVER", "MODULE"} {
			if os.Getenv(name) == "" {
				fmt.Fprintln(os.Stderr, name+" is not set; run the tests with: make test")
				return 1
			}
		}
		folder, err := os.MkdirTemp("", "tokenbucket-example-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(folder)
		program = filepath.Join(folder, "tokenbucket-example")
		if output, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, output)
			return 1
		}
		return m.Run()
	}())
}

// runProgram returns what it printed and its exit code.
func runProgram(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var out, errOut bytes.Buffer
	command := exec.CommandContext(ctx, program, args...)
	command.Stdout, command.Stderr = &out, &errOut
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Fatalf("%v does not end:\n%s%s", args, &out, &errOut)
	}
	return out.String(), errOut.String(), command.ProcessState.ExitCode()
}

// hourly has one token, and none that comes during a test.
var hourly = tokenbucket.Limit{Capacity: 1, Rate: "1/h"}

func newTestLimiter(t *testing.T, s *server, connections int, limit tokenbucket.Limit) *tokenbucket.Limiter {
	client := newClient(s.address(), connections)
	t.Cleanup(func() { _ = client.Close() })
	limiter, err := newLimiter(client, limit, tokenbucket.LogTo(t.Logf))
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

var burstLine = regexp.MustCompile(`(?m)^(\S+) +asked (\d+)  granted (\d+)  possible (\d+)  (.+)$`)

func TestBurstProgram(t *testing.T) {
	s := startServer(t)
	// That the naive way over-grants is a race, so it is given some tries. TB.TAKE has none: it must never.
	for deadline := time.Now().Add(30 * time.Second); ; {
		stdout, stderr, code := runProgram(t, "burst", "-addr", s.address(),
			"-goroutines", "50", "-connections", "10", "-capacity", "100", "-per-second", "50", "-duration", "500ms")
		if code != 0 {
			t.Fatalf("exit %d\n%s%s", code, stdout, stderr)
		}
		lines := burstLine.FindAllStringSubmatch(stdout, -1)
		if len(lines) != 2 || lines[0][1] != "TB.TAKE" || lines[1][1] != "read-compute-write" {
			t.Fatalf("output:\n%s", stdout)
		}
		asked, granted, possible := number(t, lines[0][2]), number(t, lines[0][3]), number(t, lines[0][4])
		if granted > possible || lines[0][5] != "ok" {
			t.Fatalf("over-granted:\n%s", stdout)
		}
		if asked >= 200 && granted < 100 {
			t.Fatalf("less than the burst was granted:\n%s", stdout)
		}
		naive, possible := number(t, lines[1][3]), number(t, lines[1][4])
		if (naive > possible) != (lines[1][5] == fmt.Sprintf("over by %d", naive-possible)) {
			t.Fatalf("the verdict is wrong:\n%s", stdout)
		}
		if naive > possible {
			t.Logf("\n%s", stdout)
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the naive way never over-granted:\n%s", stdout)
		}
	}
}

var jobLine = regexp.MustCompile(`^ *(\d+) ms  job (\d+)  worker \d+$`)

func TestWorkersKeepTheSharedPace(t *testing.T) {
	s := startServer(t)
	const capacity, perSecond, jobs = 3, 20, 23
	start := time.Now()
	// Two processes that know nothing of each other share one bucket.
	type outcome struct{ stdout, stderr string }
	outcomes := make(chan outcome, 2)
	for i := 0; i < 2; i++ {
		go func() {
			stdout, stderr, _ := runProgram(t, "worker", "-addr", s.address(), "-capacity", fmt.Sprint(capacity),
				"-rate", fmt.Sprint(perSecond), "-jobs", fmt.Sprint(jobs), "-workers", "4", "-max-wait", "100ms")
			outcomes <- outcome{stdout, stderr}
		}()
	}
	for i := 0; i < 2; i++ {
		got := <-outcomes
		done := map[string]bool{}
		for _, line := range strings.Split(got.stdout, "\n") {
			if match := jobLine.FindStringSubmatch(line); match != nil {
				done[match[2]] = true
			}
		}
		if len(done) != jobs || !strings.Contains(got.stdout, fmt.Sprintf("%d jobs in ", jobs)) {
			t.Fatalf("jobs done: %d\n%s%s", len(done), got.stdout, got.stderr)
		}
	}
	// What the bucket did not hold at the start had to flow in first.
	if elapsed, least := time.Since(start), time.Second*(2*jobs-capacity)/perSecond; elapsed < least {
		t.Fatalf("%d jobs in %v, at %d/s they take at least %v", 2*jobs, elapsed, perSecond, least)
	}
}

func TestWorkerProgramWaitsForTheServerAndGoesOn(t *testing.T) {
	s := startServer(t)
	command := exec.Command(program, "worker", "-addr", s.address(), "-capacity", "1", "-rate", "10", "-jobs", "30", "-workers", "2")
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 100)
	go func() {
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			lines <- scanner.Text()
		}
		close(lines)
	}()
	defer func() { _ = command.Process.Kill(); _ = command.Wait() }()

	next(t, lines, "job 1")
	s.stop()
	next(t, lines, "cannot ask the server")
	time.Sleep(time.Second) // the outage; jobs that had reserved their token before it act within 0.2 s
	drain(lines)
	s.start()
	back := time.Now()
	next(t, lines, "job ")
	if elapsed := time.Since(back); elapsed > time.Second {
		t.Errorf("work went on %v after the server's return", elapsed)
	}
	next(t, lines, "30 jobs in ")
}

func TestWorkerProgramStopsWhenInterrupted(t *testing.T) {
	s := startServer(t)
	command := exec.Command(program, "worker", "-addr", s.address(), "-rate", "1/h", "-capacity", "1", "-max-wait", "10h", "-jobs", "5")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	limiter := newTestLimiter(t, s, 1, hourly)
	// One job took the token that there was, the other four workers' jobs have reserved the next four.
	waitFor(t, "the reservations", func() bool { return remaining(t, limiter, "upstream-api") == -4 })
	if err := command.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait()
	if code := command.ProcessState.ExitCode(); code != 130 || strings.TrimSpace(stderr.String()) != "interrupted" {
		t.Fatalf("exit %d: %s", code, &stderr)
	}
	if got := remaining(t, limiter, "upstream-api"); got != 0 {
		t.Fatalf("%d tokens after the interruption, want 0", got)
	}
}

func TestWrongInputIsOneClearLine(t *testing.T) {
	s := startServer(t)
	away := startServer(t)
	away.stop()
	gone := away.address()
	for _, wrong := range []struct {
		args  []string
		code  int
		names string
	}{
		{[]string{}, 2, "usage:"},
		{[]string{"brust"}, 2, "usage:"},
		{[]string{"burst", "-goroutines", "0"}, 2, "above 0"},
		{[]string{"burst", "-goroutines", "many"}, 2, "goroutines"},
		{[]string{"burst", "now"}, 2, `"now"`},
		{[]string{"burst", "-addr", gone}, 1, "refused"},
		{[]string{"worker", "-workers", "0"}, 2, "workers"},
		{[]string{"worker", "-addr", s.address(), "-rate", "fast"}, 1, "rate"},
		{[]string{"worker", "-addr", s.address(), "-capacity", "0"}, 1, "never"},
	} {
		stdout, stderr, code := runProgram(t, wrong.args...)
		if code != wrong.code || !strings.Contains(stderr, wrong.names) {
			t.Errorf("%v: exit %d, want %d and %q\n%s%s", wrong.args, code, wrong.code, wrong.names, stdout, stderr)
		}
		if wrong.names != "usage:" && strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: more than one line:\n%s", wrong.args, stderr)
		}
	}
}

// remaining looks without taking.
func remaining(t *testing.T, limiter *tokenbucket.Limiter, key string) int64 {
	t.Helper()
	decision, err := limiter.Peek(context.Background(), key, 0)
	if err != nil {
		t.Fatal(err)
	}
	return decision.Remaining
}

func waitFor(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !happened(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

func next(t *testing.T, lines <-chan string, part string) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case line, open := <-lines:
			if !open {
				t.Fatalf("the program ended before %q", part)
			}
			if strings.Contains(line, part) {
				return
			}
		case <-deadline:
			t.Fatalf("no %q", part)
		}
	}
}

func drain(lines <-chan string) {
	for {
		select {
		case _, open := <-lines:
			if !open {
				return
			}
		default:
			return
		}
	}
}

func number(t *testing.T, digits string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
