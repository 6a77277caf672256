package tokenbucket

import (
	"fmt"
	"hash/maphash"
	"math"
	"strconv"
	"time"

	"tokenbucket/internal/local"
)

// Never is the RetryAfter of a call that can never be allowed, because its cost is above the capacity.
const Never = -time.Millisecond

// Decision is what the server decided about a call, or the policy in its place.
type Decision struct {
	Allowed bool
	// Granted is the number of tokens that TakeUpTo took, or of the alternative that TakeAny took or HoldAny holds, from 1; 1 or 0
	// for other calls, as Allowed.
	Granted int64
	// Remaining is whole tokens left; negative while the bucket is in debt.
	Remaining int64
	// RetryAfter is the time until the same call is allowed, unless others take before, or Never. For Reserve: how long to
	// wait before acting. For Charge: until out of debt.
	RetryAfter time.Duration
	// ResetAfter is the time until the bucket is full.
	ResetAfter time.Duration
	// Degraded says that the policy decided, because the server was away.
	Degraded bool
	// Lost says that the reply to a Give, Charge or Settle was lost: the server may or may not have executed it.
	Lost bool
	// Shadowed says that the call was denied, and Shadow let it pass.
	Shadowed bool
	// Each has the decision of each limit of a JointLimiter; nil if FailOpen or FailClosed decided, or no alternative was granted. The other fields are
	// those of the limit that binds.
	Each map[string]Decision
}

// isGranted returns whether the server granted it, or the policy.
func (d Decision) isGranted() bool { return d.Allowed && !d.Shadowed }

// Headers returns RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers, and Retry-After.
//
// jitter 0.5 lengthens Retry-After by up to half, so that denied clients do not return together. Retry-After is left out
// where waiting does not help, and RateLimit of degraded decisions.
func (d Decision) Headers(limit Limit, name string, jitter float64) map[string]string {
	headers := make(map[string]string, 3)
	if !d.Degraded {
		quoted := `"` + name + `"`
		if float64(d.Remaining) <= limit.Capacity { // or an override counts
			headers["RateLimit-Policy"] = quoted + quota(limit)
		}
		left := d.Remaining
		if left < 0 {
			left = 0
		}
		value := quoted + ";r=" + strconv.FormatInt(left, 10)
		if d.ResetAfter >= 0 { // a pool is full when its holds are settled, whenever that is
			value += ";t=" + inSeconds(d.ResetAfter.Seconds())
		}
		headers["RateLimit"] = value
	}
	if !d.Allowed && d.RetryAfter > 0 {
		fraction := float64(new(maphash.Hash).Sum64()) / math.MaxUint64 // of a random seed
		headers["Retry-After"] = inSeconds(d.RetryAfter.Seconds() * (1 + math.Max(jitter, 0)*fraction))
	}
	return headers
}

// quota returns the parameters of a policy.
func quota(limit Limit) string {
	parameters := fmt.Sprintf(";q=%.0f", math.Floor(limit.Capacity))
	if window, ok := local.FillTime(tokens(limit.Capacity), limit.Rate); ok {
		parameters += ";w=" + inSeconds(window.Seconds())
	}
	return parameters
}

func inSeconds(seconds float64) string { return strconv.FormatInt(int64(math.Ceil(seconds)), 10) }

// milliseconds saturate, as the server's do: a wait can be longer than a Duration can hold (292 years).
func milliseconds(ms int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	if ms > most {
		ms = most
	}
	return time.Duration(ms) * time.Millisecond
}

var errReply = fmt.Errorf("%w: the reply is not a decision", ErrTokenBucket)

// parseDecision takes what a call returned. It reads the decision about each part too, if there are parts.
func parseDecision(reply any, err error, parts ...part) (Decision, error) {
	if err != nil {
		return Decision{}, err
	}
	elements, _ := reply.([]any)
	var numbers [4]int64
	for i := range numbers {
		ok := i < len(elements)
		if ok {
			numbers[i], ok = elements[i].(int64)
		}
		if !ok {
			return Decision{}, fmt.Errorf("%w: %v", errReply, reply)
		}
	}
	decision := Decision{
		Allowed:    numbers[0] > 0,
		Granted:    numbers[0],
		Remaining:  numbers[1],
		RetryAfter: milliseconds(numbers[2]),
		ResetAfter: milliseconds(numbers[3]),
	}
	if len(parts) == 0 {
		return decision, nil
	}
	own, _ := elements[len(elements)-1].([]any)
	if len(elements) == 4 {
		own = []any{reply} // of one bucket, TB.BTAKE and TB.BHOLD list none
	}
	if len(own) != len(parts) {
		return decision, fmt.Errorf("%w: %v", errReply, reply)
	}
	decision.Each = map[string]Decision{}
	for i, p := range parts {
		if decision.Each[p.which], err = parseDecision(own[i], nil); err != nil {
			break
		}
	}
	return decision, err
}
