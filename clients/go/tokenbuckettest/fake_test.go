package tokenbuckettest_test

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"tokenbucket"
	"tokenbucket/internal/realserver"
	"tokenbucket/tokenbuckettest"
)

// Capacities and rates. Whole micro-tokens flow in during a step of the walk: of other rates the server rounds a
// micro-token down, and the fake does not.
var limits = [][2]string{{"10", "1"}, {"5", "3"}, {"2.5", "2/s"}, {"100", "1/ms"}, {"7", "6/m"}}

const step = 10 * time.Microsecond

func TestTheFakeDecidesAsTheServer(t *testing.T) {
	pauses := []time.Duration{0, 0, 0, 1, 50, 10_000, 70_000, 1_000_000, 30_000_000}
	compare(t, 4000, func(random *rand.Rand, _ int) (time.Duration, []any) {
		return one(random, pauses) * step, drawCall(random, limits)
	})
}

var calendars = [][2]string{
	{"10", "5@10s"}, {"3", "1@250ms"}, {"100", "7@15m+05:45"}, {"1000", "1000@d+09:00"}, {"2.5", "0.5@2d-03:30"},
	{"20", "4@w-11:00"}, {"12", "3@mo+14:00"}, {"5", "1@y"}, {"30", "20@mo+14d-05:00"}, {"10", "10@3mo+30d"},
	{"8", "8@w+6d+09:00"}, {"9", "9@mo+28d+02:00"},
}

// Over decades, from boundary to boundary and to a microsecond before.
func TestTheFakeKnowsTheCalendar(t *testing.T) {
	const day = 24 * time.Hour
	pauses := []time.Duration{0, 0, time.Microsecond, 999_999 * time.Microsecond, 10 * time.Second, 15 * time.Minute, time.Hour, day, 7 * day,
		28*day - time.Microsecond, 31 * day}
	compare(t, 4000, func(random *rand.Rand, _ int) (time.Duration, []any) {
		return one(random, pauses), drawCall(random, calendars)
	})
}

func TestTheFakeHoldsAsTheServer(t *testing.T) {
	pauses := []time.Duration{0, 0, time.Millisecond, 400 * time.Millisecond, 3 * time.Second}
	for _, rate := range []string{"5", "7@2s+05:45"} {
		compare(t, 2000, func(random *rand.Rand, at int) (time.Duration, []any) {
			return one(random, pauses), drawHold(random, at, rate)
		})
	}
}

// compare walks at random over both, and compares every reply to the last number.
func compare(t *testing.T, calls int, draw func(random *rand.Rand, at int) (time.Duration, []any)) {
	seed, err := strconv.ParseInt(os.Getenv("SEED"), 10, 64)
	if err != nil {
		seed = 1
	}
	random := rand.New(rand.NewSource(seed))
	server, clock := realserver.StartWithClock(t)
	real, fake := server.Doer(), tokenbuckettest.NewServer()
	for at := 0; at < calls; at++ {
		pause, words := draw(random, at)
		clock.Advance(pause)
		fake.Advance(pause)
		expected, err := real.Do(context.Background(), words...)
		if err != nil {
			t.Fatalf("call %d of seed %d: %v: %v", at, seed, words, err)
		}
		got, err := fake.Do(context.Background(), words...)
		if err != nil || !reflect.DeepEqual(got, expected) {
			t.Fatalf("call %d of seed %d: %v: the fake says %v (%v), the server %v", at, seed, words, got, err, expected)
		}
	}
}

func one[T any](random *rand.Rand, of []T) T { return of[random.Intn(len(of))] }

// drawLimit returns a name and its limit, now and then another's: the limit of a name may change.
func drawLimit(random *rand.Rand, limits [][2]string, name int) []any {
	limit := limits[name]
	if random.Intn(10) == 0 {
		limit = one(random, limits)
	}
	return []any{fmt.Sprint("k", name), limit[0], limit[1]}
}

