#!/bin/sh
# Says how to try the app, and runs it on the server that REDIS_URL names. `make run` starts one.
cat <<TRY
Redis with the module is on $REDIS_URL. To try the app (and Ctrl-C to end it):

    for i in 1 2 3 4 5 6; do curl -i http://127.0.0.1:$PORT/search; done
    curl -i 'http://127.0.0.1:$PORT/export?rows=6000'     # twice

TRY
exec target/debug/tokenbucket-axum
