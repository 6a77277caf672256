"""The theorems: the function, its unknowns, and their domain."""

from collections.abc import Callable
from dataclasses import dataclass

import z3

from .contract import LATEST, MOST_MISSING, Contract, Decimals, Holds, any_moment
from .machine import Pointer

MAX_MICRO = 10**18
MAX_TOKENS = 10**12
CENTURY_S = 3_155_760_000
LONGEST_WAIT_MS = 30 * 86_400_000
I64 = (-(2**63), 2**63 - 1)
U64_TERM = (1, 2**64 - 1)
ANY_TERM = (0, 2**64 - 1)
U128 = 2**127
MOST_RETURNED = 2**61
MARK_AT = 8

TIME = (0, LATEST)
AMOUNT = (0, MAX_MICRO)
TOKENS = (1, MAX_TOKENS)

# What holds have returned, and when the last one ends.
NO_HOLDS = (0, I64[0])
HOLDS = {"ended": (0, MOST_RETURNED), "last_end": (I64[0], LATEST)}


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


def scene(
    machine, capacity, is_stored, level, refilled_at, now, *, is_steady=False, holds=NO_HOLDS, **others
):
    """Passes a scene whose rate is any that the contract describes."""
    rate, at = Pointer("rate", 0), lambda offset: Pointer("scene", offset)
    tag = z3.Int("kind")
    machine.solver.state(tag >= 0, tag <= 2)
    machine.memory.store(rate, 8, tag)
    fields = (rate, capacity, is_stored, level, refilled_at, now, *holds)
    for index, value in enumerate(fields):
        machine.memory.store(at(8 * index), 1 if value is is_stored else 8, value)
    return [at(0), *others.values()], Contract(is_steady).cuts()


def steady_scene(machine, **unknowns):
    """Passes a scene whose rate flows all the time: a ratio or a decimal one."""
    return scene(machine, **unknowns, is_steady=True)


def scene_of_override(machine, other_capacity, fills, end, **unknowns):
    """Passes a scene, and an override by another rate. Behind its kind, a rate has a mark that tells them apart."""
    (at,), _ = scene(machine, **unknowns)
    own, other = Contract(), Contract(name=" of override")
    place = Pointer("other rate", 0)
    machine.memory.store(place, 8, 0)
    for mark, rate in enumerate((Pointer("rate", 0), place)):
        machine.memory.store(Pointer(rate.base, MARK_AT), 8, mark)

    def flow(machine, rate, since, until):
        mark = machine.memory.load(Pointer(rate.base, rate.offset + MARK_AT), 8)
        return (own, other)[mark].flow(machine, rate, since, until)

    cuts = [("4rate4Rate4flow17h", flow), *(cut for cut in own.cuts() if "4flow17h" not in cut[0])]
    return [at, place, other_capacity, fills == 1, end], cuts


def scene_with_ended(machine, ended, **unknowns):
    """Passes a scene with holds that have ended. No sum needs more of them."""
    arguments, cuts = scene(machine, holds=(ended, I64[0]), **unknowns)
    return arguments, (*Holds(machine, ended, I64[0]).cuts(), *cuts)


def scene_with_holds(machine, ended, last_end, **unknowns):
    """Passes a scene with any holds, whose limit may be a pool's."""
    arguments, cuts = scene(machine, holds=(ended, last_end), **unknowns)
    cuts = [cut for cut in cuts if "is_pool" not in cut[0]]
    cuts.append(("6bucket5Limit7is_pool17h", lambda machine, limit: machine.decide(z3.Bool("is_pool"))))
    return arguments, (*Holds(machine, ended, last_end).cuts(), *cuts)


def step_with_holds(machine, **unknowns):
    """Passes a scene with any holds. The waits of its call may be any."""
    arguments, cuts = scene_with_holds(machine, **unknowns)
    waits = (
        ("View$LT$R$GT$10full_at_us17h", lambda machine, *_: any_moment(machine)),
        ("View$LT$R$GT$13wait_until_ms17h", lambda machine, *_: any_moment(machine, first=-1)),
    )
    return arguments, (*waits, *cuts)


def scene_of_hold(machine, ended, last_end, is_held, held, ends_at, amount, **unknowns):
    """Passes a scene, holds by their contract, the id of one that may be there, and an amount."""
    (at,), cuts = scene_with_holds(machine, ended, last_end, **unknowns)
    machine.solver.add(z3.Implies(is_held == 1, ends_at > unknowns["now"]))
    holds = Holds(machine, ended, last_end, is_held, held, ends_at)
    return [at, holds.PLACE, Pointer("id", 0), 1, amount], (*holds.cuts(), *cuts)


def scene_of_reply(machine, ended, last_end, taken, **unknowns):
    """Passes a scene, holds by their contract, and what was taken."""
    (at,), cuts = scene_with_holds(machine, ended, last_end, **unknowns)
    return [at, Holds.PLACE, taken], cuts


def any_rate(machine, **unknowns):
    return [Pointer("rate", 0), *unknowns.values()], Contract().cuts()


BYTES = Pointer("bytes", 0)


def spell(machine, *parts):
    """Stores text and digits one after the other. Returns where, and their length."""
    codes = [ord(code) if isinstance(code, str) else code + ord("0") for part in parts for code in part]
    for index, code in enumerate(codes):
        machine.memory.store(Pointer(BYTES.base, index), 1, code)
    return [BYTES, len(codes)]


