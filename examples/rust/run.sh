#!/usr/bin/env bash
# run.sh COMMAND...: runs COMMAND with REDIS_URL set to a server of its own that has the module.
set -euo pipefail

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

! answers "$PORT" || { echo "port $PORT is in use: set PORT to another" >&2; exit 1; }
redis_port=$((11000 + RANDOM % 10000))
while answers "$redis_port"; do redis_port=$((redis_port + 1)); done

folder=$(mktemp -d)
"$SERVER" --bind 127.0.0.1 --port "$redis_port" --save '' --dir "$folder" --logfile "$folder/log" \
    --loadmodule "$MODULE" &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

until answers "$redis_port"; do
    kill -0 "$server" 2>/dev/null || { echo "the server did not start:" >&2; cat "$folder/log" >&2; exit 1; }
    sleep 0.05
done

cat <<TRY
Redis with the module is on port $redis_port. To try the app (and Ctrl-C to end it):

    for i in 1 2 3 4 5 6; do curl -i http://127.0.0.1:$PORT/search; done
    curl -i 'http://127.0.0.1:$PORT/export?rows=6000'     # twice

TRY
# In the background, because the shell attends to signals only between commands.
REDIS_URL=redis://127.0.0.1:$redis_port "$@" &
app=$!
trap 'kill "$app" 2>/dev/null; wait "$app" 2>/dev/null || true; exit 130' INT
trap 'kill "$app" 2>/dev/null; wait "$app" 2>/dev/null || true; exit 143' TERM
wait "$app"
