#!/usr/bin/env bash
# Lowers the core and the theorems to LLVM IR in DIRECTORY: `proofs/lower.sh DIRECTORY`.
#
# LLVM inlines what is marked so and moves locals from memory into registers, nothing else: the IR says what the source says.
set -euo pipefail
target=$(realpath --canonicalize-missing "$1")
cd "$(dirname "$0")"

passes='always-inline function(sroa,simplifycfg,instsimplify,sccp,sroa,simplifycfg,dce)'
flags='-C no-prepopulate-passes --emit=llvm-ir'
for pass in $passes; do
    flags+=" -C passes=$pass"
done
RUSTFLAGS="$flags" CARGO_TARGET_DIR="$target" cargo build --quiet --locked --profile prove
