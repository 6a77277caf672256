package main

import (
	"context"

	"github.com/redis/go-redis/v9"

	"tokenbucket/goredis"
)

func goredisClient(r request) (client, error) {
	switch {
	case r.Cluster != nil:
		options := &redis.ClusterOptions{}
		for _, text := range r.Cluster {
			parsed, err := redis.ParseURL(text)
			if err != nil {
				return client{}, err
			}
			options.Addrs = append(options.Addrs, parsed.Addr)
		}
		doer, err := goredis.From(redis.NewClusterClient(options))
		return client{doer: doer}, err
	case r.Sentinel != nil:
		doer, err := goredis.From(redis.NewFailoverClient(&redis.FailoverOptions{MasterName: r.Sentinel.Master, SentinelAddrs: r.Sentinel.Nodes}))
		return client{doer: doer}, err
	}
	options, err := redis.ParseURL(r.URL)
	if err != nil {
		return client{}, err
	}
	bare := redis.NewClient(options)
	doer, err := goredis.From(bare)
	return client{doer, func(words ...any) error { return bare.Do(context.Background(), words...).Err() }}, err
}
