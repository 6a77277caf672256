#!/usr/bin/env bash
# Fuzzes each target for some seconds (60 unless told): fuzz/run.sh [SECONDS [TARGET…]]
# Or repeats the same inputs each time, for a test that has to say the same twice: fuzz/run.sh repeat [TARGET…]
# What is found in seconds stays in fuzz/found, and the next run starts from it; a crash is in fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")"

seconds=${1:-60}
[ $# = 0 ] || shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(numbers requests effects buckets)

# What libFuzzer needs to see where it has been. Sanitizers would need a nightly compiler, and look for faults of
# unsafe code, of which there is none here.
export RUSTFLAGS="--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
# Named even though it is this machine's own: the flags are then kept from build scripts.
host=$(rustc -vV | sed -n 's/^host: //p')
cargo build --release --locked --target "$host"

for target in "${targets[@]}"; do
    mkdir -p "found/$target" "artifacts/$target"
    if [ "$seconds" = repeat ]; then
        printf 'fuzzing %s with the same 50,000 inputs as ever\n' "$target"
        found=$(mktemp -d)
        how=(-seed=1 -runs=50000)
    else
        printf 'fuzzing %s for %s s\n' "$target" "$seconds"
        found=found/$target
        how=(-max_total_time="$seconds")
    fi
    log=$(mktemp)
    if ! "target/$host/release/$target" -artifact_prefix="artifacts/$target/" -dict=words.dict \
        "${how[@]}" -timeout=10 "$found" "corpus/$target" >"$log" 2>&1; then
        cat "$log" >&2
        rm "$log"
        exit 1
    fi
    grep '^Done' "$log"
    rm "$log"
    [ "$seconds" != repeat ] || rm -r "$found"
done
