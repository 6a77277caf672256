#!/usr/bin/env bash
# Lowers the core and the theorems to LLVM IR, and proves: `make prove`, or `proofs/prove.sh THEOREM…`.
#
# LLVM inlines what is marked so and moves locals from memory into registers, nothing else: the IR says what the source says.
set -euo pipefail
cd "$(dirname "$0")"

venv=../target/prove/venv
target=../target/prove/ir

if ! "$venv/bin/python" -c 'import z3' 2>/dev/null; then
    python3 -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --requirement requirements.txt
fi

# Another compiler leaves its files beside these.
rm -rf "$target"
passes='always-inline function(sroa,simplifycfg,instsimplify,sccp,sroa,simplifycfg,dce)'
flags='-C no-prepopulate-passes --emit=llvm-ir'
for pass in $passes; do
    flags+=" -C passes=$pass"
done
RUSTFLAGS="$flags" CARGO_TARGET_DIR="$target" cargo build --quiet --locked --profile prove
exec "$venv/bin/python" prove.py "$target/prove/deps" "$@"
