package local

import (
	"math/big"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// rate is how tokens come. Moments are since 1970.
type rate struct {
	flow   *big.Rat      // tokens a nanosecond, of a calendar rate on average; 0: a pool
	usual  *big.Rat      // the length of a period in bounds, in nanoseconds: a month is the 1,200th part of a century
	count  *big.Rat      // the tokens at each boundary of the calendar; nil: they come all the time
	length time.Duration // of a period
	months int64         // in a period; 0: all are of that length
	days   int           // by which a period of months begins after the first, at most on the month's last day
	ahead  time.Duration // how far ahead of UTC the clock is that its periods follow
}

const (
	day     = 24 * time.Hour
	century = 36_525 * day
	// farthest is from UTC.
	farthest = 14 * time.Hour
	// beforeMonday is how much of a week had passed when 1970 began, on a Thursday.
	beforeMonday = 4 * day
)

// units are of rates. A month counts 30 days, a quarter 90, a year 365.
var units = map[string]struct {
	length   time.Duration
	months   int64
	mostDays int // by which a period may begin later
}{
	"": {length: time.Second}, "ms": {length: time.Millisecond}, "s": {length: time.Second}, "m": {length: time.Minute},
	"h": {length: time.Hour}, "d": {length: day}, "w": {7 * day, 0, 6}, "mo": {30 * day, 1, 30}, "3mo": {90 * day, 3, 30},
	"y": {365 * day, 12, 0},
}

var form = regexp.MustCompile(`^([^/@]*)(?:/(.*?)(ms|[smhd])|` +
	`(@)(?:(\d*)(ms|[smhd])|(w|mo|3mo|y))(?:\+(\d\d?)d)?(?:([+-]\d\d):(\d\d))?)?$`)

// IsPool returns whether tokens come back only from holds.
func IsPool(rate string) bool {
	r := rateOf(rate)
	return r != nil && r.isPool()
}

// FillTime is how long an empty bucket takes to fill; false if it never does, or the limit is wrong.
func FillTime(capacity, rate string) (time.Duration, bool) {
	amount, err := amountOf("capacity", capacity, down)
	r := rateOf(rate)
	if err != nil || r == nil || r.isPool() {
		return 0, false
	}
	return time.Duration(floor(r.timeOf(amount))), true
}

// mostRates bounds those that are kept: few come again and again, and reading one takes long.
const mostRates = 1000

var rates struct {
	sync.Mutex
	known map[string]*rate
}

func rateOf(text string) *rate {
	rates.Lock()
	defer rates.Unlock()
	known, ok := rates.known[text]
	if !ok {
		if rates.known == nil || len(rates.known) >= mostRates {
			rates.known = map[string]*rate{}
		}
		known = readRate(text)
		rates.known[text] = known
	}
	return known
}

// readRate returns nil for what is no rate.
func readRate(text string) *rate {
	parts := form.FindStringSubmatch(text)
	if parts == nil {
		return nil
	}
	count, number := parseNumber(parts[1]), parts[2]+parts[5]
	word, isCalendar := parts[3]+parts[6]+parts[7], parts[4] != ""
	unit := units[word]
	if number == "" {
		number = "1"
	}
	length := parseNumber(number)
	if count == nil || length == nil || length.Sign() == 0 || count.Sign() == 0 && word != "" {
		return nil
	}
	length.Mul(length, nanoseconds(unit.length))
	r := &rate{flow: new(big.Rat).Quo(count, length)}
	if r.isPool() {
		return r
	}
	if r.usual = length; unit.months > 0 {
		r.usual = nanoseconds(century / 1200 * time.Duration(unit.months))
	}
	if isCalendar {
		if count, _ = amountOf("count", parts[1], down); count == nil {
			return nil
		}
	}
	second, longest := nanoseconds(time.Second), nanoseconds(century)
	perSecond := new(big.Rat).Mul(count, new(big.Rat).Quo(second, r.usual))
	if perSecond.Cmp(new(big.Rat).Quo(second, longest)) < 0 || perSecond.Cmp(most) > 0 {
		return nil
	}
	if isCalendar {
		r.count, r.length, r.months = count, time.Duration(floor(length)), unit.months
		days, _ := strconv.Atoi(parts[8])
		r.ahead, _ = time.ParseDuration(parts[9] + "h" + parts[10] + "m") // 0 if there is none
		if parts[8] != "" && unit.mostDays == 0 || days > unit.mostDays || parts[10] > "59" || r.ahead.Abs() > farthest || r.usual.Cmp(longest) > 0 {
			return nil
		}
		switch {
		case r.months > 0:
			r.days = days
		case word == "w":
			// A week that begins days later is one of a clock that is as many days behind.
			r.ahead -= time.Duration(days)*day + beforeMonday
		}
	}
	return r
}

func (r *rate) isPool() bool { return r.flow.Sign() == 0 }

// timeOf is how long so many tokens take, in nanoseconds.
func (r *rate) timeOf(tokens *big.Rat) *big.Rat { return new(big.Rat).Quo(tokens, r.flow) }

// fillsInTime returns whether an empty bucket is full within a century.
func (r *rate) fillsInTime(capacity *big.Rat) bool {
	if r.count == nil {
		return r.timeOf(capacity).Cmp(nanoseconds(century)) <= 0
	}
	periods := big.NewRat(ceil(new(big.Rat).Quo(capacity, r.count)), 1)
	return periods.Mul(periods, r.usual).Cmp(nanoseconds(century)) <= 0
}

// between is how many tokens come.
func (r *rate) between(since, until time.Duration) *big.Rat {
	if r.count == nil {
		return new(big.Rat).Mul(r.flow, nanoseconds(until-since))
	}
	boundaries := big.NewRat(r.period(until)-r.period(since), 1)
	return boundaries.Mul(boundaries, r.count)
}

// reaches is when so many tokens have come, in nanoseconds; nil if they never do.
func (r *rate) reaches(since time.Duration, tokens *big.Rat) *big.Rat {
	switch {
	case r.isPool():
		return nil
	case r.count == nil:
		return new(big.Rat).Add(nanoseconds(since), r.timeOf(tokens))
	}
	return r.begins(r.period(since) + ceil(new(big.Rat).Quo(tokens, r.count)))
}

// period is the number of the one in which a moment lies, counted without a gap.
func (r *rate) period(moment time.Duration) int64 {
	moment += r.ahead
	if r.months == 0 {
		return floor(big.NewRat(int64(moment), int64(r.length)))
	}
	clock := time.Unix(0, int64(moment)).UTC()
	months := clock.Year()*12 + int(clock.Month()) - 1
	if clock.Before(r.beginsIn(months)) {
		months--
	}
	return floor(big.NewRat(int64(months), r.months))
}

// beginsIn returns when a period begins in a month, which counts from the year 0.
func (r *rate) beginsIn(months int) time.Time {
	last := time.Date(0, time.Month(months+2), 0, 0, 0, 0, 0, time.UTC)
	if r.days+1 >= last.Day() {
		return last
	}
	return last.AddDate(0, 0, r.days+1-last.Day())
}

// latest keeps years within those that time.Time knows.
const latest = 12 * 200_000

func (r *rate) begins(period int64) *big.Rat {
	begins := new(big.Rat).Mul(big.NewRat(period, 1), nanoseconds(r.length))
	if r.months > 0 {
		month := latest
		if period < latest/r.months {
			month = int(period * r.months)
		}
		begins.Mul(big.NewRat(r.beginsIn(month).Unix(), 1), nanoseconds(time.Second))
	}
	return begins.Sub(begins, nanoseconds(r.ahead))
}

func nanoseconds(duration time.Duration) *big.Rat { return big.NewRat(int64(duration), 1) }
