package goredis_test

import (
	"fmt"

	"github.com/redis/go-redis/v9"

	"tokenbucket"
	"tokenbucket/goredis"
)

func ExampleFrom() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"}) // or NewFailoverClient, or NewClusterClient
	doer, err := goredis.From(client)
	if err != nil {
		panic(err)
	}
	server := tokenbucket.NewServer(doer) // connects at the first call
	defer server.Close()
	searches := tokenbucket.NewLimiter(server, tokenbucket.Limit{Capacity: 10, Rate: "5/s"}, tokenbucket.Prefix("search:"))
	fmt.Println(searches.Limit().Rate)
	// Output: 5/s
}
