module tokenbucket

go 1.19
