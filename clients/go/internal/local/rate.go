package local

import (
	"fmt"
	"math/big"
	"regexp"
	"strings"
)

var (
	period   = regexp.MustCompile(`^(.*?)(ms|s|m|h|d)$`)
	calendar = regexp.MustCompile(`^(\d*)(mo|ms|[smhdwy])([+-]\d\d:\d\d)?$`)
)

// Milliseconds of each unit. A month counts 30 days, a year 365.
var unitMs = map[string]int64{
	"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000,
	"w": 7 * 86_400_000, "mo": 30 * 86_400_000, "y": 365 * 86_400_000,
}

// IsCalendar tells whether tokens arrive at boundaries of the calendar.
func IsCalendar(rate string) bool { return strings.Contains(rate, "@") }

// TokensPerSecond is exact; of a calendar rate it is the average. The server checks more bounds than this does.
func TokensPerSecond(rate string) (*big.Rat, error) {
	separator := strings.IndexAny(rate, "/@")
	if separator < 0 {
		separator = len(rate)
	}
	count := parseNumber(rate[:separator])
	if count == nil {
		return nil, badRate(rate)
	}
	if separator == len(rate) {
		return count, nil
	}
	form := period
	if IsCalendar(rate) {
		form = calendar
	}
	parts := form.FindStringSubmatch(rate[separator+1:])
	if parts == nil {
		return nil, badRate(rate)
	}
	length := big.NewRat(1, 1)
	if parts[1] != "" {
		length = parseNumber(parts[1])
	}
	if length == nil || length.Sign() == 0 {
		return nil, badRate(rate)
	}
	seconds := length.Mul(length, big.NewRat(unitMs[parts[2]], 1000))
	return count.Quo(count, seconds), nil
}

func badRate(rate string) error {
	return fmt.Errorf("rate: %q is neither tokens per second nor like 100/m or 1000@d", rate)
}
