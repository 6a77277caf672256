package local

import (
	"fmt"
	"testing"
	"time"
)

// beside returns a decision's time, the best of some, beside so many holds.
func beside(t *testing.T, holds int) time.Duration {
	s := NewStore(0)
	do := func(words ...string) {
		if _, err := s.Do(0, words); err != nil {
			t.Fatal(err)
		}
	}
	for i := 0; i < holds; i++ {
		do("TB.MHOLD", "1", fmt.Sprint(60_000+i%7), fmt.Sprint(i), "k", "100000", "10", "10")
	}
	best := time.Hour
	for i := 0; i < 200; i++ {
		began := time.Now()
		do("TB.TAKE", "k", "100000", "10", "1")
		do("TB.TAKE", "k", "100000", "10", "100000")
		if took := time.Since(began); took < best {
			best = took
		}
	}
	return best
}

func TestADecisionCostsLittleMoreBesideManyHolds(t *testing.T) {
	few, many := beside(t, 10), beside(t, 5000)
	if many > 20*few {
		t.Fatalf("%v beside 5,000 holds, %v beside 10", many, few)
	}
	t.Log(few, many)
}

// What has expired by the time of a call under another limit expires for each limit by itself.
func TestHoldsExpireUnderTheLimitOfTheCall(t *testing.T) {
	s, second := NewStore(0), time.Second
	for i, c := range []struct {
		at    time.Duration
		words []string
		left  int64
	}{
		{0, []string{"TB.MHOLD", "1", "1000", "a", "k", "10", "0", "6"}, 4},
		{0, []string{"TB.MHOLD", "1", "3000", "b", "k", "10", "0", "3"}, 1},
		{2 * second, []string{"TB.PEEK", "k", "5", "0", "0"}, 5},
		{2 * second, []string{"TB.PEEK", "k", "10", "0", "0"}, 7},
		{2 * second, []string{"TB.PEEK", "k", "5", "0", "0"}, 5},
		{2 * second, []string{"TB.MHOLD", "1", "3000", "a", "k", "10", "0", "7"}, 0},
		{4 * second, []string{"TB.MSETTLE", "1", "b", "k", "10", "0", "0"}, 3},
		{4 * second, []string{"TB.MRENEW", "1", "3000", "a", "k", "10", "0"}, 3},
		{6 * second, []string{"TB.PEEK", "k", "10", "0", "0"}, 3},
		{7 * second, []string{"TB.PEEK", "k", "10", "0", "0"}, 10},
	} {
		reply, err := s.Do(c.at, c.words)
		if err != nil || reply.([]any)[1] != c.left {
			t.Fatalf("call %d: %v, %v; want %d left", i, reply, err, c.left)
		}
	}
}
