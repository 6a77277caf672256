package goredis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
)

// pipe has the connection of a client that has greeted the server, and is not used for anything else.
type pipe struct {
	client *redis.Client
	conn   net.Conn
	reader *bufio.Reader
	buffer []byte
}

// Pipe lets the client library dial and greet the server. Its RESP2 has no messages but replies.
func (s *single) Pipe(ctx context.Context) (tokenbucket.Pipe, error) {
	options := *s.client.Options()
	if changesCredentials(options) {
		return nil, errors.New("goredis: the client may log in again on its connections at any time")
	}
	p := &pipe{}
	dial := options.Dialer
	options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		p.conn = conn
		return conn, err
	}
	options.Protocol, options.PoolSize, options.MinIdleConns, options.MaxIdleConns = 2, 1, 0, 0
	p.client = redis.NewClient(separate(&options))
	if err := p.client.Ping(ctx).Err(); err != nil && !strings.HasPrefix(err.Error(), "NOPERM ") {
		_ = p.client.Close()
		return nil, err
	}
	p.reader = bufio.NewReader(p.conn)
	return p, p.conn.SetDeadline(time.Time{})
}

// changesCredentials: not every version of go-redis 9 can.
func changesCredentials(options redis.Options) bool {
	provider := reflect.ValueOf(options).FieldByName("StreamingCredentialsProvider")
	return provider.IsValid() && !provider.IsZero()
}

func (p *pipe) Send(args ...any) error {
	p.buffer = append(strconv.AppendInt(append(p.buffer[:0], '*'), int64(len(args)), 10), "\r\n"...)
	for _, arg := range args {
		word := arg.(string)
		p.buffer = strconv.AppendInt(append(p.buffer, '$'), int64(len(word)), 10)
		p.buffer = append(append(append(p.buffer, "\r\n"...), word...), "\r\n"...)
	}
	_, err := p.conn.Write(p.buffer)
	return err
}

func (p *pipe) Close() error { return p.client.Close() }

// replyError is a line of the server.
type replyError string

func (e replyError) Error() string { return string(e) }

// Receive reads what the commands on a pipe are answered with: numbers, arrays of them, and errors.
func (p *pipe) Receive() (any, error) {
	line, err := p.reader.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 {
		return nil, io.ErrUnexpectedEOF
	}
	kind, text := line[0], line[1:len(line)-2]
	if kind == '-' {
		return nil, replyError(text)
	}
	number, err := strconv.ParseInt(string(text), 10, 64)
	switch {
	case err != nil:
		return nil, err
	case kind == ':':
		return number, nil
	case kind == '*' && number >= 0:
		return p.array(number)
	}
	return nil, fmt.Errorf("goredis: a reply begins with %q", kind)
}

func (p *pipe) array(length int64) (any, error) {
	elements := make([]any, 0, length)
	for ; length > 0; length-- {
		element, err := p.Receive()
		if err != nil {
			return nil, fmt.Errorf("goredis: in an array: %v", err) // no reply to the command
		}
		elements = append(elements, element)
	}
	return elements, nil
}
