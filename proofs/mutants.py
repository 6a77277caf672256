#!/usr/bin/env python3
"""Applies each mutant of the arithmetic to a copy of the core, and prints the first theorem that it breaks.

Needs cargo-mutants, and what `make prove` installs. Takes hours: a mutant that breaks no theorem is tried with
all.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from runner.theorems import THEOREMS

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "target/prove/mutants"
FILES = ("bucket/mod.rs", "bucket/decide.rs", "rate/mod.rs", "rate/bounds.rs", "rate/ratio.rs")


def run(*command, **options):
    return subprocess.run(command, cwd=COPY, text=True, capture_output=True, check=False, **options)


def copy_tree():
    shutil.rmtree(COPY, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True)
    for name in listed.stdout.splitlines():
        if name.startswith(("core/", "proofs/", "src/", "benches/", "Cargo")):
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, COPY / name)
    (COPY / "target/prove").mkdir(parents=True)
    os.symlink(ROOT / "target/prove/venv", COPY / "target/prove/venv")


def mutants(files):
    chosen = [f"--file=core/src/{name}" for name in files]
    listed = run("cargo", "mutants", "-p", "tokenbucket-core", "--list", "--json", "--diff", *chosen)
    return json.loads(listed.stdout)


def theorems(mutant):
    """Returns all theorems, those first that are most likely to notice the mutant."""
    of_rate = "/rate/" in mutant["file"]
    function = (mutant["function"] or {}).get("function_name", "").rsplit("::", 1)[-1]
    return sorted(
        (theorem.name for theorem in THEOREMS),
        key=lambda name: (
            name.endswith(("ratio", "decimal", "bounds")) != of_rate,
            not name.startswith(function),
        ),
    )


def first_broken(mutant):
    for name in theorems(mutant):
        proved = run("proofs/prove.sh", name)
        if "error: could not compile" in proved.stderr:
            return "does not compile"
        if proved.returncode:
            return f"{name}: {proved.stdout.strip().splitlines()[0].strip()}"
    return "SURVIVES"


def main(*files):
    copy_tree()
    for mutant in mutants(files or FILES):
        run("patch", "-p0", input=mutant["diff"])
        print(f"{mutant['name']}: {first_broken(mutant)}", flush=True)
        run("patch", "-p0", "-R", input=mutant["diff"])


if __name__ == "__main__":
    main(*sys.argv[1:])
