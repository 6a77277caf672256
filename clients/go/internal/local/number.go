package local

import (
	"math/big"
	"regexp"
	"strings"
)

const longestNumber = 128

var decimal = regexp.MustCompile(`^\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$`)

// parseNumber reads a number as the server does; nil if it is none, or below 0. The server reads at most 128 bytes. A
// longer exponent than three digits would exhaust the memory of this machine.
func parseNumber(text string) *big.Rat {
	exponent := strings.IndexAny(text, "eE")
	if len(text) > longestNumber || exponent >= 0 && len(text)-exponent > 5 || !decimal.MatchString(text) {
		return nil
	}
	parsed, _ := new(big.Rat).SetString(text)
	return parsed
}
