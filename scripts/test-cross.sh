#!/usr/bin/env bash
# test-cross.sh TARGET NAME... [-- ARGUMENT...]   Tests the module for another processor or C library on these servers, in an
# emulator if needed, and checks that both platforms write the same bytes. ARGUMENTs go to the test program. Needs
# target/release/libtokenbucket.so, the module for this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:?a target is needed}
shift
names=()
while [ $# != 0 ] && [ "$1" != -- ]; do names+=("$1") && shift; done
[ $# = 0 ] || shift
engines=$PWD/target/engines

MODULE=$(scripts/cross.sh build "$target" | tail -1)
SERVER_CC=$(scripts/cross.sh cc "$target" | tail -1)
export MODULE SERVER_CC NATIVE_MODULE=$PWD/target/release/libtokenbucket.so
# An emulator may take minutes for what a processor does at once.
export TIMEOUT_S=300
scripts/engines.sh "$engines" "${names[@]}"
for name in "${names[@]}"; do
    SERVER=$(scripts/cross.sh server "$target" "$name" | tail -1)
    export SERVER NATIVE_SERVER=$engines/$name/server
    began=$SECONDS
    printf '\n\033[1m== testing on %s for %s\033[0m\n' "$name" "$target"
    cargo test --test portability -- --quiet
    cargo test --test server -- --quiet "$@"
    echo "$name for $target: passed in $((SECONDS - began)) s"
done
