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

// Programs have to lie inside the module, or they would not find it. Folders that begin with a dot are not the module's packages.
func TestTheReadmesCodeDoesWhatItSays(t *testing.T) {
	var pages []byte
	for _, name := range []string{"../README.md", "../docs/tests-and-metrics.md", "../docs/fewer-round-trips.md", "../redisrate/README.md", "../httplimit/README.md"} {
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
		code := strings.ReplaceAll(string(found[1]), "localhost:6379", server.Address())
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
