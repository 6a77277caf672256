"""The theorems: the function, its unknowns, and their domain."""

from collections.abc import Callable
from dataclasses import dataclass

import z3

from .contract import LATEST, MOST_MISSING, Contract
from .machine import Pointer

MAX_MICRO = 10**18
MAX_TOKENS = 10**12
CENTURY_S = 3_155_760_000
LONGEST_WAIT_MS = 30 * 86_400_000
I64 = (-(2**63), 2**63 - 1)
U64_TERM = (1, 2**64 - 1)
ANY_TERM = (0, 2**64 - 1)
U128 = 2**127

TIME = (0, LATEST)
AMOUNT = (0, MAX_MICRO)
TOKENS = (1, MAX_TOKENS)


@dataclass
class Theorem:
    """A function of the crate of theorems, and what is true of its arguments."""

    name: str
    unknowns: dict[str, tuple[int, int]]
    arrange: Callable
    overflow_breaks: bool = False
    domain: Callable = lambda **unknowns: []
    function: str = ""


def with_terms(*names):
    """Passes all unknowns as they are. Terms of a rate are positive, and of 64 bits without a sign."""

    def arrange(machine, **unknowns):
        machine.positive = {unknowns[name].get_id() for name in names}
        return [
            machine.wrapped(value, 64) if name in names else value for name, value in unknowns.items()
        ], ()

    return arrange


def scaled(machine, numerator, denominator, **others):
    """Passes a decimal rate, whose terms its own code would compute from a power of ten."""
    machine.positive = {numerator.get_id(), denominator.get_id()}
    rate = Pointer("rate", 0)
    machine.memory.store(rate, 8, 1)

    def terms(machine, result, _scaled):
        machine.memory.store(result, 16, numerator)
        machine.memory.store(Pointer(result.base, result.offset + 16), 16, denominator)

    return [rate, numerator, denominator, *others.values()], (("5ratio6Scaled4wide17h", terms),)


def scene(machine, capacity, is_stored, level, refilled_at, now, *, is_steady=False, **others):
    """Passes a scene whose rate is any that the contract describes."""
    rate, at = Pointer("rate", 0), lambda offset: Pointer("scene", offset)
    tag = z3.Int("kind")
    machine.solver.state(tag >= 0, tag <= 2)
    machine.memory.store(rate, 8, tag)
    fields = (rate, capacity, is_stored, level, refilled_at, now)
    for index, value in enumerate(fields):
        machine.memory.store(at(8 * index), 1 if value is is_stored else 8, value)
    return [at(0), *others.values()], Contract(is_steady).cuts()


def steady_scene(machine, **unknowns):
    """Passes a scene whose rate flows all the time: a ratio or a decimal one."""
    return scene(machine, **unknowns, is_steady=True)


def any_rate(machine, **unknowns):
    return [Pointer("rate", 0), *unknowns.values()], Contract().cuts()


BUCKET = {"capacity": AMOUNT, "is_stored": (0, 1), "level": (-MAX_MICRO, MAX_MICRO), "refilled_at": TIME}
CALL = {**BUCKET, "now": TIME}
CALL_AT_ANY_TIME = {**BUCKET, "now": I64}
LATER = {"later": TIME}
EARLY = {"early": (1000, 2**60)}
WAIT = {"max_wait": (0, LONGEST_WAIT_MS)}


def within_bounds(numerator, denominator, **_others):
    """What a decimal rate is: neither too fast nor too slow, and one term within 64 bits."""
    return [
        numerator <= denominator * MAX_TOKENS,
        denominator <= numerator * CENTURY_S,
        z3.Or(numerator < 2**64, denominator < 2**64),
    ]


def within_the_clock(since, until, **_others):
    """Follows from the bounds of both moments, and makes the solver quicker."""
    return [until - since <= LATEST]


RATIO = {"numerator": U64_TERM, "denominator": U64_TERM}
WIDE = {"numerator": (1, U128 - 1), "denominator": (1, U128 - 1)}
SPAN = {"since": TIME, "until": TIME}
MISSING = {"since": TIME, "missing": (-MAX_MICRO, MOST_MISSING)}


def of_scene(name, unknowns):
    return Theorem(name, {**CALL, **unknowns}, scene)


def of_sums(name, unknowns):
    return Theorem(name, {**CALL_AT_ANY_TIME, **unknowns}, scene, overflow_breaks=True)


THEOREMS = [
    Theorem(
        "ratio_is_within_bounds",
        {"numerator": ANY_TERM, "denominator": ANY_TERM},
        with_terms("numerator", "denominator"),
    ),
    Theorem("refills_of_ratio", {**RATIO, "capacity": AMOUNT}, with_terms("numerator", "denominator")),
    Theorem(
        "refills_of_decimal", {**WIDE, "capacity": AMOUNT}, scaled, domain=within_bounds, function="refills"
    ),
    Theorem(
        "flow_of_ratio", {**RATIO, **SPAN}, with_terms("numerator", "denominator"), domain=within_the_clock
    ),
    Theorem("reaches_of_ratio", {**RATIO, **MISSING}, with_terms("numerator", "denominator")),
    Theorem("flow_of_decimal", {**WIDE, **SPAN}, scaled, domain=within_bounds, function="flow"),
    Theorem("reaches_of_decimal", {**WIDE, **MISSING}, scaled, domain=within_bounds, function="reaches"),
    Theorem("split", {"since": TIME, "between": TIME, "until": TIME}, any_rate),
    of_scene("take_wins_nothing", {"cost": AMOUNT, **LATER}),
    of_scene("take_up_to_wins_nothing", {"max": TOKENS, **LATER}),
    of_scene("reserve_wins_nothing", {"cost": AMOUNT, **WAIT, **LATER}),
    of_scene("charge_wins_nothing", {"amount": AMOUNT, **LATER}),
    of_scene("give_wins_nothing", {"amount": AMOUNT, **LATER}),
    of_scene("take_waits_honestly", {"cost": AMOUNT, **EARLY}),
    of_scene("take_up_to_waits_honestly", {"max": TOKENS, **EARLY}),
    of_scene("reserve_waits_honestly", {"cost": AMOUNT, **WAIT}),
    of_scene("denied_take_changes_nothing", {"cost": AMOUNT}),
    Theorem("take_loses_less_than_a_microsecond", {**CALL, "cost": AMOUNT}, steady_scene),
    of_sums("take_overflows_nowhere", {"cost": AMOUNT}),
    of_sums("take_up_to_overflows_nowhere", {"max": TOKENS}),
    of_sums("reserve_overflows_nowhere", {"cost": AMOUNT, **WAIT}),
    of_sums("charge_overflows_nowhere", {"amount": AMOUNT}),
    of_sums("give_overflows_nowhere", {"amount": AMOUNT}),
    of_sums("behind_overflows_nowhere", {"cost": AMOUNT, "ahead": (0, I64[1])}),
    of_sums("other_overflows_nowhere", {}),
    of_sums("wait_overflows_nowhere", {"level_wanted": AMOUNT}),
]
