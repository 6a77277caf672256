#!/usr/bin/env bash
# with-server.sh COMMAND...: runs COMMAND with TOKENBUCKET_URL set to a server of its own that has the module.
set -euo pipefail

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

port=$((11000 + RANDOM % 10000))
while answers "$port"; do port=$((port + 1)); done

folder=$(mktemp -d)
"$SERVER" --bind 127.0.0.1 --port "$port" --save '' --dir "$folder" --logfile "$folder/log" --loadmodule "$MODULE" &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT

until answers "$port"; do
    kill -0 "$server" 2>/dev/null || { echo "the server did not start:" >&2; cat "$folder/log" >&2; exit 1; }
    sleep 0.05
done
TOKENBUCKET_URL=redis://127.0.0.1:$port "$@"
