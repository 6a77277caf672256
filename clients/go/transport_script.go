package tokenbucket

import (
	"context"
	"crypto/sha1"
	_ "embed" // for the script
	"fmt"
	"strconv"
	"strings"
)

const scriptSuffix = ":script"

// The script of all clients, which link to it, because Go embeds neither links nor files outside of the package.
//
//go:embed fallback.lua
var source string

var sha = fmt.Sprintf("%x", sha1.Sum([]byte(source)))

var isScripted = map[string]bool{
	"DEL": true, "TB.TAKE": true, "TB.PEEK": true, "TB.TAKEUPTO": true, "TB.RESERVE": true, "TB.CHARGE": true, "TB.GIVE": true,
	"TB.MTAKE": true,
}

func (s *Server) decideByScript(ctx context.Context, c command, name string) (any, error) {
	if !isScripted[name] || c.share != nil {
		return nil, &wrongError{"holds, shares and alternatives need the module, and this Server decides by the script", ErrModuleMissing, nil}
	}
	if s.clock == Clock(realClock{}) { // a fake decides as both
		c = c.scripted()
	}
	reply, n, err := s.call(ctx, c)
	if codeOf(err) == "NOSCRIPT" {
		if _, err = n.call(ctx, command{args: []any{"SCRIPT", "LOAD", source}}); err == nil {
			reply, _, err = s.call(ctx, c)
		}
	}
	if codeOf(err) == "NOSCRIPT" { // of the node to which the slot moves
		c.args[0], c.args[1] = "EVAL", source
		reply, _, err = s.call(ctx, c)
	}
	return reply, err
}

// scripted returns the form of a command for the script: first the keys, under names that the module never uses.
func (c command) scripted() command {
	if c.args[0] == "DEL" {
		c.key += scriptSuffix
		c.args = []any{"DEL", c.key}
		return c
	}
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
