package main

import (
	"fmt"
	"log"
	"os"

	"github.com/gomodule/redigo/redis"
)

func main() {
	port := os.Getenv("REDIS_PORT")
	if port == "" {
		port = "6379"
	}
	conn, err := redis.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	decision, err := redis.Int64s(conn.Do("TB.TAKE", "user:42", 5, "5/10s"))

	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("allowed=%d remaining=%d retry_after_ms=%d reset_after_ms=%d\n",
		decision[0], decision[1], decision[2], decision[3])
}
