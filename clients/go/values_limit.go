package tokenbucket

import (
	"strconv"
	"strings"
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

// isCalendar returns whether tokens come at boundaries of the calendar, and not all the time.
func (l Limit) isCalendar() bool { return strings.Contains(l.Rate, "@") }

// fillTime is how long an empty bucket takes to fill. ok is false where it never does, or the limit is wrong.
func (l Limit) fillTime() (duration time.Duration, ok bool) {
	return local.FillTime(tokens(l.Capacity), l.Rate)
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
