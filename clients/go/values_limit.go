package tokenbucket

import "strconv"

// Limit is the capacity of a bucket, and the rate at which it refills. The server does not store it: a new limit counts from
// the next call.
type Limit struct {
	// Capacity is the largest number of tokens in the bucket, hence the largest burst: 0 to 10¹².
	Capacity float64
	// Rate is tokens per second ("5", "0.25"), a count per period ("100/m", "10/10s") or a count at each boundary of the
	// calendar ("1000@d", "1000@mo+14d+09:00"). "0" is a pool, whose tokens come back only from holds.
	Rate string
}

// words are those of commands.
func (l Limit) words() [2]any { return [2]any{tokens(l.Capacity), l.Rate} }

// isNothing returns whether the server takes an amount for nothing, as it does float noise.
func isNothing(amount float64) bool { return amount <= 1e-12 }

// tokens writes an amount in at most the 128 bytes that the server reads.
func tokens(amount float64) string {
	if whole := int64(amount); float64(whole) == amount { // also -0
		return strconv.FormatInt(whole, 10)
	}
	format := byte('f')
	if amount > 0 && amount < 1e-6 {
		format = 'e'
	}
	return strconv.FormatFloat(amount, format, -1, 64)
}
