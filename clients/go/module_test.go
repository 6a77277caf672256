package tokenbucket_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"tokenbucket"
)

func TestTheScriptDecidesOnANodeToWhichASlotMoves(t *testing.T) {
	var sent []any
	limits := tokenbucket.NewServer(doing(func(_ context.Context, args ...any) (any, error) {
		sent = append(sent, args[0])
		switch args[0] {
		case "EVALSHA": // it is redirected, and the node that the client library knows gets SCRIPT LOAD
			return nil, errors.New("NOSCRIPT No matching script.")
		case "DEL":
			sent = append(sent, args[1:]...)
		}
		return granted, nil
	}), tokenbucket.ByScript())
	limiter := tokenbucket.NewLimiter(limits, hourly, tokenbucket.OnError(tokenbucket.FailWithError))
	expectAllowed(t)(limiter.Take(ctx, "a", 1))
	if err := limiter.Reset(ctx, "a"); err != nil || fmt.Sprint(sent) != "[EVALSHA SCRIPT EVALSHA EVAL DEL tb:a:script]" {
		t.Fatal(sent, err)
	}
}
