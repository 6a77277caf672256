// What is tested on a cluster. A module of its own, so that the client needs no cluster client.
module tokenbucket/clustertest

go 1.19

require (
	github.com/gomodule/redigo v1.9.3
	github.com/mna/redisc v1.4.0
	tokenbucket v0.0.0
)

replace tokenbucket => ../
