package local

import (
	"fmt"
	"math/big"
	"regexp"
	"strings"
	"sync"
)

const (
	// MostTokens is the largest amount that the server reads.
	MostTokens    = 1e12
	longestNumber = 128
	// mostDigits bounds exponents: longer ones would exhaust the memory of this machine.
	mostDigits = 3
)

var decimal = regexp.MustCompile(`^\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$`)

// parseNumber reads a number as the server does; nil if it is none, or below 0. The server reads at most 128 bytes.
func parseNumber(text string) *big.Rat {
	if len(text) > longestNumber || !decimal.MatchString(text) {
		return nil
	}
	if at := strings.IndexAny(text, "eE"); at >= 0 {
		switch exponent := strings.TrimLeft(text[at+1:], "+-0"); {
		case len(exponent) <= mostDigits:
		case text[at+1] == '-':
			text = text[:at] + "e-999" // as near to 0
		default:
			return nil
		}
	}
	parsed, _ := new(big.Rat).SetString(text)
	return parsed
}

var (
	one      = big.NewRat(1, 1)
	half     = big.NewRat(1, 2)
	most     = big.NewRat(MostTokens, 1)
	millions = big.NewRat(1_000_000, 1)
	// floatNoise is what a float is off by, in millionths of a token.
	floatNoise = big.NewRat(1, 1_000_000)
)

// rounded reads an amount to the millionth of a token that it is meant to be, if a float alone makes the difference, or else to
// the one above or below; nil if it is none.
func rounded(text string, isUp bool) *big.Rat {
	amount := parseNumber(text)
	if amount == nil || amount.Cmp(most) > 0 {
		return nil
	}
	amount.Mul(amount, millions)
	meant := whole(new(big.Rat).Add(amount, half))
	if off := new(big.Rat).Sub(amount, meant); off.Abs(off).Cmp(floatNoise) > 0 {
		meant = whole(amount)
		if isUp && meant.Cmp(amount) < 0 {
			meant.Add(meant, one)
		}
	}
	return meant.Quo(meant, millions)
}

var (
	roundedDown = newCache(func(text string) *big.Rat { return rounded(text, false) })
	roundedUp   = newCache(func(text string) *big.Rat { return rounded(text, true) })
)

// amountOf must not be changed: it is cached.
func amountOf(what, text string, as *cache[*big.Rat]) (*big.Rat, error) {
	if amount := as.of(text); amount != nil {
		return amount, nil
	}
	return nil, fmt.Errorf("ERR %s must be a decimal number of tokens from 0 to 1e12", what)
}

// whole rounds down: big.Int's Div does for a positive divisor.
func whole(ratio *big.Rat) *big.Rat {
	return new(big.Rat).SetInt(new(big.Int).Div(ratio.Num(), ratio.Denom()))
}

// saturated is where numbers saturate, as in the server.
const saturated = 1 << 62

// floor rounds down, and saturates.
func floor(ratio *big.Rat) int64 {
	switch number := whole(ratio).Num(); {
	case number.IsInt64() && number.Int64() < saturated:
		return number.Int64()
	case number.Sign() < 0:
		return -saturated
	}
	return saturated
}

func ceil(ratio *big.Rat) int64 { return -floor(new(big.Rat).Neg(ratio)) }

// cache has what was read lately: the same limits and costs come again and again, and exact arithmetic takes long.
type cache[V any] struct {
	read  func(string) V
	mutex sync.Mutex
	known map[string]V
}

const mostCached = 1000

func newCache[V any](read func(string) V) *cache[V] {
	return &cache[V]{read: read, known: map[string]V{}}
}

func (c *cache[V]) of(text string) V {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	value, ok := c.known[text]
	if !ok {
		if len(c.known) >= mostCached {
			c.known = map[string]V{}
		}
		value = c.read(text)
		c.known[text] = value
	}
	return value
}
