package goredis_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tokenbucket/internal/realserver"
)

var (
	block  = regexp.MustCompile("(?s)```go\n(.*?)```")
	asks   = regexp.MustCompile(`NewServer\(doer`)
	output = regexp.MustCompile(`// Output: (.*)\n`)
)

// What a block of the README may use, by the name it has in code.
var packages = map[string]string{
	"errors": "errors", "expvar": "expvar", "fmt": "fmt", "log": "log", "time": "time",
	"redisrate": "tokenbucket/redisrate", "tokenbuckettest": "tokenbucket/tokenbuckettest",
	"goredis": "tokenbucket/goredis", "redis": "github.com/redis/go-redis/v9",
}

// What stands around a block that is no program: what its reader has already.
const frame = `package main

import (
	"context"
	"os"
	%s

	client "github.com/redis/go-redis/v9"

	"tokenbucket"
	from "tokenbucket/goredis"
)

func run(ctx context.Context, doer tokenbucket.Doer, server *tokenbucket.Server, limiter *tokenbucket.Limiter) error {
	{
%s
	}
	return nil
}

func main() {
	doer, err := from.From(client.NewClient(&client.Options{Addr: "localhost:6379"}))
	if err != nil {
		panic(err)
	}
	server := tokenbucket.NewServer(doer)
	limiter := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "5"})
	if err := run(context.Background(), doer, server, limiter); err != nil {
		panic(err)
	}
	os.Exit(0)
}
`

func program(code string) string {
	if strings.HasPrefix(code, "package main\n") {
		return code
	}
	var imports strings.Builder
	for name, path := range packages {
		if regexp.MustCompile(`\b` + name + `\.`).MatchString(code) {
			fmt.Fprintf(&imports, "%q\n", path)
		}
	}
	return fmt.Sprintf(frame, &imports, code)
}

// Programs have to lie inside the module, or they would not find it. Folders that begin with a dot are not the module's packages.
func TestTheReadmesCodeDoesWhatItSays(t *testing.T) {
	var pages []byte
	for _, name := range []string{"../README.md", "../docs/tests-and-metrics.md", "../docs/fewer-round-trips.md", "../redisrate/README.md"} {
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, page...)
	}
	server := realserver.Start(t)
	folder, err := os.MkdirTemp(".", ".readme-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	blocks := block.FindAllSubmatch(pages, -1)
	binaries := t.TempDir()
	build := []string{"build", "-o", binaries}
	for i, found := range blocks {
		name := filepath.Join(folder, fmt.Sprint("block", i))
		code := strings.ReplaceAll(program(string(found[1])), "localhost:6379", server.Address())
		code = asks.ReplaceAllString(code, "$0, tokenbucket.Timeout(1<<36)") // so that a slow machine may answer
		if err := os.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(name, "main.go"), []byte(code), 0o600); err != nil {
			t.Fatal(err)
		}
		build = append(build, "./"+name)
	}
	if output, err := exec.Command("go", build...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	for i, found := range blocks {
		want := output.FindSubmatch(found[1])
		if want == nil {
			t.Fatalf("block %d does not say what it prints:\n%s", i, found[1])
		}
		got, err := exec.Command(filepath.Join(binaries, fmt.Sprint("block", i))).Output()
		if err != nil || strings.TrimSpace(string(got)) != string(want[1]) {
			t.Errorf("block %d prints %q (%v), it says %q:\n%s", i, got, err, want[1], found[1])
		}
	}
}
