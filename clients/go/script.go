package tokenbucket

import (
	"crypto/sha1"
	_ "embed" // for the script
	"encoding/hex"
	"strconv"
	"strings"
	"sync"
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
	needsModule = map[string]bool{"TB.HOLD": true, "TB.MHOLD": true, "TB.SETTLE": true, "TB.MSETTLE": true}
	isScripted  = map[string]bool{
		"TB.TAKE": true, "TB.PEEK": true, "TB.TAKEUPTO": true, "TB.RESERVE": true, "TB.CHARGE": true, "TB.GIVE": true, "TB.MTAKE": true,
	}
)

// script is whether the commands are asked as a Lua script, of a server without the module.
type script struct {
	who string

	needed atomic.Bool // set under the mutex
	mutex  sync.Mutex
	until  time.Time // when the module is looked for again
}

func (s *script) inUse(clock Clock) bool {
	if !s.needed.Load() {
		return false
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return clock.Now().Before(s.until)
}

func (s *script) begin(now time.Time, logf func(string, ...any)) {
	s.mutex.Lock()
	wasNeeded := s.needed.Swap(true)
	s.until = now.Add(betweenLooksForModule)
	s.mutex.Unlock()
	if !wasNeeded {
		logf("tokenbucket: %s has no tokenbucket module, the script decides until it has", s.who)
	}
}

// end is told of an answer by the module.
func (s *script) end(logf func(string, ...any), answered bool) {
	if !answered || !s.needed.Load() {
		return
	}
	s.mutex.Lock()
	wasNeeded := s.needed.Swap(false)
	s.mutex.Unlock()
	if wasNeeded {
		logf("tokenbucket: %s has the tokenbucket module, the script decides no longer", s.who)
	}
}

// lookForModule lets the next call try the module: the server may be another.
func (s *script) lookForModule() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.until = time.Time{}
}

// runScript needs no right for EVAL, nor does loadScript.
func (s *Server) runScript(c *call) (any, error) {
	words := append([]any{"EVALSHA", sha}, scriptArguments(c.args)...)
	defer func(key string) { c.key = key }(c.key)
	c.key = words[3].(string)
	return s.send(c, words...)
}

func (s *Server) loadScript(c *call) (any, error) {
	key := c.key
	c.key = key + scriptSuffix
	_, err := s.send(c, "SCRIPT", "LOAD", source)
	c.key = key
	if err != nil {
		return nil, err
	}
	return s.runScript(c)
}

// scriptArguments are those of a command as the script takes them: the keys first, under names of their own.
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
