package tokenbucket

import "time"

// The packages share these: clients/conformance/rules.json lists them.
const (
	defaultTimeout    = 100 * time.Millisecond
	defaultRetryEvery = 500 * time.Millisecond
	// connectWithin bounds opening a connection, and how long a call waits for its permit.
	connectWithin = time.Second
	// pulseEvery is how often a wait asks whether the server is there, if nothing was heard from it.
	pulseEvery  = 500 * time.Millisecond
	longestWait = 30 * 24 * time.Hour
	// triesOfSplitSlot is how often a call is sent within the timeout while some of its keys have moved with their slot.
	triesOfSplitSlot = 10
	// mostUnsettled bounds the holds that wait to be settled. The oldest makes room: it ends with its ttl.
	mostUnsettled = 1000
	// settledAgainAfter is how long a server may take to execute what it received on a connection that was closed.
	settledAgainAfter = 500 * time.Millisecond
)
