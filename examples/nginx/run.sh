#!/bin/sh
# Starts a server with the module and the gateway in front of it; Ctrl-C ends both. `make run` calls this.
set -eu
cd "$(dirname "$0")"

fail() {
    echo "$1" >&2
    exit 1
}

: "${SERVER:=redis-server}" "${MODULE:=../../target/release/libtokenbucket.so}" "${PORT:=8080}" "${REDIS_PORT:=6390}"
[ -f "$MODULE" ] || fail "MODULE: there is no $MODULE (build it with: cargo build --release)"
command -v "$SERVER" >/dev/null || fail "SERVER: there is no $SERVER"
module=$(realpath "$MODULE")
here=$(pwd)

# A secret of one's own for this run, so that nobody's tokens are signed with one that is published.
: "${JWT_SECRET:=$(head -c 32 /dev/urandom | base64)}"
export JWT_SECRET REDIS_NODES="127.0.0.1:$REDIS_PORT"

folder=$(mktemp -d)
server_pid='' nginx_pid=''
stop() {
    trap - EXIT INT TERM
    for pid in $nginx_pid $server_pid; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$folder"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir "$folder/tmp"
ln -s "$here/lua" "$here/rules.json" "$folder/"
sed "s/listen 127.0.0.1:8080;/listen 127.0.0.1:$PORT;/" nginx.conf >"$folder/nginx.conf"

"$SERVER" --port "$REDIS_PORT" --bind 127.0.0.1 --save '' --dir "$folder" --loadmodule "$module" >"$folder/server.log" 2>&1 &
server_pid=$!
until grep -q 'Ready to accept connections' "$folder/server.log"; do
    kill -0 "$server_pid" 2>/dev/null || fail "the server did not start:
$(cat "$folder/server.log")"
    sleep 0.05
done

PATH=$PATH:/usr/sbin:/sbin nginx -p "$folder/" -c nginx.conf -g 'daemon off;' &
nginx_pid=$!

cat <<END
gateway on http://127.0.0.1:$PORT, counters on http://127.0.0.1:$PORT/metrics, Redis on port $REDIS_PORT; Ctrl-C ends it. Try:

  for i in 1 2 3 4 5 6; do curl -si http://127.0.0.1:$PORT/ | grep -iE '^(HTTP|RateLimit|Retry-After|X-RateLimit)'; done
  curl -si http://127.0.0.1:$PORT/v1/chat/completions -H 'X-Estimated-Tokens: 2500' \\
    -H 'Authorization: Bearer $(./make_token.py '{"sub": "alice", "plan": "enterprise"}')'

END
wait "$nginx_pid"
