package redigo

import (
	"context"
	"net"
	"reflect"

	"github.com/gomodule/redigo/redis"

	"tokenbucket"
	"tokenbucket/internal/resp"
)

// Pipe dials as the pool does. The pool does not count the connection.
func (d doer) Pipe(ctx context.Context) (tokenbucket.Pipe, error) {
	conn, err := d.dial(ctx)
	if err != nil {
		return nil, err
	}
	if of := netConn(conn); of != nil {
		return resp.NewPipe(of, conn.Close)
	}
	return pipe{conn}, nil
}

// netConn returns the network connection under one of redigo's own, or nil if the program has wrapped it. redigo does not
// export the field, and closes a connection on which a read has timed out, so a pipe has to read by itself to be interrupted.
func netConn(conn redis.Conn) net.Conn {
	value := reflect.Indirect(reflect.ValueOf(conn))
	if value.Type() != dialled {
		return nil
	}
	field := value.FieldByName("conn")
	if !field.IsValid() || field.Type() != reflect.TypeOf((*net.Conn)(nil)).Elem() {
		return nil
	}
	return *(*net.Conn)(field.Addr().UnsafePointer())
}

var dialled = reflect.TypeOf(redis.NewConn(nil, 0, 0)).Elem()

// pipe is a connection whose reads cannot be interrupted.
type pipe struct{ conn redis.Conn }

func (p pipe) Send(args ...any) error {
	if err := p.conn.Send(args[0].(string), args[1:]...); err != nil {
		return err
	}
	return p.conn.Flush()
}

// Receive waits without a timeout, whatever the connection was dialled with: between calls nothing arrives.
func (p pipe) Receive() (any, error) { return redis.ReceiveWithTimeout(p.conn, 0) }

func (p pipe) Close() error { return p.conn.Close() }
