#!/usr/bin/env python3
"""Applies each mutant of the arithmetic to a copy of the core, and prints the first theorem that it breaks.

`mutants.py [FILE-OF-THE-CORE …]`, with cargo-mutants and the Python of `target/prove/venv`. Takes hours,
and goes on where it stopped: `target/prove/mutants.txt` has a line for each mutant that was tried.

A theorem is tried only if its code, up to the functions that a contract stands for, is not the same as
without the mutant.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import z3
from prove import Counts, read_ir, symbol
from runner.ir import CALLEE
from runner.machine import Machine, unquoted
from runner.solver import Solver
from runner.theorems import THEOREMS

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "target/prove/mutants"
IR = COPY / "target/ir"
RESULTS = ROOT / "target/prove/mutants.txt"
FILES = ("bucket/*.rs", "rate/*.rs")
SECONDS = 300
# Where in the source a panic is: a mutant moves the lines below it.
PLACE = re.compile(r"@(alloc|anon)[\w.]+")


def run(*command, **options):
    return subprocess.run(command, cwd=COPY, text=True, capture_output=True, check=False, **options)


def copy_tree():
    shutil.rmtree(COPY, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True)
    for name in listed.stdout.splitlines():
        if name.startswith(("core/", "proofs/", "src/", "benches/", "Cargo")):
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, COPY / name)


def mutants(files):
    chosen = [f"--file=core/src/{name}" for name in files]
    listed = run("cargo", "mutants", "-p", "tokenbucket-core", "--list", "--json", "--diff", *chosen)
    return json.loads(listed.stdout)


def cuts_of(theorem):
    """Returns the functions in whose place a theorem puts a contract, by parts of their names."""
    machine = Machine(({}, {}), Solver(Counts(), time.monotonic() + SECONDS), Counts())
    _, cuts = theorem.arrange(machine, **{name: z3.IntVal(1) for name in theorem.unknowns})
    return [part for part, _ in cuts]


def code_of(functions, theorem, cuts):
    """Returns the code that a theorem walks."""
    code, names = {}, [symbol(functions, theorem)]
    while names:
        name = names.pop()
        if name in code or name not in functions or any(part in name for part in cuts):
            continue
        steps = [PLACE.sub("", step.text) for block in functions[name].blocks.values() for step in block]
        code[name] = steps
        names += [unquoted(callee) for step in steps for callee in CALLEE.findall(step)]
    return code


def lowered():
    """Returns the code of each theorem, or `None` if the mutant does not compile."""
    if run("proofs/lower.sh", str(IR)).returncode:
        return None
    functions, _ = read_ir(f"{IR}/prove/deps")
    return {theorem.name: code_of(functions, theorem, CUTS[theorem.name]) for theorem in THEOREMS}


def is_proved(name):
    """Tries to prove a theorem. Returns the first line of what is wrong, if there is one."""
    command = [sys.executable, "prove.py", f"{IR}/prove/deps", name]
    process = subprocess.Popen(
        command, cwd=COPY / "proofs", text=True, stdout=subprocess.PIPE, start_new_session=True
    )
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
    signal.alarm(SECONDS)
    line = process.stdout.readline().strip()
    if signal.alarm(0) and not line.startswith("proved"):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return line


def first_broken(mutant, original):
    code = lowered()
    if code is None:
        return "does not compile"
    function = (mutant["function"] or {}).get("function_name", "").rsplit("::", 1)[-1]
    touched = sorted(
        (theorem.name for theorem in THEOREMS if code[theorem.name] != original[theorem.name]),
        key=lambda name: (not name.startswith(function), len(str(code[name]))),
    )
    undecided = []
    for name in touched:
        line = is_proved(name)
        if line.startswith("proved"):
            continue
        if line.startswith("Broken"):
            return f"{name}: {line}"
        undecided.append(name)
    if not touched:
        return "is in no theorem"
    return f"SURVIVES {len(touched)} theorems" + f", undecided {undecided}" * bool(undecided)


def main(*files):
    copy_tree()
    original = lowered()
    tried = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    for mutant in mutants(files or FILES):
        if any(line.startswith(f"{mutant['name']}: ") for line in tried):
            continue
        run("patch", "-p0", input=mutant["diff"])
        line = f"{mutant['name']}: {first_broken(mutant, original)}"
        run("patch", "-p0", "-R", input=mutant["diff"])
        with RESULTS.open("a") as results:
            print(line, file=results)
        print(line, flush=True)


CUTS = {theorem.name: cuts_of(theorem) for theorem in THEOREMS}

if __name__ == "__main__":
    main(*sys.argv[1:])
