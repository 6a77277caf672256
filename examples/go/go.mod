module tokenbucket-example

go 1.19

require (
	github.com/redis/go-redis/v9 v9.5.1
	tokenbucket v0.1.0
	tokenbucket/goredis v0.1.0
)

require (
	github.com/cespare/xxhash/v2 v2.2.0 // indirect
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f // indirect
)

replace (
	tokenbucket => ../../clients/go
	tokenbucket/goredis => ../../clients/go/goredis
)
