package redigo

import (
	"context"

	"github.com/gomodule/redigo/redis"

	"tokenbucket"
)

// Pipe dials as the pool does. The pool does not count the connection.
func (d doer) Pipe(ctx context.Context) (tokenbucket.Pipe, error) {
	conn, err := d.dial(ctx)
	if err != nil {
		return nil, err
	}
	return pipe{conn}, nil
}

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
