#!/usr/bin/env bash
# Lowers the core and the theorems to LLVM IR, and proves: `make prove`, or `proofs/prove.sh THEOREM…`.
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
./lower.sh "$target"
exec "$venv/bin/python" prove.py "$target/prove/deps" "$@"
