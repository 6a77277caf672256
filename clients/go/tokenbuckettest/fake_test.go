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

// walk calls at random: of the words of a template, A to C are the names of limits and these, the others what words say.
type walk struct {
	templates, limits []string
	words             map[string][]string
	pauses            []time.Duration
}

const (
	us  = time.Microsecond
	day = 24 * time.Hour
)

// Whole micro-tokens flow in during a pause: of other rates the server rounds a micro-token down, and the fake does not.
var steadily = walk{
	templates: []string{"TB.TAKE A SOME", "TB.PEEK A SOME", "TB.TAKEUPTO A MOST", "TB.RESERVE A SOME WAIT", "TB.CHARGE A FEW", "TB.GIVE A SOME",
		"TB.MTAKE 2 A SOME B SOME", "TB.MTAKE 3 C FEW A FEW B FEW", "TB.TAKEANY 2 1 A SOME B SOME", "TB.TAKEANY 4 2 A FEW B SOME C FEW A SOME"},
	limits: []string{"10 1", "5 3", "2.5 2/s", "100 1/ms", "7 6/m"},
	words: map[string][]string{"SOME": {"0", "1", "1", "2", "0.5", "3", "1.25", "200"}, "FEW": {"0", "1", "1.25", "4"}, "MOST": {"1", "4", "8"},
		"WAIT": {"0", "100", "1500", "60000"}},
	pauses: []time.Duration{0, 0, 0, 10 * us, 500 * us, 100_000 * us, 700_000 * us, 10 * time.Second, 5 * time.Minute},
}

// Over decades, from boundary to boundary and to a microsecond before.
var byTheCalendar = walk{
	templates: steadily.templates,
	limits: []string{"10 5@10s", "3 1@250ms", "100 7@15m+05:45", "1000 1000@d+09:00", "2.5 0.5@2d-03:30", "20 4@w-11:00", "12 3@mo+14:00", "5 1@y",
		"30 20@mo+14d-05:00", "10 10@3mo+30d", "8 8@w+6d+09:00", "9 9@mo+28d+02:00"},
	words:  steadily.words,
	pauses: []time.Duration{0, 0, us, time.Second - us, 10 * time.Second, 15 * time.Minute, time.Hour, day, 7 * day, 28*day - us, 31 * day},
}

func holding(rate string) walk {
	return walk{
		templates: []string{"TB.MHOLD 2 TTL NEW JOBS 1 TOKENS SOME", "TB.MHOLD 2 TTL ID JOBS FEW TOKENS SOME", "TB.MRENEW 2 TTL ID JOBS TOKENS",
			"TB.MRENEW 1 TTL ID JOBS", "TB.MSETTLE 2 ID JOBS 0 TOKENS SOME", "TB.HOLDANY 4 2 TTL ID JOBS FEW TOKENS SOME jobs2 2 0 FEW TOKENS SOME",
			"TB.HOLDANY 4 2 TTL ID JOBS FEW TOKENS SOME JOBS FEW TOKENS SOME"},
		words: map[string][]string{"TTL": {"500", "5000"}, "ID": {"NEW", "OLD"}, "FEW": {"0", "1", "2"}, "SOME": {"0", "5", "10", "40", "60"},
			"JOBS": {"jobs 5 0", "jobs 5 0", "jobs 5 0", "jobs 3 0"}, "TOKENS": {"tokens 100 " + rate, "tokens 100 " + rate, "tokens 40 " + rate}},
		pauses: []time.Duration{0, 0, time.Millisecond, 400 * time.Millisecond, 3 * time.Second},
	}
}

func one[T any](random *rand.Rand, of []T) T { return of[random.Intn(len(of))] }

// draw returns a call, the one of that number.
func (w walk) draw(random *rand.Rand, at int, template string) (call []any) {
	names := random.Perm(len(w.limits))
	for _, word := range strings.Fields(template) {
		which := strings.Index("ABC", word)
		switch of := w.words[word]; {
		case of != nil:
			call = append(call, w.draw(random, at, one(random, of))...)
		case word == "NEW":
			call = append(call, fmt.Sprint("hold-", at))
		case word == "OLD":
			call = append(call, fmt.Sprint("hold-", at-random.Intn(4))) // one that has not ended yet
		case which < 0:
			call = append(call, word)
		default: // now and then with another's limit: that of a name may change
			limit := w.limits[names[which]]
			if random.Intn(10) == 0 {
				limit = one(random, w.limits)
			}
			call = append(append(call, fmt.Sprint("k", names[which])), w.draw(random, at, limit)...)
		}
	}
	return call
}

// Every reply is compared to the last number.
func TestTheFakeDecidesAsTheServer(t *testing.T) {
	seed, err := strconv.ParseInt(os.Getenv("SEED"), 10, 64)
	if err != nil {
		seed = 1
	}
	for _, w := range []walk{steadily, byTheCalendar, holding("5"), holding("7@2s+05:45")} {
		random := rand.New(rand.NewSource(seed))
		server, clock := realserver.StartWithClock(t)
		real, fake := server.Doer(), tokenbuckettest.NewServer()
		for at := 0; at < 3000; at++ {
			pause, call := one(random, w.pauses), w.draw(random, at, one(random, w.templates))
			clock.Advance(pause)
			fake.Advance(pause)
			expected, err := real.Do(context.Background(), call...)
			if err != nil {
				t.Fatalf("call %d of seed %d: %v: %v", at, seed, call, err)
			}
			if got, err := fake.Do(context.Background(), call...); err != nil || !reflect.DeepEqual(got, expected) {
				t.Fatalf("call %d of seed %d: %v: the fake says %v (%v), the server %v", at, seed, call, got, err, expected)
			}
		}
	}
}

func TestAMistakeBehindTheGrantedAlternativeIsAnError(t *testing.T) {
	for _, line := range []string{
		"TB.TAKEANY 2 1 a 10 1 1 b 10 1 -1", "TB.TAKEANY 2 1 a 10 1 1 b 10 0 1",
		"TB.HOLDANY 2 1 1000 id a 10 1 1 b 10 fast 1", "TB.HOLDANY 2 1 1000 id a 10 1 1 b 1e9 1/h 1",
	} {
		var call []any
		for _, word := range strings.Fields(line) {
			call = append(call, word)
		}
		if reply, err := tokenbuckettest.NewServer().Do(context.Background(), call...); err == nil {
			t.Error(line, reply)
		}
	}
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
