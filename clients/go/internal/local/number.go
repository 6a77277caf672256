package local

import (
	"fmt"
	"math/big"
	"regexp"

	"tokenbucket/internal/rules"
)

const (
	longestNumber = 128
	// mostDigits bounds exponents: longer ones would exhaust the memory of this machine.
	mostDigits = 3
)

var decimal = regexp.MustCompile(`^(\+?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?)0*(\d+))?$`)

// parseNumber reads a number as the server does; nil if it is none, or below 0. The server reads at most 128 bytes.
func parseNumber(text string) *big.Rat {
	parts := decimal.FindStringSubmatch(text)
	if parts == nil || len(text) > longestNumber {
		return nil
	}
	if len(parts[3]) > mostDigits {
		if parts[2] != "-" {
			return nil
		}
		text = parts[1] + "e-999" // as near to 0
	}
	parsed, _ := new(big.Rat).SetString(text)
	return parsed
}

var (
	one      = big.NewRat(1, 1)
	half     = big.NewRat(1, 2)
	most     = big.NewRat(rules.MostTokens, 1)
	millions = big.NewRat(1_000_000, 1)
	// floatNoise is what a float is off by, in millionths of a token.
	floatNoise = big.NewRat(1, 1_000_000)
)

// up and down are how an amount is rounded.
const up, down = true, false

// amountOf reads an amount to the millionth of a token that it is meant to be, if a float alone makes the difference, or else to
// the one above or below.
func amountOf(what, text string, isUp bool) (*big.Rat, error) {
	amount := parseNumber(text)
	if amount == nil || amount.Cmp(most) > 0 {
		return nil, fmt.Errorf("ERR %s must be a decimal number of tokens from 0 to 1e12", what)
	}
	amount.Mul(amount, millions)
	meant := whole(new(big.Rat).Add(amount, half))
	if off := new(big.Rat).Sub(amount, meant); off.Abs(off).Cmp(floatNoise) > 0 {
		meant = whole(amount)
		if isUp && meant.Cmp(amount) < 0 {
			meant.Add(meant, one)
		}
	}
	return meant.Quo(meant, millions), nil
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
