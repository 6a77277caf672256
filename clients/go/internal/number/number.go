// Package number reads numbers as the server does.
package number

import (
	"math/big"
	"regexp"
	"strings"
)

var decimal = regexp.MustCompile(`^\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$`)

// Parse is nil for what is not a number of at least 0. The server takes no more than 128 bytes; an exponent of more than
// three digits would take this machine's memory.
func Parse(text string) *big.Rat {
	exponent := strings.IndexAny(text, "eE")
	if len(text) > 128 || exponent >= 0 && len(text)-exponent > 5 || !decimal.MatchString(text) {
		return nil
	}
	parsed, _ := new(big.Rat).SetString(text)
	return parsed
}
