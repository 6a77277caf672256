package tokenbucket

import (
	"errors"
	"io"
	"net"
	"regexp"
	"strings"
	"syscall"
)

type fault int

const (
	// The call is wrong, or may not be made: it would be the next time as well.
	faultOfCaller fault = iota
	// Nobody answers, or nobody who decides.
	faultOfServer
	// The server is there and refuses this write, which says nothing about the next.
	faultOfWrite
)

// By the first word of the server's line.
var faults = map[string]fault{
	"LOADING": faultOfServer, "BUSY": faultOfServer, "MASTERDOWN": faultOfServer, "CLUSTERDOWN": faultOfServer, "UNKILLABLE": faultOfServer,
	"MOVED": faultOfServer, "ASK": faultOfServer,
	"OOM": faultOfWrite, "READONLY": faultOfWrite, "MISCONF": faultOfWrite, "NOREPLICAS": faultOfWrite, "TRYAGAIN": faultOfWrite,
}

const tooManyClients = "ERR max number of clients"

func faultOf(err error) fault {
	if errors.Is(err, ErrModuleMissing) || errors.Is(err, errReply) {
		return faultOfCaller
	}
	line, ok := serverLine(err)
	if !ok || strings.HasPrefix(line, tooManyClients) {
		return faultOfServer
	}
	return faults[strings.SplitN(line, " ", 2)[0]]
}

var code = regexp.MustCompile(`^[A-Z][A-Z0-9]* `)

// serverLine is what the server replied, if it was the server. Client libraries have a type of their own for that; what
// they share is that the error's text is the server's, perhaps behind some words of their own.
func serverLine(err error) (string, bool) {
	for ; err != nil; err = errors.Unwrap(err) {
		if code.MatchString(err.Error()) {
			return err.Error(), true
		}
	}
	return "", false
}

func isUnknownCommand(err error) bool {
	line, _ := serverLine(err)
	return strings.HasPrefix(line, "ERR unknown command")
}

func isCrossSlot(err error) bool {
	line, _ := serverLine(err)
	return strings.HasPrefix(line, "CROSSSLOT ")
}

func isUnknownScript(err error) bool {
	line, _ := serverLine(err)
	return strings.HasPrefix(line, "NOSCRIPT ")
}

// isBroken tells a connection that was there and ended from a server that cannot be reached.
func isBroken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// ignoreDenial: a user who may not PING has reached the server all the same. What it may do, the command itself finds out.
func ignoreDenial(err error) error {
	if line, ok := serverLine(err); ok && faultOf(err) == faultOfCaller && !strings.HasPrefix(line, "WRONGPASS") {
		return nil
	}
	return err
}
