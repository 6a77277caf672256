module tokenbucket

go 1.19

require github.com/gomodule/redigo v1.9.3
