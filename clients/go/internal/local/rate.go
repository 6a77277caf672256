package local

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// rate is what a rate says: a count at each period, of so many units.
type rate struct {
	count, length *big.Rat
	unit          string         // "": tokens per second
	zone          *time.Location // of the calendar; nil: tokens come all the time
}

var (
	period   = regexp.MustCompile(`^(.*?)(ms|s|m|h|d)$`)
	calendar = regexp.MustCompile(`^(?:(\d*)(ms|[smhd])|(w|mo|3mo|y))(?:\+(\d\d?)d)?(?:([+-]\d\d):(\d\d))?$`)
)

// The most days by which a period may begin later.
var mostDays = map[string]int{"w": 6, "mo": 27, "3mo": 27}

// Milliseconds of each unit. A month counts 30 days, a quarter 90, a year 365.
var unitMs = map[string]int64{
	"ms": 1, "s": 1000, "": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000,
	"w": 7 * 86_400_000, "mo": 30 * 86_400_000, "3mo": 90 * 86_400_000, "y": 365 * 86_400_000,
}

// IsCalendar tells whether tokens arrive at boundaries of the calendar.
func IsCalendar(rate string) bool { return strings.Contains(rate, "@") }

// TokensPerSecond is exact; of a calendar rate it is the average. The server checks more bounds than this does.
func TokensPerSecond(text string) (*big.Rat, error) {
	r := parseRate(text)
	if r == nil {
		return nil, fmt.Errorf("rate: %q is neither tokens per second nor like 100/m or 1000@d", text)
	}
	seconds := big.NewRat(unitMs[r.unit], 1000)
	return r.count.Quo(r.count, seconds.Mul(seconds, r.length)), nil
}

// parseRate returns nil for what is no rate.
func parseRate(text string) *rate {
	separator := strings.IndexAny(text, "/@")
	if separator < 0 {
		separator = len(text)
	}
	r := &rate{count: parseNumber(text[:separator]), length: big.NewRat(1, 1)}
	if separator < len(text) {
		form := period
		if IsCalendar(text) {
			form = calendar
		}
		parts := form.FindStringSubmatch(text[separator+1:])
		if parts == nil {
			return nil
		}
		if parts[1] != "" {
			r.length = parseNumber(parts[1])
		}
		r.unit = parts[2]
		if form == calendar {
			r.unit += parts[3]
			days, _ := strconv.Atoi(parts[4])
			if most, may := mostDays[r.unit]; parts[4] != "" && (!may || days > most) {
				return nil
			}
			ahead, _ := time.ParseDuration(parts[5] + "h" + parts[6] + "m") // 0 if there is none
			// What begins days later is a period of a clock that is as many days behind.
			r.zone = time.FixedZone("", int(ahead.Seconds())-days*86_400)
		}
	}
	if r.count == nil || r.length == nil || r.length.Sign() == 0 {
		return nil
	}
	return r
}