def choose(machine, unknown, choices):
    """Follows each choice: as many as the unknown has numbers."""
    *others, last = choices
    return next((choice for index, choice in enumerate(others) if machine.decide(unknown == index)), last)


def number(digits):
    return sum(10**place * digit for place, digit in enumerate(reversed(digits)))


def spelled_amount(machine, whole_digits, fraction_digits, **digits):
    """Passes an amount of some digits, and what they say."""
    digits = list(digits.values())
    whole = digits[: choose(machine, whole_digits, range(1, 13))]
    fraction = digits[12:][: choose(machine, fraction_digits, range(7))]
    micro = number(whole) * 10**6 + number(fraction) * 10 ** (6 - len(fraction))
    return [*spell(machine, whole, "." if fraction else "", fraction), micro], ()


def two_decisions(machine, **numbers):
    """Passes two replies of four numbers."""
    for index, number in enumerate(numbers.values()):
        machine.memory.store(Pointer(f"decision {index // 4}", index % 4 * 8), 8, number)
    return [Pointer("decision 0", 0), Pointer("decision 1", 0)], ()


def one_digit_more(machine):
    return spell(machine, "e"), (("7Decimal5parse17h", Decimals().one_digit_more),)


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


def digits(count):
    return {f"digit_{index}": (0, 9) for index in range(count)}


SPELLED_AMOUNT = {"whole_digits": (0, 11), "fraction_digits": (0, 6), **digits(18)}


def of_scene(name, unknowns):
    return Theorem(name, {**CALL, **unknowns}, scene)


def of_steps(name, unknowns):
    return Theorem(name, {**CALL, **HOLDS, **LATER, **unknowns}, step_with_holds)


def of_hold(name):
    hold = {"is_held": (0, 1), "held": (1, MAX_MICRO), "ends_at": TIME, "amount": AMOUNT}
    return Theorem(name, {**CALL, **HOLDS, **hold}, scene_of_hold, overflow_breaks=True)


def of_sums(name, unknowns):
    unknowns = {**CALL_AT_ANY_TIME, "ended": HOLDS["ended"], **unknowns}
    return Theorem(name, unknowns, scene_with_ended, overflow_breaks=True)


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
    Theorem(
        "flow_up_of_ratio", {**RATIO, **SPAN}, with_terms("numerator", "denominator"), domain=within_the_clock
    ),
    Theorem("flow_up_of_decimal", {**WIDE, **SPAN}, scaled, domain=within_bounds, function="flow_up"),
    Theorem("amount_is_read", SPELLED_AMOUNT, spelled_amount, overflow_breaks=True),
    Theorem(
        "digit_is_appended", {}, one_digit_more, overflow_breaks=True, function="amount_is_within_bounds"
    ),
    Theorem("tightest_binds", {f"number_{index}": I64 for index in range(8)}, two_decisions),
    Theorem("split", {"since": TIME, "between": TIME, "until": TIME}, any_rate),
    of_steps("take_wins_nothing", {"cost": AMOUNT}),
    of_steps("take_up_to_wins_nothing", {"max": TOKENS}),
    of_steps("reserve_wins_nothing", {"cost": AMOUNT, **WAIT}),
    of_steps("charge_wins_nothing", {"amount": AMOUNT}),
    of_steps("give_wins_nothing", {"amount": AMOUNT}),
    of_scene("take_waits_honestly", {"cost": AMOUNT, **EARLY}),
    of_scene("take_up_to_waits_honestly", {"max": TOKENS, **EARLY}),
    of_scene("reserve_waits_honestly", {"cost": AMOUNT, **WAIT}),
    of_scene("charge_waits_honestly", {"amount": AMOUNT}),
    of_scene("reset_is_honest", {"cost": AMOUNT}),
    of_scene("wait_is_the_first_that_suffices", {"level_wanted": AMOUNT}),
    of_scene("denied_take_changes_nothing", {"cost": AMOUNT}),
    Theorem("take_loses_less_than_a_microsecond", {**CALL, "cost": AMOUNT}, steady_scene),
    Theorem("bucket_is_full_at", {**CALL, "full_at": TIME}, steady_scene, overflow_breaks=True),
    of_hold("hold_takes_the_difference"),
    of_hold("settle_gives_back"),
    Theorem(
        "hold_is_replied",
        {**CALL, **HOLDS, "ended": (0, 0), "taken": (-MAX_MICRO, MAX_MICRO)},
        scene_of_reply,
        overflow_breaks=True,
    ),
    Theorem(
        "ended_override_leaves_its_flow",
        {**CALL, "other_capacity": AMOUNT, "fills": (0, 1), "end": TIME},
        scene_of_override,
        overflow_breaks=True,
    ),
    of_sums("take_overflows_nowhere", {"cost": AMOUNT}),
    of_sums("take_up_to_overflows_nowhere", {"max": TOKENS}),
    of_sums("reserve_overflows_nowhere", {"cost": AMOUNT, **WAIT}),
    of_sums("charge_overflows_nowhere", {"amount": AMOUNT}),
    of_sums("give_overflows_nowhere", {"amount": AMOUNT}),
    Theorem(
        "behind_overflows_nowhere",
        {**CALL_AT_ANY_TIME, **HOLDS, "cost": AMOUNT, "ahead": (0, I64[1])},
        scene_with_holds,
        overflow_breaks=True,
    ),
    of_sums("other_overflows_nowhere", {}),
    Theorem(
        "wait_overflows_nowhere",
        {**CALL_AT_ANY_TIME, "level_wanted": AMOUNT},
        scene,
        overflow_breaks=True,
    ),
]
