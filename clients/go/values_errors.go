package tokenbucket

import (
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"syscall"
)

// ErrTokenBucket matches every error of this package, by errors.Is.
var ErrTokenBucket = errors.New("tokenbucket")

var (
	// ErrServerAway is the error of a call that the server did not decide, under FailWithError.
	ErrServerAway = fmt.Errorf("%w: the server is away", ErrTokenBucket)
	// ErrReplyLost is the error of a Give, Charge or Settle whose reply was lost, under FailWithError: the server may or may
	// not have executed it.
	ErrReplyLost = fmt.Errorf("%w: the reply was lost, the call may or may not have happened", ErrTokenBucket)
	// ErrModuleMissing says that the call needs the tokenbucket module, which the server has not loaded or ByScript rules out.
	ErrModuleMissing = fmt.Errorf("%w: the server has no tokenbucket module", ErrTokenBucket)
	// ErrBadArgument says that an argument of the call is wrong. The text says which.
	ErrBadArgument = fmt.Errorf("%w: bad argument", ErrTokenBucket)
	// ErrClosed says that the Server was closed before the call.
	ErrClosed = fmt.Errorf("%w: the Server is closed", ErrTokenBucket)
)

// wrongError is a call that is refused, and would be the next time as well.
type wrongError struct {
	text  string
	kind  error
	cause error // the client's
}

func (e *wrongError) Error() string { return "tokenbucket: " + e.text }

func (e *wrongError) Unwrap() error { return e.cause }

func (e *wrongError) Is(target error) bool { return errors.Is(e.kind, target) }

func (n *node) wrong(err error) error {
	if errors.Is(err, ErrTokenBucket) {
		return err
	}
	text, kind := serverLine(err), ErrTokenBucket
	switch codeOf(err) {
	case "MOVED", "ASK":
		text = "this is a node of a cluster: use the cluster client of the client library"
	case "ERR":
		kind = ErrBadArgument
	case "":
		text = err.Error()
	}
	return &wrongError{text + " (" + n.who + ")", kind, err}
}

func badArgument(format string, args ...any) error {
	return &wrongError{text: fmt.Sprintf(format, args...), kind: ErrBadArgument}
}

// awayError is a call that the server did not decide.
type awayError struct {
	server string
	cause  error
	lost   bool // it was sent, must happen once, and may or may not have happened
}

func (e *awayError) Error() string { return fmt.Sprintf("%v: %s: %v", e.kind(), e.server, e.cause) }

func (e *awayError) kind() error {
	if e.lost {
		return ErrReplyLost
	}
	return ErrServerAway
}

func (e *awayError) Is(target error) bool { return errors.Is(e.kind(), target) }

func (e *awayError) Unwrap() error { return e.cause }

func awayOf(err error) (away *awayError) {
	errors.As(err, &away)
	return away
}

var (
	errAway   = errors.New("it did not answer lately")
	errSilent = errors.New("nothing came from it in time")
	errBusy   = errors.New("too many calls are under way")
)

// Unsent marks the error of a command that did not leave this process.
func Unsent(err error) error { return &clientError{err, true} }

// Unanswered marks the error of a command that the server did not reply to, however its text begins.
func Unanswered(err error) error { return &clientError{err, isUnsent(err)} }

// clientError is not the server's.
type clientError struct {
	cause    error
	isUnsent bool
}

func (e *clientError) Error() string { return e.cause.Error() }
func (e *clientError) Unwrap() error { return e.cause }

func isUnsent(err error) bool {
	var own *clientError
	var operation *net.OpError
	return errors.As(err, &own) && own.isUnsent || errors.As(err, &operation) && operation.Op == "dial"
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// isBroken tells a connection that was there and ended from a server that cannot be reached.
func isBroken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// isMistake tells a connection that cannot be made, for reasons that waiting does not change, such as a wrong certificate.
func isMistake(err error) bool {
	var address *net.AddrError
	var network net.UnknownNetworkError
	if errors.As(err, &address) || errors.As(err, &network) {
		return true
	}
	return textOf(err, ofTLS) != "" && !isTimeout(err)
}

type fault int

const (
	faultOfCaller fault = iota // the call is wrong, or may not be made: it would be the next time as well
	faultOfServer              // it does not answer, or does not decide
	faultOfWrite               // the server refuses this write, which says nothing about the next
	faultOfClient              // there is no connection for this call
)

// By the first word of the server's line.
var faults = map[string]fault{
	"LOADING": faultOfServer, "BUSY": faultOfServer, "MASTERDOWN": faultOfServer, "CLUSTERDOWN": faultOfServer, "UNKILLABLE": faultOfServer,
	"OOM": faultOfWrite, "READONLY": faultOfWrite, "MISCONF": faultOfWrite, "NOREPLICAS": faultOfWrite, "TRYAGAIN": faultOfWrite,
	"UNBLOCKED": faultOfWrite,
}

// lacks are what a process or its machine can run out of.
var lacks = []error{errBusy, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EADDRNOTAVAIL, syscall.EAGAIN}

func faultOf(err error) fault {
	for _, lack := range lacks {
		if errors.Is(err, lack) {
			return faultOfClient
		}
	}
	switch line := serverLine(err); {
	case err == nil || errors.Is(err, ErrModuleMissing) || errors.Is(err, ErrBadArgument) || errors.Is(err, errReply) || isMistake(err):
		return faultOfCaller
	case textOf(err, ofFull) != "":
		return faultOfClient
	case line == "":
		return faultOfServer
	case strings.HasSuffix(line, "Hash slot not served"): // by any node: this one serves its own
		return faultOfWrite
	}
	return faults[codeOf(err)]
}

var (
	ofServer = regexp.MustCompile(`^[A-Z][A-Z0-9]* `)
	ofFull   = regexp.MustCompile(`^ERR max number of clients`)     // perhaps before a command is sent
	ofTLS    = regexp.MustCompile(`^(remote error: )?(tls|x509): `) // most have no other mark
)

// textOf returns the first text that matches, of the error or one behind it, or "".
func textOf(err error, pattern *regexp.Regexp) string {
	for ; err != nil; err = errors.Unwrap(err) {
		if text := err.Error(); pattern.MatchString(text) {
			return text
		}
	}
	return ""
}

// serverLine is what the server replied; "" if it was not the server. Client libraries have a type of their own for that. They
// share that the error's text is the server's, perhaps behind some words of their own.
func serverLine(err error) string {
	if err == nil {
		return "" // what As fills would cost memory
	}
	var own *clientError
	var network net.Error
	if errors.As(err, &own) || errors.As(err, &network) {
		return ""
	}
	return textOf(err, ofServer)
}

// codeOf returns the first word of the server's line; "" if the server replied no error.
func codeOf(err error) string {
	code, _, _ := strings.Cut(serverLine(err), " ")
	return code
}

func isServerLine(err error) bool { return serverLine(err) != "" }

func isUnknownCommand(err error) bool {
	return strings.HasPrefix(serverLine(err), "ERR unknown command")
}
