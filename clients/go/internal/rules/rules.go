// Package rules has the constants and bounds that the packages of all languages share: clients/conformance/rules.json lists them.
package rules

import "time"

const (
	Timeout    = 100 * time.Millisecond
	RetryEvery = 500 * time.Millisecond
	// ConnectWithin bounds opening a connection, and how long a call waits for its permit.
	ConnectWithin = time.Second
	// Pulse is how often a wait asks whether the server is there, if nothing was heard from it.
	Pulse = 500 * time.Millisecond
	// MostRedirections ends following a slot that moves back and forth.
	MostRedirections = 16
	// TriesOfSplitSlot is how often a call is sent within the timeout while some of its keys have moved with their slot.
	TriesOfSplitSlot = 10
	// MostUnsettled bounds the holds that wait to be settled. The oldest makes room: it ends with its ttl.
	MostUnsettled = 1000
	// SettledAgainAfter is how long a server may take to execute what it received on a connection that was closed.
	SettledAgainAfter = 500 * time.Millisecond

	// Longest bounds waits in the server and the ttl of holds.
	Longest         = 30 * 24 * time.Hour
	MostTenantBytes = 128
	LeastWeight     = 0.001
	MostWeight      = 1000
	// MostTokens is the largest amount that the server reads.
	MostTokens = 1e12
)
