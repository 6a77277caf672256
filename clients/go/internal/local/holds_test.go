package local

import (
	"testing"
	"time"
)

// renewing returns what renews some holds beside so many.
func renewing(t *testing.T, holds int) func() time.Duration {
	s, renewed := NewStore(0), 0
	renew := func(id int) {
		renewed++
		if _, err := s.Do(0, "TB.MHOLD", 1, 60_000+renewed, id, "k", holds, 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	for i := 0; i < holds; i++ {
		renew(i)
	}
	return func() time.Duration {
		began := time.Now()
		for i := 0; i < 20; i++ {
			renew(renewed % holds)
		}
		return time.Since(began)
	}
}

// The best of many tries, in turns, so that a busy machine is busy for both.
func TestARenewalCostsLittleMoreBesideManyHolds(t *testing.T) {
	few, many := time.Hour, time.Hour
	besideFew, besideMany := renewing(t, 10), renewing(t, 20_000)
	for tries := 0; tries < 100; tries++ {
		if took := besideFew(); took < few {
			few = took
		}
		if took := besideMany(); took < many {
			many = took
		}
	}
	if many > 5*few {
		t.Fatalf("%v beside 20,000 holds, %v beside 10", many, few)
	}
	t.Log(few, many)
}

// What has expired by the time of a call under another limit expires for each limit by itself.
func TestHoldsExpireUnderTheLimitOfTheCall(t *testing.T) {
	s, second := NewStore(0), time.Second
	for i, c := range []struct {
		at    time.Duration
		words []any
		left  int64
	}{
		{0, []any{"TB.MHOLD", "1", "1000", "a", "k", "10", "0", "6"}, 4},
		{0, []any{"TB.MHOLD", "1", "3000", "b", "k", "10", "0", "3"}, 1},
		{2 * second, []any{"TB.PEEK", "k", "5", "0", "0"}, 5},
		{2 * second, []any{"TB.PEEK", "k", "10", "0", "0"}, 7},
		{2 * second, []any{"TB.PEEK", "k", "5", "0", "0"}, 5},
		{2 * second, []any{"TB.MHOLD", "1", "3000", "a", "k", "10", "0", "7"}, 0},
		{4 * second, []any{"TB.MSETTLE", "1", "b", "k", "10", "0", "0"}, 3},
		{4 * second, []any{"TB.MRENEW", "1", "3000", "a", "k", "10", "0"}, 3},
		{6 * second, []any{"TB.PEEK", "k", "10", "0", "0"}, 3},
		{7 * second, []any{"TB.PEEK", "k", "10", "0", "0"}, 10},
	} {
		reply, err := s.Do(c.at, c.words...)
		if err != nil || reply.([]any)[1] != c.left {
			t.Fatalf("call %d: %v, %v; want %d left", i, reply, err, c.left)
		}
	}
}
