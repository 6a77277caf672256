package tokenbucket

import (
	"math"
	"strconv"
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

// small has the words of small whole amounts: a new one for each call would cost memory.
var small = func() (words [128]any) {
	for amount := range words {
		words[amount] = strconv.Itoa(amount)
	}
	return words
}()

func word(amount float64) any {
	if amount >= 0 && amount < float64(len(small)) && amount == math.Trunc(amount) {
		return small[int(amount)]
	}
	return tokens(amount)
}
