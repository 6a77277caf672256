#!/usr/bin/env bash
# matrix.sh ENGINES MODULE "CARGO TEST ARGUMENTS" NAME...   Runs the tests on each server and prints a
# table. Fails if any test failed on any server.
set -uo pipefail
engines=$1 module=$2 arguments=$3
shift 3
logs=target/matrix
mkdir -p "$logs"
rows=() failed=0 number=0

sum() { # WORD FILE: adds up the numbers in front of WORD in the lines of test results
    grep -h '^test result' "$2" | grep -oE "[0-9]+ $1" | awk '{ n += $1 } END { print n + 0 }'
}

echo "compiling the tests"
# shellcheck disable=SC2086 # the arguments are words
cargo test --no-run ${arguments%% -- *} || exit 1
for name in "$@"; do
    number=$((number + 1))
    log=$logs/$name.log
    echo "[$number/$#] testing on $name"
    began=$SECONDS
    # shellcheck disable=SC2086 # the arguments are words
    SERVER=$engines/$name/server MODULE=$module cargo test --quiet --no-fail-fast $arguments >"$log" 2>&1
    status=$?
    if [ $status != 0 ] || [ "$(sum passed "$log")" = 0 ]; then
        failed=1
        verdict="**failed**"
        grep -E '^test .*FAILED|panicked at|^error' "$log" | head -20
        echo "    the whole log is in $log"
    else
        verdict=passed
    fi
    rows+=("| $name | $(sum passed "$log") | $(sum failed "$log") | $(sum ignored "$log") | $((SECONDS - began)) s | $verdict |")
done

{
    echo '| server | passed | failed | ignored | time | |'
    echo '|---|---|---|---|---|---|'
    printf '%s\n' "${rows[@]}"
} | tee "$logs/table.md"
exit $failed
