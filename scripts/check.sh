#!/usr/bin/env bash
# check.sh   Checks the arguments of make before anything is built:
#   port NUMBER      must be a free TCP port
#   network          must be there for crates that are not on this machine: asked when cargo has failed
#   server PROGRAM   must be a redis-server or valkey-server: a path, or a name in PATH
set -euo pipefail

fail() { echo "error: $*" >&2; exit 1; }

check_port() { # NUMBER
    [[ $1 =~ ^[1-9][0-9]{0,4}$ ]] && [ "$1" -le 65535 ] || fail "PORT must be a number from 1 to 65535, not '$1'"
    ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null || fail "port $1 is in use: choose another, like make run PORT=6380"
}

check_server() { # PROGRAM
    local version
    [ -n "$1" ] || fail "SERVER=/path/to/redis-server or valkey-server is missing"
    [ ! -d "$1" ] && command -v -- "$1" >/dev/null || fail "SERVER must be a redis-server or valkey-server: there is no program $1"
    version=$("$1" --version 2>/dev/null </dev/null | head -1) || true
    [[ $version = *' server v='* ]] || fail "SERVER must be a redis-server or valkey-server: $1 is another program"
}

# Other failures of cargo have said what they are.
check_network() {
    local said
    said=$(CARGO_NET_RETRY=0 cargo fetch --locked --quiet 2>&1) || case "$said" in
        *[Nn]etwork* | *'resolve host'* | *download* | *connect* | *'timed out'*) fail "crates could not be fetched: is there a network?" ;;
    esac
}

case "${1:-}" in
    port) check_port "${2-}" ;;
    server) check_server "${2-}" ;;
    network) check_network ;;
    *) fail "usage: check.sh port NUMBER | server PROGRAM | network" ;;
esac