func drawCall(random *rand.Rand, limits [][2]string) []any {
	words := drawLimit(random, limits, random.Intn(len(limits)))
	amount := one(random, []any{"0", "1", "1", "2", "0.5", "3", "1.25", "200"})
	switch name := one(random, []string{"TAKE", "PEEK", "TAKEUPTO", "RESERVE", "CHARGE", "GIVE", "MTAKE", "TAKEANY"}); name {
	case "TAKEUPTO":
		return append([]any{"TB.TAKEUPTO"}, append(words, 1+random.Intn(8))...)
	case "RESERVE":
		return append([]any{"TB.RESERVE"}, append(words, amount, one(random, []int{0, 100, 1500, 60_000}))...)
	case "MTAKE":
		count := 1 + random.Intn(3)
		call := []any{"TB.MTAKE", count}
		for _, name := range random.Perm(len(limits))[:count] {
			call = append(append(call, drawLimit(random, limits, name)...), amount)
		}
		return call
	case "TAKEANY":
		each, others := 1+random.Intn(2), random.Perm(len(limits))
		call := []any{"TB.TAKEANY", 2 * each, each}
		for _, name := range append(others[:2*each-1], others[0]) { // the first limit is common to both if each is 2
			call = append(append(call, drawLimit(random, limits, name)...), one(random, []any{"0", "1", "2", amount}))
		}
		return call
	case "CHARGE":
		if amount == "200" {
			amount = "4"
		}
		return append([]any{"TB.CHARGE"}, append(words, amount)...)
	default:
		return append([]any{"TB." + name}, append(words, amount)...)
	}
}

func drawHold(random *rand.Rand, at int, rate string) []any {
	id := at
	if random.Intn(5) < 2 {
		id = random.Intn(at + 1)
	}
	hold, jobs, tokens := fmt.Sprint("hold-", id), []any{"jobs", "5", "0"}, []any{"tokens", "100", rate}
	if random.Intn(10) == 0 { // the limits of a name may change
		jobs[1], tokens[1] = "3", "40"
	}
	words := func(lists ...[]any) (all []any) {
		for _, list := range lists {
			all = append(all, list...)
		}
		return all
	}
	anyAmount := func(most int) []any { return []any{random.Intn(most + 1)} }
	switch random.Intn(6) {
	case 0: // often under an id that has a hold
		return words([]any{"TB.HOLDANY", 4, 2, one(random, []int{500, 5000}), hold}, jobs, anyAmount(2), tokens, anyAmount(60),
			[]any{"jobs2", "2", "0"}, anyAmount(1), tokens, anyAmount(20))
	case 1, 5:
		return words([]any{"TB.MHOLD", 2, one(random, []int{500, 5000}), fmt.Sprint("hold-", at)},
			jobs, []any{1}, tokens, []any{one(random, []int{5, 40})})
	case 2:
		renewed := one(random, [][]any{words([]any{2}, jobs, tokens), words([]any{1}, jobs)})
		return words([]any{"TB.MRENEW", renewed[0], one(random, []int{500, 5000}), hold}, renewed[1:])
	}
	return words([]any{"TB.MSETTLE", 2, hold}, jobs, []any{0}, tokens, []any{one(random, []int{0, 10, 60})})
}

func TestWaitingLetsTheFakesTimePass(t *testing.T) {
	fake := tokenbuckettest.NewServer()
	began := fake.Now()
	limiter := tokenbucket.NewLimiter(tokenbucket.NewServer(fake), tokenbucket.Limit{Capacity: 1, Rate: "1"})
	for i := 0; i < 3; i++ {
		if decision, err := limiter.Wait(context.Background(), "a", 1, 10*time.Second); err != nil || !decision.Allowed {
			t.Fatal(decision, err)
		}
		if decision, err := limiter.Take(context.Background(), "a", 1, tokenbucket.MaxWait(10*time.Second)); err != nil || !decision.Allowed {
			t.Fatal(decision, err)
		}
	}
	if passed := fake.Now().Sub(began); passed != 5*time.Second {
		t.Fatal(passed)
	}
	hurried := tokenbucket.MaxWait(400 * time.Millisecond)
	if decision, err := limiter.Take(context.Background(), "a", 1, hurried); err != nil || decision.Allowed || decision.RetryAfter != 600*time.Millisecond {
		t.Fatal(decision, err)
	}
}

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
