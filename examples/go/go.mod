module tokenbucket-example

go 1.19

require (
	github.com/gomodule/redigo v1.9.3
	tokenbucket v0.1.0
	tokenbucket/redigo v0.1.0
)

replace (
	tokenbucket => ../../clients/go
	tokenbucket/redigo => ../../clients/go/redigo
)
