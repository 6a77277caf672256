package tokenbucket

import (
	"context"
	"crypto/sha1"
	_ "embed" // for the script
	"encoding/hex"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	betweenLooksForModule = time.Minute
	scriptSuffix          = ":script"
)

// A copy of clients/fallback.lua, made by `make fallback.lua`: a package of Go embeds only files of its own folder.
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

	mutex  sync.Mutex
	needed bool
	until  time.Time // when the module is looked for again
}

func (s *script) inUse(now time.Time) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.needed && now.Before(s.until)
}

func (s *script) begin(now time.Time, logf func(string, ...any)) {
	s.mutex.Lock()
	wasNeeded := s.needed
	s.needed, s.until = true, now.Add(betweenLooksForModule)
	s.mutex.Unlock()
	if !wasNeeded {
		logf("tokenbucket: %s has no tokenbucket module, the script decides until it has", s.who)
	}
}

// end is told of an answer by the module.
func (s *script) end(logf func(string, ...any), answered bool) {
	if !answered {
		return
	}
	s.mutex.Lock()
	wasNeeded := s.needed
	s.needed = false
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

func (s *Server) runScript(ctx context.Context, words []string) (any, error) {
	arguments := scriptArguments(words)
	reply, err := s.do(ctx, append([]string{"EVALSHA", sha}, arguments...))
	if isUnknownScript(err) {
		return s.do(ctx, append([]string{"EVAL", source}, arguments...))
	}
	return reply, err
}

// scriptArguments are those of a command as the script takes them: the keys first, under names of their own.
func scriptArguments(words []string) []string {
	keys, rest := words[1:2], words[2:]
	if words[0] == "TB.MTAKE" {
		keys, rest = nil, nil
		for i, word := range words[2:] {
			if i%4 == 0 {
				keys = append(keys, word)
			} else {
				rest = append(rest, word)
			}
		}
	}
	arguments := []string{strconv.Itoa(len(keys))}
	for _, key := range keys {
		arguments = append(arguments, key+scriptSuffix)
	}
	arguments = append(arguments, strings.TrimPrefix(words[0], "TB."))
	return append(arguments, rest...)
}
