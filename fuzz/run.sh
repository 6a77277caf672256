#!/usr/bin/env bash
# Fuzzes each target for some seconds (60 unless told): fuzz/run.sh [SECONDS [TARGET…]]
# What is found anew stays in fuzz/found, and the next run starts from it; a crash is in fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")"

seconds=${1:-60}
shift || true
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
    printf 'fuzzing %s for %s s\n' "$target" "$seconds"
    mkdir -p "found/$target" "artifacts/$target"
    log=$(mktemp)
    if ! "target/$host/release/$target" -artifact_prefix="artifacts/$target/" -dict=words.dict \
        -max_total_time="$seconds" -timeout=10 "found/$target" "corpus/$target" >"$log" 2>&1; then
        cat "$log" >&2
        rm "$log"
        exit 1
    fi
    grep '^Done' "$log"
    rm "$log"
done
