#!/usr/bin/env bash
# test-loading.sh SERVER CLI MODULE   Checks what docs/start/install.md says about loading, on a server from 7.0 on.
set -euo pipefail
server=$1 cli=$2 module=$3
here=$(realpath "$(dirname "$0")")
work=$(mktemp -d)
cd "$work"
trap 'rm -rf "$work"' EXIT

fail() { cat log >&2; echo "error: $*" >&2; exit 1; }
ask() { "$cli" -s "$work/socket" "$@" </dev/null; }
refuses_to_start() { # WHY LOG ARGUMENT...
    local why=$1 said=$2
    shift 2
    ! timeout 60 "$server" --port 0 --unixsocket "$work/socket" --save '' "$@" >log 2>&1 || fail "a server starts $why"
    grep -qE "$said" log || fail "a server that did not start $why does not say so"
}

cp "$module" "$work/module.so"
chmod 644 "$work/module.so"
refuses_to_start 'without the run bit' 'execute permissions' --loadmodule "$work/module.so"
chmod 755 "$work/module.so"
refuses_to_start 'with two loadmodule lines that differ' 'is loaded .MODULE LIST.: delete one loadmodule line' \
    --loadmodule "$work/module.so" --loadmodule "$work/module.so" on-oom allow

printf '%s\n' 'port 0' 'save ""' "unixsocket $work/socket" "dir $work" "loadmodule $work/module.so on-oom allow" >conf
"$server" conf --loadmodule "$work/module.so" on-oom allow >log 2>&1 & # the second line changes nothing
pid=$!
trap 'kill $pid; wait $pid || true; rm -rf "$work"' EXIT
"$here/smoke.sh" "$cli" -s "$work/socket" || fail 'the server does not answer'
for command in "LOAD $work/module.so" 'UNLOAD tokenbucket'; do
    # shellcheck disable=SC2086 # words
    [[ $(ask MODULE $command) = *'not allowed'* ]] || fail "MODULE $command is allowed by default"
done
[ "$(ask CONFIG REWRITE)" = OK ] || fail 'CONFIG REWRITE failed'
grep -qxF "loadmodule $work/module.so on-oom allow" conf || fail 'CONFIG REWRITE lost the loadmodule line'
echo 'loading is as docs/start/install.md says'
