package tokenbucket

import "context"

// Doer sends a command by a client library and returns its reply: integers as int64, arrays as []any. The text of an error
// that the server replied is the server's line.
//
// Do runs in the caller's goroutine. It has to return at the deadline of the context, and must not repeat the command. The
// deadline is Timeout from the moment it is asked for, so ask for it when the command is written and when its reply is read.
// The context ends with the caller's: that may end a wait for a connection, but not the reading of a reply.
//
// Do wraps the error of a command that did not leave this process with Unsent, and other errors that are not the server's with
// Unanswered. An error that is ErrBadArgument is a mistake of the program under every policy.
type Doer interface {
	Do(ctx context.Context, args ...any) (any, error)
}

// PooledDoer is a Doer with connections of its own.
type PooledDoer interface {
	Doer
	// Address names the server in errors and in the log.
	Address() string
	// Connections returns how many commands it can send at a time; further ones wait.
	Connections() int
	// Close closes the connections. The Server calls it when it is closed.
	Close() error
}

// WaitingDoer is a Doer that lets calls wait in the server. With other Doers, a call with MaxWait asks again after each
// RetryAfter.
type WaitingDoer interface {
	Doer
	// Wait sends a command on a connection of its own, and waits for the reply as long as that takes: no timeout of the client
	// library applies, but that it connects within a second. When the context ends, it closes the connection and returns.
	Wait(ctx context.Context, args ...any) (any, error)
}

// ClusterDoer is a Doer whose client library knows the nodes of a cluster. Each node has outages and permits of its own.
type ClusterDoer interface {
	Doer
	// NodeOf returns the node that has a key, always the same Doer. Key "" is one as any other, of slot 0; the Server sends its
	// commands to that Doer.
	NodeOf(ctx context.Context, key string) (Doer, error)
	// Has returns whether a node that NodeOf returned is still of the cluster. The Server forgets the others.
	Has(node Doer) bool
	// DoFor sends a command to the node that has a key, and follows slots that move. Key "" stands for any node. It calls PassTo
	// before it sends the command to a node, whose Doer is the one that NodeOf would return.
	DoFor(ctx context.Context, key string, args ...any) (any, error)
}
