package tokenbucket

import (
	"math/big"
	"strconv"
	"time"

	"tokenbucket/internal/local"
)

// Limit is the capacity of a bucket, and the rate at which it refills. The server does not store it: a new limit counts from
// the next call.
type Limit struct {
	// Capacity is the largest number of tokens in the bucket, hence the largest burst: 0 to 10¹².
	Capacity float64
	// Rate is tokens per second ("5", "0.25"), a count per period ("100/m", "10/10s") or a count at each boundary of the
	// calendar ("1000@d", "1000@mo+14d+09:00"). "0" is a pool, whose tokens come back only from holds.
	Rate string
}

// IsCalendar returns whether tokens come at boundaries of the calendar, and not all the time.
func (l Limit) IsCalendar() bool { return local.IsCalendar(l.Rate) }

// TokensPerSecond returns the exact rate, or the average of a calendar rate. The server checks more bounds than this does.
func (l Limit) TokensPerSecond() (*big.Rat, error) { return local.TokensPerSecond(l.Rate) }

// timeFor is how long so many tokens take to flow in. ok is false where none do, or it is unknown.
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

// isPool returns whether tokens come back only from holds.
func (l Limit) isPool() bool {
	rate, err := l.TokensPerSecond()
	return err == nil && rate.Sign() == 0
}

func (l Limit) words() [2]any { return [2]any{tokens(l.Capacity), l.Rate} }

// tokens writes an amount as the server reads it.
func tokens(amount float64) string { return strconv.FormatFloat(amount, 'f', -1, 64) }

// smallCosts are the words of whole costs that most calls have.
var smallCosts = func() (words [257]any) {
	for i := range words {
		words[i] = strconv.Itoa(i)
	}
	return words
}()

func tokensWord(amount float64) any {
	if i := int(amount); float64(i) == amount && i >= 0 && i < len(smallCosts) {
		return smallCosts[i]
	}
	return tokens(amount)
}
