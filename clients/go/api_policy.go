package tokenbucket

import (
	"errors"
	"strconv"
	"time"
)

// Policy is what a limiter does while the server cannot be asked.
type Policy int

const (
	// FailLocal enforces the same limit in the memory of this process, for up to 10,000 names. It is the policy unless set
	// otherwise. An outage lets at most one more bucket through in each process.
	FailLocal Policy = iota
	// FailOpen lets everything through.
	FailOpen
	// FailClosed lets nothing through.
	FailClosed
	// FailWithError leaves it to the caller, who gets ErrServerAway or ErrReplyLost.
	FailWithError
)

// without decides by the policy what the server did not decide, in the shape of the server's reply.
func (s settings) without(server *Server, c command, err error) (reply any, lost bool, failure error) {
	var away *awayError
	if !errors.As(err, &away) {
		return nil, false, err
	}
	server.degraded.Add(1)
	reply, failure = s.policyReply(server, c.args, err)
	elements, ok := reply.([]any)
	if isLetThrough := ok && elements[0].(int64) > 0; !isLetThrough || c.args[0] == "TB.MSETTLE" {
		server.settleLost(c, err)
	}
	return reply, away.lost, failure
}

func (s settings) policyReply(server *Server, args []any, err error) (any, error) {
	switch s.policy {
	case FailLocal:
		reply, wrong := server.decideLocally(args)
		if wrong != nil {
			return nil, badArgument("%s (decided here, the server is away)", wrong)
		}
		return reply, nil
	case FailOpen:
		granted := int64(1)
		if args[0] == "TB.TAKEUPTO" {
			granted, _ = strconv.ParseInt(args[4].(string), 10, 64)
		}
		return []any{granted, int64(0), int64(0), int64(0)}, nil
	case FailClosed:
		retry := (server.settings.retryEvery + time.Millisecond - 1) / time.Millisecond
		return []any{int64(0), int64(0), int64(retry), int64(0)}, nil
	}
	return nil, err
}

// decideLocally forgets nothing when the server is back: outages that follow each other share one bucket.
func (s *Server) decideLocally(args []any) (any, error) {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = arg.(string)
	}
	return s.local.Do(time.Duration(s.clock.Now().UnixNano()), words)
}
