package tokenbuckettest_test

import (
	"context"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"tokenbucket/tokenbuckettest"
)

// Calendar rates are read as all packages and the module read them.
func TestRatesAreReadAsAllPackagesDo(t *testing.T) {
	text, err := os.ReadFile("../../conformance/rates.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == "#":
		case len(words) == 1:
			if _, err := tokenbuckettest.NewServer().Do(context.Background(), "TB.TAKE", "k", "10", words[0], "1"); err == nil {
				t.Error("read as a rate:", words[0])
			}
		default:
			since, until := moment(t, words[1]), moment(t, words[2])
			fake := tokenbuckettest.NewServer()
			fake.Advance(since.Sub(fake.Now()))
			reply, err := fake.Do(context.Background(), "TB.TAKE", "k", "10", words[0], "10")
			if want := []any{int64(1), int64(0), int64(0), until.Sub(since).Milliseconds()}; err != nil || !reflect.DeepEqual(reply, want) {
				t.Error(line, reply, err)
			}
		}
	}
}

func moment(t *testing.T, text string) time.Time {
	moment, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return moment
}
