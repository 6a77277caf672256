#!/usr/bin/env bash
# Fuzzes each target for some seconds (60 unless told): fuzz/run.sh [SECONDS [TARGET…]]
# What is found anew stays in fuzz/found, and the next run starts from it; a crash is in fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(numbers requests effects buckets)

command -v cargo-fuzz >/dev/null || cargo install --quiet --locked cargo-fuzz

# Sanitizers need a nightly compiler and look for faults of unsafe code, of which there is none here.
cargo fuzz build --sanitizer none
for target in "${targets[@]}"; do
	printf 'fuzzing %s for %s s\n' "$target" "$seconds"
	mkdir -p "fuzz/found/$target"
	log=$(mktemp)
	if ! cargo fuzz run --sanitizer none "$target" "fuzz/found/$target" "fuzz/corpus/$target" -- \
		-dict=fuzz/words.dict -max_total_time="$seconds" -timeout=10 >"$log" 2>&1; then
		cat "$log" >&2
		rm "$log"
		exit 1
	fi
	grep '^Done' "$log"
	rm "$log"
done
