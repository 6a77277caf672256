#!/usr/bin/env python3
"""Proves the theorems of `src/lib.rs`: `make prove`, or `prove.py IR-DIRECTORY [--witness] [THEOREM …]`."""

import glob
import mmap
import os
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import z3

from runner.ir import Unreadable, read_constants, read_functions
from runner.machine import ENOUGH, Broken, Infeasible, Machine
from runner.solver import Solver, Undecided
from runner.theorems import THEOREMS

COMPILER = "rustc version 1.95."
SECONDS = 1200
CORES = 2
HOLDS, OUTSIDE = 0, -1
WITNESS = "--witness"


class Counts:
    """Numbers that the processes of all paths share."""

    NAMES = ("paths", "witnesses", "queries", "sums", "failures")

    def __init__(self):
        self.shared = mmap.mmap(-1, 8 * len(self.NAMES))

    def __getitem__(self, name):
        return struct.unpack_from("q", self.shared, 8 * self.NAMES.index(name))[0]

    def __setitem__(self, name, value):
        struct.pack_into("q", self.shared, 8 * self.NAMES.index(name), value)


def read_ir(directory):
    """Returns the functions and constants of theorems and core. Refuses the IR of another compiler."""
    paths = [
        path for name in ("core", "proofs") for path in glob.glob(f"{directory}/tokenbucket_{name}-*.ll")
    ]
    if len(paths) != 2:
        sys.exit(f"prove: expected the IR of core and theorems in {directory}, found {paths}")
    functions, constants = {}, {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if COMPILER not in text:
            found = [line for line in text.splitlines() if "rustc version" in line]
            sys.exit(f"prove: the runner reads the IR of {COMPILER}x, and this is of {found}")
        functions.update(read_functions(path))
        constants.update(read_constants(path))
    return functions, constants


def symbol(functions, theorem):
    name = theorem.function or theorem.name
    part = f"18tokenbucket_proofs{len(name)}{name}17h"
    found = [function for function in functions if part in function]
    if len(found) != 1:
        sys.exit(f"prove: {name} is there {len(found)} times")
    return found[0]


def walk(program, theorem, counts, shows_witness):
    """Follows all paths. Returns only in the first process."""
    solver = Solver(counts, time.monotonic() + SECONDS)
    machine = Machine(program, solver, counts, overflow_breaks=theorem.overflow_breaks)
    unknowns = {name: z3.Int(name) for name in theorem.unknowns}
    for name, (low, high) in theorem.unknowns.items():
        solver.add(z3.And(unknowns[name] >= low, unknowns[name] <= high))
    for condition in theorem.domain(**unknowns):
        solver.add(condition)
    try:
        arguments, machine.cuts = theorem.arrange(machine, **unknowns)
        verdict = machine.call(symbol(machine.functions, theorem), arguments)
        if conclude(machine, verdict, counts) and shows_witness:
            print(f"    holds at {numbers(find_witness(solver), unknowns)}")
    except Infeasible:
        pass
    except (Broken, Undecided, Unreadable) as failure:
        report(failure, unknowns, counts)
    if machine.is_child:
        sys.stdout.flush()
        os._exit(0)


def conclude(machine, verdict, counts):
    """Ends a path: it holds, is outside of the domain, or nothing leads to it.

    Returns whether it has the first witness.
    """
    counts["paths"] += 1
    if isinstance(verdict, int) and verdict == OUTSIDE:
        return False
    machine.require(verdict == HOLDS, f"sentence {verdict} is broken")
    if counts["witnesses"] or find_witness(machine.solver) is None:
        return False
    counts["witnesses"] += 1
    return True


def find_witness(solver):
    """Returns numbers that lead along the path, `None` if the solver finds none."""
    try:
        return solver.refute(z3.BoolVal(True))
    except Undecided:
        return None


def numbers(model, unknowns):
    return ", ".join(
        f"{name} = {model.eval(value, model_completion=True)}" for name, value in unknowns.items()
    )


def report(failure, unknowns, counts):
    counts["failures"] += 1
    if counts["failures"] > ENOUGH:
        return
    print(f"    {type(failure).__name__}: {failure}")
    model = getattr(failure, "model", None)
    if model is not None:
        print(f"    {numbers(model, unknowns)}")


def prove(program, theorem, shows_witness=False):
    """Prints a line. Returns whether the theorem is proved, which it is not without a witness."""
    counts, start = Counts(), time.monotonic()
    walk(program, theorem, counts, shows_witness)
    if counts["failures"] == 0 and counts["witnesses"] == 0:
        counts["failures"] += 1
        print("    Vacuous: no numbers are known for which it holds")
    is_proved = counts["failures"] == 0
    print(
        f"{'proved' if is_proved else 'OPEN  '} {theorem.name}: {counts['paths']} paths, "
        f"{counts['queries']} queries, "
        f"{counts['sums']} sums, {time.monotonic() - start:.1f} s"
    )
    return is_proved


def prove_apart(directory, theorem, options):
    """Proves a theorem in a process of its own, and prints its lines together."""
    command = [sys.executable, __file__, directory, *options, theorem.name]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout, end="", flush=True)
    return done.returncode == 0


def main(directory, *arguments):
    options = [argument for argument in arguments if argument == WITNESS]
    names = set(arguments) - {WITNESS}
    known = {theorem.name for theorem in THEOREMS}
    if unknown := names - known:
        sys.exit(f"prove: no theorem {sorted(unknown)}, only {sorted(known)}")
    chosen = [theorem for theorem in THEOREMS if not names or theorem.name in names]
    if len(chosen) == 1:
        sys.exit(not prove(read_ir(directory), chosen[0], shows_witness=bool(options)))
    with ThreadPoolExecutor(CORES) as pool:
        proved = list(pool.map(lambda theorem: prove_apart(directory, theorem, options), chosen))
    print(f"{sum(proved)} of {len(proved)} theorems proved")
    sys.exit(not all(proved))


if __name__ == "__main__":
    main(*sys.argv[1:])
