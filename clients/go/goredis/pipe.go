package goredis

import (
	"context"
	"errors"
	"net"
	"reflect"
	"strings"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/internal/resp"
)

// Pipe lets the client library dial and greet the server, with a client that is not used for anything else.
func (s *single) Pipe(ctx context.Context) (tokenbucket.Pipe, error) {
	options := *s.client.Options()
	if changesCredentials(options) {
		return nil, errors.New("goredis: the client may log in again on its connections at any time")
	}
	var dialled net.Conn
	dial := options.Dialer
	options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		dialled = conn
		return conn, err
	}
	options.Protocol, options.PoolSize, options.MinIdleConns, options.MaxIdleConns = 2, 1, 0, 0
	client := redis.NewClient(separate(&options))
	if err := client.Ping(ctx).Err(); err != nil && !strings.HasPrefix(err.Error(), "NOPERM ") {
		_ = client.Close()
		return nil, err
	}
	return resp.NewPipe(dialled, client.Close)
}

// changesCredentials: not every version of go-redis 9 can.
func changesCredentials(options redis.Options) bool {
	provider := reflect.ValueOf(options).FieldByName("StreamingCredentialsProvider")
	return provider.IsValid() && !provider.IsZero()
}
