package local

import (
	"math/big"
	"time"
)

// flow is how tokens come. Moments are since 1970.
type flow interface {
	isPool() bool
	between(since, until time.Duration) *big.Rat
	// reaches is when so many tokens have come, in nanoseconds; false if they never do.
	reaches(since time.Duration, tokens *big.Rat) (*big.Rat, bool)
}

func flowOf(rate string) (flow, error) {
	if cached := flows.Of(rate); cached != nil {
		return cached, nil
	}
	_, err := TokensPerSecond(rate)
	return nil, err
}

// readFlow is nil for what is no rate.
func readFlow(text string) flow {
	r := parseRate(text)
	switch {
	case r == nil:
		return nil
	case r.zone == nil:
		perSecond, _ := TokensPerSecond(text)
		return steady{perSecond}
	case r.unit == "3mo":
		r.length.SetInt64(3)
		r.unit = "mo"
	case r.unit == "y":
		r.length.SetInt64(12)
		r.unit = "mo"
	}
	return calendarFlow{r.count, floor(r.length), r.unit, r.zone}
}

type steady struct{ perSecond *big.Rat }

func (s steady) isPool() bool { return s.perSecond.Sign() == 0 }

func (s steady) between(since, until time.Duration) *big.Rat {
	seconds := big.NewRat(int64(until-since), int64(time.Second))
	return seconds.Mul(seconds, s.perSecond)
}

func (s steady) reaches(since time.Duration, tokens *big.Rat) (*big.Rat, bool) {
	if s.isPool() {
		return nil, false
	}
	wait := new(big.Rat).Quo(tokens, s.perSecond)
	wait.Mul(wait, nanoseconds(time.Second))
	return wait.Add(wait, nanoseconds(since)), true
}

// calendarFlow is so many tokens at each boundary of a period of local time.
type calendarFlow struct {
	count  *big.Rat
	number int64 // of units in a period
	unit   string
	zone   *time.Location
}

func (c calendarFlow) isPool() bool { return false }

func (c calendarFlow) between(since, until time.Duration) *big.Rat {
	boundaries := big.NewRat(c.period(until)-c.period(since), 1)
	return boundaries.Mul(boundaries, c.count)
}

func (c calendarFlow) reaches(since time.Duration, tokens *big.Rat) (*big.Rat, bool) {
	periods := new(big.Rat).Quo(tokens, c.count)
	boundary := c.begins(c.period(since) - floor(periods.Neg(periods)))
	return new(big.Rat).Mul(big.NewRat(boundary.UnixMicro(), 1), nanoseconds(time.Microsecond)), true
}

// The first Monday of 1970: the year began on a Thursday.
const firstMonday = 5

// period is the number of the one in which a moment lies, counted without a gap.
func (c calendarFlow) period(moment time.Duration) int64 {
	local := time.Unix(0, int64(moment)).In(c.zone)
	if c.unit == "mo" {
		return floorDiv(int64(local.Year())*12+int64(local.Month())-1, c.number)
	}
	return floorDiv(local.UnixMicro()-c.origin().UnixMicro(), c.number*unitMs[c.unit]*1000)
}

func (c calendarFlow) begins(period int64) time.Time {
	if c.unit == "mo" {
		return time.Date(0, time.Month(period*c.number+1), 1, 0, 0, 0, 0, c.zone)
	}
	return time.UnixMicro(c.origin().UnixMicro() + period*c.number*unitMs[c.unit]*1000)
}

// origin is from where periods are counted that are always as long.
func (c calendarFlow) origin() time.Time {
	if c.unit == "w" {
		return time.Date(1970, 1, firstMonday, 0, 0, 0, 0, c.zone)
	}
	return time.Date(1970, 1, 1, 0, 0, 0, 0, c.zone)
}

func floorDiv(a, b int64) int64 { return floor(big.NewRat(a, b)) }
