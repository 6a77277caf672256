// Package resp is pipes on connections that a client library has opened.
package resp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"tokenbucket"
)

// pipe keeps what has arrived of a reply when Receive is interrupted.
type pipe struct {
	conn   net.Conn
	end    func() error
	out    []byte
	buffer []byte
	unread []byte // of the buffer
}

// NewPipe takes over a connection that has greeted the server in RESP2, where all messages are replies. end closes it.
// A connection without deadlines could not be interrupted: NewPipe then closes it and returns the error.
func NewPipe(conn net.Conn, end func() error) (tokenbucket.Pipe, error) {
	if err := conn.SetDeadline(time.Time{}); err != nil {
		_ = end()
		return nil, err
	}
	return &pipe{conn: conn, end: end, buffer: make([]byte, 4096)}, nil
}

var _ tokenbucket.InterruptiblePipe = (*pipe)(nil)

func (p *pipe) Send(args ...any) error {
	p.out = append(strconv.AppendInt(append(p.out[:0], '*'), int64(len(args)), 10), "\r\n"...)
	for _, arg := range args {
		word := arg.(string)
		p.out = strconv.AppendInt(append(p.out, '$'), int64(len(word)), 10)
		p.out = append(append(append(p.out, "\r\n"...), word...), "\r\n"...)
	}
	_, err := p.conn.Write(p.out)
	return err
}

func (p *pipe) Close() error { return p.end() }

var longAgo = time.Unix(1, 0)

func (p *pipe) Interrupt() { _ = p.conn.SetReadDeadline(longAgo) }

// Receive reads the replies that the commands on a pipe have: numbers, arrays of them, and errors.
func (p *pipe) Receive() (any, error) {
	for {
		reply, rest, err := parse(p.unread)
		if err == nil {
			p.unread = rest
			if line, isError := reply.(serverError); isError {
				return nil, line
			}
			return reply, nil
		}
		if err != errIncomplete {
			return nil, err
		}
		if err := p.readMore(); err != nil {
			return nil, err
		}
	}
}

func (p *pipe) readMore() error {
	kept := copy(p.buffer, p.unread)
	if kept == len(p.buffer) {
		p.buffer = append(p.buffer, make([]byte, kept)...)
	}
	n, err := p.conn.Read(p.buffer[kept:])
	p.unread = p.buffer[:kept+n]
	switch {
	case n > 0:
		return nil // an error comes again
	case errors.Is(err, os.ErrDeadlineExceeded):
		if err := p.conn.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
		return tokenbucket.ErrInterrupted
	}
	return err
}

// serverError is a line of the server.
type serverError string

func (e serverError) Error() string { return string(e) }

var (
	errIncomplete = errors.New("more has to arrive")
	lineEnd       = []byte("\r\n")
)

// parse reads one reply, and returns what is behind it.
func parse(from []byte) (reply any, rest []byte, err error) {
	line, rest, isWhole := bytes.Cut(from, lineEnd)
	if !isWhole {
		return nil, nil, errIncomplete
	}
	if len(line) == 0 {
		return nil, nil, errors.New("resp: an empty line")
	}
	kind, text := line[0], string(line[1:])
	if kind == '-' {
		return serverError(text), rest, nil
	}
	number, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil:
		return nil, nil, err
	case kind == ':':
		return number, rest, nil
	case kind == '*' && number >= 0:
		return parseArray(number, rest)
	}
	return nil, nil, fmt.Errorf("resp: a reply begins with %q", kind)
}

func parseArray(length int64, from []byte) (reply any, rest []byte, err error) {
	elements := make([]any, length)
	for i := range elements {
		if elements[i], from, err = parse(from); err != nil {
			return nil, nil, err
		}
		if line, isError := elements[i].(serverError); isError {
			return nil, nil, fmt.Errorf("resp: in an array: %v", line) // no reply to the command
		}
	}
	return elements, from, nil
}
