#!/bin/sh
# Says how to try the app, and runs it on the server that REDIS_URL names. `make run` starts one.
cat <<TRY
Redis with the module is on $REDIS_URL. To try the app (and Ctrl-C to end it):

curl -i http://127.0.0.1:$PORT/
curl -i 'http://127.0.0.1:$PORT/search?q=hi'           # 6 times, quickly
curl -i 'http://127.0.0.1:$PORT/export?rows=6000'      # twice, quickly
curl -i 'http://127.0.0.1:$PORT/export?rows=20000'     # more than its limit ever holds

TRY
exec node dist/src/main.js
