#!/usr/bin/env bash
# smoke.sh CLI...   Checks that the module of a server decides and stores. CLI is redis-cli or valkey-cli with its connection
# options. Waits up to a minute for the server. Uses and deletes the key smoke.
set -euo pipefail

fail() { echo "error: $*" >&2; exit 1; }
expect() { # PATTERN COMMAND...
    local pattern=$1 reply
    shift
    reply=$("${CLI[@]}" "$@" </dev/null | tr '\n' ' ')
    # shellcheck disable=SC2053 # a pattern
    [[ $reply = $pattern ]] || fail "$* replied '$reply' instead of '$pattern'"
}

CLI=("$@")
# MODULE LIST shows two digits each for major, minor and patch.
IFS=. read -r major minor patch < <(sed -n 's/^version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
for _ in $(seq 600); do
    if [ "$("${CLI[@]}" PING 2>/dev/null </dev/null)" = PONG ]; then break; fi
    sleep 0.1
done
expect 'PONG ' PING
expect "*name tokenbucket ver $((major * 10000 + minor * 100 + patch)) *" MODULE LIST
expect '1 1 0 43200000 ' TB.TAKE smoke 2 2/d
expect '1 0 0 86* ' TB.TAKE smoke 2 2/d
expect '0 0 43* 86* ' TB.TAKE smoke 2 2/d
expect 'tb-bucket ' TYPE smoke
expect '1 ' DEL smoke
echo "the module works in $("${CLI[@]}" INFO server </dev/null | grep -E '^(redis|valkey)_version' | tail -1 | tr -d '\r')"
