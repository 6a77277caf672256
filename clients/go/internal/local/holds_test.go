package local

import (
	"runtime"
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

func TestHoldsThatExpireTogetherCostLittle(t *testing.T) {
	s := NewStore(0)
	for id := 0; id < 1000; id++ {
		if _, err := s.Do(0, "TB.MHOLD", 1, 1000, id, "k", 1000, 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _ = s.Do(time.Second, "TB.PEEK", "k", 1000, 0, 1)
	runtime.ReadMemStats(&after)
	if allocated := after.Mallocs - before.Mallocs; allocated > 1000 {
		t.Fatal(allocated)
	}
}
