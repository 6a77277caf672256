package tokenbucket

import (
	"strconv"
	"time"

	"tokenbucket/internal/rules"
)

// CallOption sets an option of one call.
type CallOption func(*command)

// MaxWait lets a call that would be denied wait in the server for its turn, at most maxWait. Calls that wait for the same
// bucket are served in the order in which they came. When the time is over, the decision is the denial of that moment.
//
// The call leaves the queue when its context ends. Batch and RememberDenials do not apply to it. While the server is away,
// OnError decides without a wait. Where the module cannot keep the call (ByScript, an older module, a Doer that is no
// WaitingDoer) the package asks again after each RetryAfter, in no order.
func MaxWait(maxWait time.Duration) CallOption {
	return func(c *command) {
		if c.maxWait = maxWait; maxWait > rules.Longest {
			c.wrong = badArgument("max wait: a call waits at most 30 days, not %v", maxWait)
		}
	}
}

// Share lets a call with MaxWait wait as one of a tenant: tenants that wait for the same bucket get tokens in proportion to
// their weights, so that many waiting calls of one do not hold up another. Within a tenant, calls are served in the order in
// which they came. Calls without Share are one tenant of weight 1.
//
// The tenant is of 1 to 128 bytes, the weight from 0.001 to 1000, kept to millionths. Anything else is ErrBadArgument,
// and so is a share of a call of several buckets. It has no effect without MaxWait.
func Share(tenant string, weight float64) CallOption {
	word := strconv.FormatFloat(weight, 'f', -1, 64)
	return func(c *command) {
		c.share = []any{"SHARE", tenant, "WEIGHT", word}
		switch {
		case len(tenant) < 1 || len(tenant) > rules.MostTenantBytes:
			c.wrong = badArgument("share: a tenant is of 1 to 128 bytes, not %d", len(tenant))
		case !(weight >= rules.LeastWeight && weight <= rules.MostWeight):
			c.wrong = badArgument("weight: %v is not a number from 0.001 to 1000", weight)
		}
	}
}

func (c command) with(options []CallOption) command {
	for _, option := range options {
		option(&c)
	}
	return c
}
