package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/gomodule/redigo/redis"

	"tokenbucket/redigo"
)

func redigoClient(r request) (client, error) {
	if r.Cluster != nil {
		return redigoCluster(r.Cluster)
	}
	dial := func(context.Context) (redis.Conn, error) { return redis.DialURL(r.URL) }
	if r.Sentinel != nil {
		dial = func(ctx context.Context) (redis.Conn, error) { return dialMaster(ctx, *r.Sentinel) }
	}
	address := ""
	if parsed, err := url.Parse(r.URL); err == nil {
		address = parsed.Host
	}
	pool := redigoPool(dial)
	return client{redigo.From(pool, redigo.Address(address)), func(words ...any) error {
		conn := pool.Get()
		defer conn.Close()
		_, err := conn.Do(words[0].(string), words[1:]...)
		return err
	}}, nil
}

func redigoPool(dial func(context.Context) (redis.Conn, error)) *redis.Pool {
	return &redis.Pool{MaxIdle: 64, MaxActive: 64, Wait: true, DialContext: dial}
}

// dialMaster asks each Sentinel in turn where the master is.
func dialMaster(ctx context.Context, s sentry) (redis.Conn, error) {
	err := fmt.Errorf("no sentinel of %v answers", s.Nodes)
	for _, node := range s.Nodes {
		conn, dialErr := redis.DialContext(ctx, "tcp", node, redis.DialReadTimeout(time.Second))
		if dialErr != nil {
			err = dialErr
			continue
		}
		address, askErr := redis.Strings(conn.Do("SENTINEL", "get-master-addr-by-name", s.Master))
		conn.Close()
		if askErr == nil && len(address) == 2 {
			return redis.DialContext(ctx, "tcp", address[0]+":"+address[1])
		}
		err = askErr
	}
	return nil, err
}

func redigoCluster(urls []string) (client, error) {
	addresses := make([]string, len(urls))
	for i, text := range urls {
		parsed, err := url.Parse(text)
		if err != nil {
			return client{}, err
		}
		addresses[i] = parsed.Host
	}
	poolOf := func(address string) *redis.Pool {
		return redigoPool(func(ctx context.Context) (redis.Conn, error) { return redis.DialContext(ctx, "tcp", address) })
	}
	return client{doer: redigo.FromCluster(poolOf, addresses[0], addresses[1:]...)}, nil
}
