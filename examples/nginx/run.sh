#!/bin/sh
# Starts the gateway before the server that REDIS_ADDR names; Ctrl-C ends both. `make run` starts one.
set -eu
cd "$(dirname "$0")"

# A secret of one's own for this run, so that nobody's tokens are signed with one that is published.
: "${PORT:=8080}" "${JWT_SECRET:=$(head -c 32 /dev/urandom | base64)}"
export JWT_SECRET REDIS_NODES="$REDIS_ADDR"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/tmp"
ln -s "$PWD/lua" "$PWD/rules.json" "$folder/"
sed "s/listen 127.0.0.1:8080;/listen 127.0.0.1:$PORT;/" nginx.conf >"$folder/nginx.conf"

cat <<END
gateway on http://127.0.0.1:$PORT, counters on http://127.0.0.1:$PORT/metrics, Redis on $REDIS_ADDR; Ctrl-C ends it. Try:

  for i in 1 2 3 4 5 6; do curl -si http://127.0.0.1:$PORT/ | grep -iE '^(HTTP|RateLimit|Retry-After|X-RateLimit)'; done
  curl -si http://127.0.0.1:$PORT/v1/chat/completions -H 'X-Estimated-Tokens: 2500' \\
    -H 'Authorization: Bearer $(./make_token.py '{"sub": "alice", "plan": "enterprise"}')'

END
PATH=$PATH:/usr/sbin:/sbin nginx -p "$folder/" -c nginx.conf -g 'daemon off;' &
nginx=$!
trap 'kill "$nginx"; wait "$nginx"' INT TERM
wait "$nginx"
