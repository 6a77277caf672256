package tokenbucket

import (
	"crypto/sha1"
	_ "embed" // for the script
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	betweenLooksForModule = time.Minute
	scriptSuffix          = ":script"
)

// A copy of clients/fallback.lua, because Go embeds neither links nor files outside of the package. `make lint` compares them.
//
//go:embed fallback.lua
var source string

var sha = fmt.Sprintf("%x", sha1.Sum([]byte(source)))

var isScripted = map[string]bool{
	"TB.TAKE": true, "TB.PEEK": true, "TB.TAKEUPTO": true, "TB.RESERVE": true, "TB.CHARGE": true, "TB.GIVE": true, "TB.MTAKE": true,
}

// scripted returns the command by which the script decides, perhaps on another node: first the keys, under names of their own.
func (c command) scripted() command {
	words, perKey := c.args[1:], len(c.args)
	if c.args[0] == "TB.MTAKE" {
		words, perKey = words[1:], 4
	}
	var keys, rest []any
	for i, word := range words {
		if i%perKey == 0 {
			keys = append(keys, word.(string)+scriptSuffix)
		} else {
			rest = append(rest, word)
		}
	}
	operation := strings.TrimPrefix(c.args[0].(string), "TB.")
	c.args = joined([]any{"EVALSHA", sha, strconv.Itoa(len(keys))}, keys, []any{operation}, rest)
	c.key = keys[0].(string)
	return c
}
