package tokenbucket

import (
	"context"
	"crypto/sha1"
	_ "embed" // for the script
	"encoding/hex"
	"strconv"
	"strings"
	"sync/atomic"
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

var sha = func() string {
	sum := sha1.Sum([]byte(source))
	return hex.EncodeToString(sum[:])
}()

var (
	needsModule = map[string]bool{"TB.HOLD": true, "TB.MHOLD": true, "TB.MRENEW": true, "TB.SETTLE": true, "TB.MSETTLE": true}
	isScripted  = map[string]bool{
		"TB.TAKE": true, "TB.PEEK": true, "TB.TAKEUPTO": true, "TB.RESERVE": true, "TB.CHARGE": true, "TB.GIVE": true, "TB.MTAKE": true,
	}
)

// script says whether a node without the module runs a Lua script instead.
type script struct {
	needed atomic.Bool
	until  atomic.Int64 // when the module is looked for again, in Unix nanoseconds
}

func (n *node) usesScript() bool {
	return n.script.needed.Load() && n.server.clock.Now().UnixNano() < n.script.until.Load()
}

func (n *node) beginScript() {
	n.script.until.Store(n.server.clock.Now().Add(betweenLooksForModule).UnixNano())
	if !n.script.needed.Swap(true) {
		n.server.settings.logf("tokenbucket: %s has no tokenbucket module, the script decides until it has", n.who)
	}
}

// endScript is called when the module has answered.
func (n *node) endScript() {
	if n.script.needed.Load() && n.script.needed.Swap(false) {
		n.server.settings.logf("tokenbucket: %s has the tokenbucket module, the script decides no longer", n.who)
	}
}

// lookForModule lets the next call try the module: the server may be another.
func (n *node) lookForModule() { n.script.until.Store(0) }

// decideByScript needs no permission for EVAL.
func (s *Server) decideByScript(ctx context.Context, n *node, c command) (any, error) {
	byScript := c
	byScript.args = append([]any{"EVALSHA", sha}, scriptArguments(c.args)...)
	byScript.key = byScript.args[3].(string) // perhaps on another node
	reply, err := s.route(ctx, byScript)
	if codeOf(err) != "NOSCRIPT" {
		return reply, err
	}
	// The server may be another, and have the module.
	if reply, err := s.route(ctx, c); !isUnknownCommand(err) {
		if err == nil {
			n.endScript()
		}
		return reply, err
	}
	load := command{args: []any{"SCRIPT", "LOAD", source}, key: byScript.key}
	if _, err := s.route(ctx, load); err != nil {
		return nil, err
	}
	return s.route(ctx, byScript)
}

// scriptArguments orders the arguments of a command as the script takes them: the keys first, under names of their own.
func scriptArguments(args []any) []any {
	keys, rest := args[1:2], args[2:]
	if args[0] == "TB.MTAKE" {
		keys, rest = nil, nil
		for i, word := range args[2:] {
			if i%4 == 0 {
				keys = append(keys, word)
			} else {
				rest = append(rest, word)
			}
		}
	}
	arguments := []any{strconv.Itoa(len(keys))}
	for _, key := range keys {
		arguments = append(arguments, key.(string)+scriptSuffix)
	}
	arguments = append(arguments, strings.TrimPrefix(args[0].(string), "TB."))
	return append(arguments, rest...)
}
