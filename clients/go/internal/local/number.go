package local

import (
	"math/big"
	"regexp"
	"strings"
)

// MostTokens is the largest amount that the server reads.
const MostTokens = 1e12

const longestNumber = 128

var decimal = regexp.MustCompile(`^\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$`)

// mostDigits bounds exponents: longer ones would exhaust the memory of this machine.
const mostDigits = 3

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
