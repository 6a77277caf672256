package tokenbucket

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"

	"tokenbucket/internal/number"
)

// Limit is how many tokens a bucket holds, and how fast they come back. It travels with every call and is not stored:
// change it, and the next call uses it.
type Limit struct {
	// Capacity is the largest burst.
	Capacity float64
	// Rate is tokens per second ("5", "0.25"), a count per period ("100/m", "10/10s") or a count at each boundary of the
	// calendar ("1000@d", "1000@d+09:00"). "0" is a pool, whose tokens come back only from holds.
	Rate string
}

var (
	period   = regexp.MustCompile(`^(.*?)(ms|s|m|h|d)$`)
	calendar = regexp.MustCompile(`^(\d*)(mo|ms|[smhdwy])([+-]\d\d:\d\d)?$`)
)

// Milliseconds of each unit; of months and years, those of 30 and 365 days.
var unitMs = map[string]int64{
	"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000,
	"w": 7 * 86_400_000, "mo": 30 * 86_400_000, "y": 365 * 86_400_000,
}

// IsCalendar tells whether tokens come at boundaries of the calendar, and not all the time.
func (l Limit) IsCalendar() bool { return strings.Contains(l.Rate, "@") }

// TokensPerSecond is what flows in, exactly; of a rate by the calendar, the average. The server knows more bounds than
// are looked at here.
func (l Limit) TokensPerSecond() (*big.Rat, error) {
	separator := strings.IndexAny(l.Rate, "/@")
	if separator < 0 {
		separator = len(l.Rate)
	}
	count := number.Parse(l.Rate[:separator])
	if count == nil {
		return nil, l.badRate()
	}
	if separator == len(l.Rate) {
		return count, nil
	}
	form := period
	if l.IsCalendar() {
		form = calendar
	}
	parts := form.FindStringSubmatch(l.Rate[separator+1:])
	if parts == nil {
		return nil, l.badRate()
	}
	length := big.NewRat(1, 1)
	if parts[1] != "" {
		length = number.Parse(parts[1])
	}
	if length == nil || length.Sign() == 0 {
		return nil, l.badRate()
	}
	seconds := length.Mul(length, big.NewRat(unitMs[parts[2]], 1000))
	return count.Quo(count, seconds), nil
}

func (l Limit) badRate() error {
	return fmt.Errorf("rate: %q is neither tokens per second nor like 100/m or 1000@d", l.Rate)
}

// timeFor is how long so many tokens take to flow in. ok is false where none do, or nobody can tell.
func (l Limit) timeFor(tokens float64) (duration time.Duration, ok bool) {
	rate, err := l.TokensPerSecond()
	wanted := new(big.Rat)
	if err != nil || rate.Sign() == 0 || wanted.SetFloat64(tokens) == nil {
		return 0, false
	}
	seconds, _ := wanted.Quo(wanted, rate).Float64()
	if seconds > maxDuration.Seconds() {
		return maxDuration, true
	}
	return time.Duration(seconds * float64(time.Second)), true
}

func (l Limit) words() []string { return []string{tokens(l.Capacity), l.Rate} }

// tokens as the server reads them.
func tokens(amount float64) string { return strconv.FormatFloat(amount, 'f', -1, 64) }
