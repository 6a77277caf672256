package integration

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/goredis"
	"tokenbucket/internal/realserver"
)

func init() { doers["go-redis"] = byGoRedis }

func byGoRedis(t *testing.T, cluster *realserver.Cluster) tokenbucket.Doer {
	doer, err := goredis.From(redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{cluster.Nodes[0].Address()}}))
	if err != nil {
		t.Fatal(err)
	}
	return doer
}
