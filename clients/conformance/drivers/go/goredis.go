package main

import (
	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/goredis"
)

func init() { clients["go-redis"] = goredisDoer }

func goredisDoer(r request) (tokenbucket.Doer, error) {
	switch {
	case r.Cluster != nil:
		options := &redis.ClusterOptions{}
		for _, text := range r.Cluster {
			parsed, err := redis.ParseURL(text)
			if err != nil {
				return nil, err
			}
			options.Addrs = append(options.Addrs, parsed.Addr)
		}
		return goredis.From(redis.NewClusterClient(options))
	case r.Sentinel != nil:
		return goredis.From(redis.NewFailoverClient(&redis.FailoverOptions{MasterName: r.Sentinel.Master, SentinelAddrs: r.Sentinel.Nodes}))
	}
	options, err := redis.ParseURL(r.URL)
	if err != nil {
		return nil, err
	}
	return goredis.From(redis.NewClient(options))
}
