package tokenbucket

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"tokenbucket/internal/local"
	"tokenbucket/internal/rules"
)

// The rules and constants that the packages share are those of this package.
func TestRules(t *testing.T) {
	var shared struct {
		Costs  map[string]*int64
		Shares struct {
			MostBytes  int         `json:"most_bytes"`
			Least      json.Number `json:"least_weight"`
			MostWeight json.Number `json:"most_weight"`
		}
		LongestMs map[string]int64 `json:"longest_ms"`
		Errors    map[string]string
		Constants map[string]int64
	}
	text, err := os.ReadFile("../conformance/rules.json")
	if err == nil {
		err = json.Unmarshal(text, &shared)
	}
	if err != nil {
		t.Fatal(err)
	}
	for cost, micros := range shared.Costs {
		reply, err := local.NewStore(0).Do(0, "TB.TAKE", "a", "1e12", "1e12", cost)
		if micros == nil {
			if err == nil {
				t.Errorf("cost %q: %v", cost, reply)
			}
			continue
		}
		// How long an empty bucket of a millionth a millisecond takes to have that much again.
		store := local.NewStore(0)
		_, _ = store.Do(0, "TB.CHARGE", "b", 1, "1e-3", cost)
		looked, lookErr := store.Do(0, "TB.PEEK", "b", 1, "1e-3", 1)
		if err != nil || lookErr != nil || looked.([]any)[2] != *micros {
			t.Errorf("cost %q: %v, %v, %v; want %d", cost, looked, err, lookErr, *micros)
		}
	}
	for line, want := range shared.Errors {
		if got := map[fault]string{faultOfCaller: "caller", faultOfServer: "away", faultOfWrite: "refusing"}[faultOf(errors.New(line))]; got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	least, _ := shared.Shares.Least.Float64()
	most, _ := shared.Shares.MostWeight.Float64()
	for share, ok := range map[*CallOption]bool{
		share(strings.Repeat("a", shared.Shares.MostBytes), least): true, share("a", most): true,
		share(strings.Repeat("a", shared.Shares.MostBytes+1), 1): false, share("a", least*0.999): false, share("a", most*1.001): false,
	} {
		if c := (command{}).with([]CallOption{*share}); (c.wrong == nil) != ok {
			t.Error(c.wrong)
		}
	}
	for ms, ok := range map[int64]bool{shared.LongestMs["hold"]: true, shared.LongestMs["hold"] + 1: false, 0: false} {
		if reply, err := local.NewStore(0).Do(0, "TB.MHOLD", 1, ms, "id", "a", 1, 1, 1); (err == nil) != ok {
			t.Error(ms, reply, err)
		}
	}
	if rules.Longest.Milliseconds() != shared.LongestMs["wait"] {
		t.Error(rules.Longest)
	}
	if constants := map[string]int64{
		"timeout_ms": rules.Timeout.Milliseconds(), "retry_every_ms": rules.RetryEvery.Milliseconds(),
		"connect_within_ms": rules.ConnectWithin.Milliseconds(), "pulse_of_a_wait_ms": rules.Pulse.Milliseconds(),
		"settled_again_after_ms": rules.SettledAgainAfter.Milliseconds(), "most_unsettled_holds": rules.MostUnsettled,
		"tries_of_a_split_slot": rules.TriesOfSplitSlot,
		"most_redirections":     rules.MostRedirections,
		// The client library looks at each connection, however short it was idle.
		"looked_at_if_idle_for_ms": shared.Constants["looked_at_if_idle_for_ms"],
	}; !reflect.DeepEqual(constants, shared.Constants) {
		t.Errorf("%v, want %v", constants, shared.Constants)
	}
}

func share(tenant string, weight float64) *CallOption {
	option := Share(tenant, weight)
	return &option
}
