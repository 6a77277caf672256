package redigo

import (
	"context"
	"reflect"
	"strings"

	"github.com/gomodule/redigo/redis"

	"tokenbucket"
)

// askedAt is the node that a slot is moving to, if a reply says that the key is there already.
func askedAt(err error) (address string) {
	if err == nil || !strings.HasPrefix(err.Error(), "ASK ") {
		return ""
	}
	if words := strings.Fields(err.Error()); len(words) == 3 {
		address = words[2]
	}
	return address
}

// mayAsk tells whether the client is known to say how it dials.
func (d clusterDoer) mayAsk() bool {
	fields := reflect.Indirect(reflect.ValueOf(d.cluster))
	return fields.Kind() == reflect.Struct && exported(fields, "DialOptions") != nil
}

// ask dials that node for one command: the client leads a key only to the node that has its slot.
func (d clusterDoer) ask(ctx context.Context, address string, args []any) (any, error) {
	tokenbucket.Connecting(ctx)
	conn, closeAll, err := dialNode(d.cluster, address)
	if err != nil {
		return nil, unsent(err)
	}
	defer closeAll()
	if err := tokenbucket.Sent(ctx); err != nil {
		return nil, err
	}
	if err := conn.Send("ASKING"); err != nil {
		return nil, err
	}
	return do(ctx, conn, args)
}

// dialNode does so as the client does, which has no method for it in every version.
func dialNode(cluster Getter, address string) (redis.Conn, func(), error) {
	fields := reflect.Indirect(reflect.ValueOf(cluster))
	options, _ := exported(fields, "DialOptions").([]redis.DialOption)
	newPool, _ := exported(fields, "CreatePool").(func(string, ...redis.DialOption) (*redis.Pool, error))
	if newPool == nil {
		conn, err := redis.Dial("tcp", address, options...)
		return conn, func() { conn.Close() }, err
	}
	pool, err := newPool(address, options...)
	if err != nil {
		return nil, nil, err
	}
	conn := pool.Get()
	return conn, func() { conn.Close(); pool.Close() }, conn.Err()
}

func exported(fields reflect.Value, name string) any {
	if field := fields.FieldByName(name); field.IsValid() && field.CanInterface() {
		return field.Interface()
	}
	return nil
}
