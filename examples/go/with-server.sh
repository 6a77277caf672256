#!/usr/bin/env bash
# with-server.sh COMMAND...: runs COMMAND while a server of its own is up, with REDIS_ADDR set to its address.
set -euo pipefail
: "${SERVER:=redis-server}" "${MODULE:=../../target/release/libtokenbucket.so}"

[ -f "$MODULE" ] || { echo "no module at $MODULE: build it (cargo build --release) or set MODULE" >&2; exit 1; }
command -v "$SERVER" >/dev/null || { echo "no server '$SERVER': install redis-server or set SERVER" >&2; exit 1; }

folder=$(mktemp -d)
port=${PORT:-$((20000 + RANDOM % 10000))}
"$SERVER" --port "$port" --bind 127.0.0.1 --save '' --dir "$folder" --logfile "$folder/log" --loadmodule "$(realpath "$MODULE")" &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT

for _ in $(seq 200); do
    if ! kill -0 "$server" 2>/dev/null; then break; fi
    if grep -q 'eady to accept connections' "$folder/log" 2>/dev/null; then
        REDIS_ADDR=127.0.0.1:$port "$@"
        exit
    fi
    sleep 0.05
done
echo "the server did not start:" >&2
cat "$folder/log" >&2
exit 1
