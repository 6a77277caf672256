package realserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"tokenbucket"
)

// address is a Doer that opens a connection for each command, so that the client needs no client library.
type address string

func (a address) Do(ctx context.Context, args ...any) (any, error) {
	var dialer net.Dialer
	dialled, err := dialer.DialContext(ctx, "tcp", string(a))
	if err != nil {
		return nil, err
	}
	defer dialled.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = dialled.SetDeadline(deadline)
	}
	command := fmt.Sprintf("*%d\r\n", len(args))
	for _, arg := range args {
		word := fmt.Sprint(arg)
		command += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := io.WriteString(dialled, command); err != nil {
		return nil, err
	}
	return read(bufio.NewReader(dialled))
}

func read(reader *bufio.Reader) (any, error) {
	line, err := reader.ReadString('\n')
	if err != nil {
		return nil, err
	}
	kind, text := line[0], strings.TrimSuffix(line[1:], "\r\n")
	switch kind {
	case '+':
		return text, nil
	case '-':
		return nil, errors.New(text)
	}
	number, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil || kind == ':':
		return number, err
	case number < 0:
		return nil, nil
	case kind == '$':
		bytes := make([]byte, number+2)
		_, err = io.ReadFull(reader, bytes)
		return string(bytes[:number]), err
	}
	elements := make([]any, number)
	for i := range elements {
		if elements[i], err = read(reader); err != nil {
			return nil, err
		}
	}
	return elements, nil
}

// Doer asks it.
func (s *Server) Doer() tokenbucket.Doer { return address(s.Address()) }

// Limits asks it. Its timeout lets a slow machine answer.
func (s *Server) Limits(options ...tokenbucket.ServerOption) *tokenbucket.Server {
	all := append([]tokenbucket.ServerOption{tokenbucket.Timeout(5 * time.Second)}, options...)
	return tokenbucket.NewServer(s.Doer(), all...)
}

// Do sends a command beside all limiters.
func (s *Server) Do(args ...any) any {
	s.t.Helper()
	reply, err := address(s.Address()).Do(context.Background(), args...)
	if err != nil {
		s.t.Fatalf("%v: %v", args[0], err)
	}
	return reply
}
