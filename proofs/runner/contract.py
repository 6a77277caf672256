"""What the theorems `flow` and `reaches` say of a rate, in the place of its code.

A rate is a function W of time that never falls: what has flowed up to a moment, as a fraction. A flow is
its difference, rounded down; the time to an amount is the first whole moment at which the difference is
that amount.
"""

import z3

from .machine import Pointer

LATEST = 2**60
SATURATED = 2**62
MOST_MISSING = 2 * 10**18
DEEPEST_DEBT = -(10**18)

flow_up = z3.Function("flow_up", z3.IntSort(), z3.IntSort(), z3.IntSort())
carry_up = z3.Function("carry_up", z3.IntSort(), z3.IntSort(), z3.IntSort())
reaches = z3.Function("reaches", z3.IntSort(), z3.IntSort(), z3.IntSort())


def as_term(value):
    return z3.IntVal(value) if isinstance(value, int) else z3.simplify(value)


class Contract:
    """Stands for the functions of one rate, on one path. A rate that is steady flows in every microsecond."""

    def __init__(self, is_steady=False, name=""):
        self.moments = []
        self.is_steady = is_steady
        self.flowed = z3.Function(f"W{name}", z3.IntSort(), z3.RealSort())
        self.flow_of, self.carry_of = (
            z3.Function(f"{part}{name}", z3.IntSort(), z3.IntSort(), z3.IntSort()) for part in ("flow", "carry")
        )

    def cuts(self):
        """Returns which functions it stands for, by a part of their names."""
        return (
            ("4rate4Rate4flow17h", self.flow),
            ("4rate4Rate7flow_up17h", self.flow_up),
            ("4rate4Rate13reaches_at_us17h", self.reaches),
            # Limits that are accepted, of rates above 0.
            ("4rate4Rate24refills_within_a_century17h", lambda machine, rate, capacity: True),
            ("6bucket5Limit7is_pool17h", lambda machine, limit: False),
        )

    def flow(self, machine, _rate, since, until):
        in_domain = z3.And(
            as_term(since) >= 0, as_term(since) <= LATEST, as_term(until) >= 0, as_term(until) <= LATEST
        )
        machine.require(in_domain, "flow is asked outside of the domain of its theorem")
        if machine.decide(until <= since):
            return (0, 0)
        since, until = as_term(since), as_term(until)
        micro, rest = self.flow_of(since, until), self.carry_of(since, until)
        brought = self._at(machine, until) - self._at(machine, since)
        machine.solver.state(
            micro >= 0,
            micro <= SATURATED,
            rest >= 0,
            rest <= until - since,
            z3.ToReal(micro) <= self._at(machine, until - rest) - self._at(machine, since),
            z3.Implies(micro < SATURATED, brought < z3.ToReal(micro) + 1),
        )
        if self.is_steady:
            # Sentence 7 of `flow`: a microsecond earlier it is not enough.
            earlier = self._at(machine, until - rest - 1) - self._at(machine, since)
            machine.solver.state(z3.Implies(micro < SATURATED, earlier < z3.ToReal(micro)))
        return (micro, rest)

    def flow_up(self, machine, _rate, since, until):
        in_domain = z3.And(as_term(since) >= 0, as_term(until) <= LATEST)
        machine.require(in_domain, "flow_up is asked outside of the domain of its theorem")
        if machine.decide(until <= since):
            return (0, 0)
        since, until = as_term(since), as_term(until)
        micro, rest = flow_up(since, until), carry_up(since, until)
        at_until = self._at(machine, until)
        brought = at_until - self._at(machine, since)
        machine.solver.state(
            micro >= 0,
            micro <= SATURATED,
            rest >= 0,
            rest <= SATURATED,
            z3.ToReal(micro) < brought + 1,
            z3.Implies(micro < SATURATED, brought <= z3.ToReal(micro)),
            z3.Implies(micro < SATURATED, at_until - self._at(machine, since - rest) <= z3.ToReal(micro)),
            # A microsecond more would be more than what was added. The rate is steady, so any microsecond will do.
            z3.Implies(
                micro < SATURATED,
                z3.ToReal(micro) < self._at(machine, until + 1) - self._at(machine, since - rest),
            ),
        )
        return (micro, rest)

    def reaches(self, machine, _rate, since, micro):
        in_domain = z3.And(as_term(since) >= 0, as_term(since) <= LATEST, as_term(micro) <= MOST_MISSING)
        machine.require(in_domain, "reaches_at_us is asked outside of the domain of its theorem")
        if machine.decide(micro <= 0):
            return since
        since, micro = as_term(since), as_term(micro)
        moment = reaches(since, micro)
        brought = self._at(machine, moment) - self._at(machine, since)
        earlier = self._at(machine, moment - 1) - self._at(machine, since)
        machine.solver.state(
            moment >= since + 1,
            moment <= since + SATURATED,
            earlier < z3.ToReal(micro),
            z3.Implies(moment < since + SATURATED, brought >= z3.ToReal(micro)),
        )
        return moment

    def _at(self, machine, moment):
        moment = as_term(moment)
        if not any(moment.eq(other) for other in self.moments):
            for other in self.moments:
                machine.solver.state(
                    z3.Implies(moment <= other, self.flowed(moment) <= self.flowed(other)),
                    z3.Implies(other <= moment, self.flowed(other) <= self.flowed(moment)),
                )
                if self.is_steady:
                    machine.solver.state((moment == other) == (self.flowed(moment) == self.flowed(other)))
            self.moments.append(moment)
        return self.flowed(moment)


class Holds:
    """Stands for a bucket's extension: what a decision asks of its holds, and one hold that may be there.

    When it reaches a level is any moment.
    """

    PLACE, HOLD, NULL = Pointer("holds", 0), Pointer("hold", 0), Pointer("null", 0)
    # Where a hold has its amount and its end.
    AMOUNT_AT, END_AT = 16, 24

    def __init__(self, machine, ended, last_end, is_held=0, amount=0, ends_at=0):
        self.ended, self.last_end, self.is_held = ended, last_end, is_held
        self.free = z3.Int("free")
        machine.memory.store(Pointer("hold", self.AMOUNT_AT), 8, amount)
        machine.memory.store(Pointer("hold", self.END_AT), 8, ends_at)

    def cuts(self):
        expiring = "Extension$u20$as$u20$tokenbucket_core..bucket..Expiring$GT$"
        return (
            ("4list5Holds14outstanding_of17h", self.outstanding_of),
            ("4list5Holds6remove17h", self.remove),
            ("4list5Holds3set17h", lambda machine, holds, hold: None),
            # There are never too many.
            ("4list5Holds3len17h", lambda machine, holds: 0),
            ("4list5Holds10free_micro17h", self.free_micro),
            # An empty one, where a bucket has none.
            ("drop_in_place$LT$tokenbucket_core..hold..extension..Extension$GT$17h", lambda machine, place: None),
            (f"{expiring}14returned_micro17h", self.returned_micro),
            (f"{expiring}11last_end_us17h", lambda machine, holds: self.last_end),
            (f"{expiring}13reaches_at_us17h", self.reaches),
            # No limit is overridden.
            ("9extension9Extension13is_overridden17h", lambda machine, holds: False),
            ("9extension9Extension8limit_at17h", lambda machine, holds, own, now: own),
            (f"{expiring}12is_suspended17h", lambda machine, holds, now: False),
            (f"{expiring}14limit_until_us17h", lambda machine, holds, now: 2**63 - 1),
        )

    def outstanding_of(self, machine, _holds, _id, _length, _now):
        return self.HOLD if machine.decide(self.is_held == 1) else self.NULL

    def returned_micro(self, machine, _holds, since, now):
        return 0 if machine.decide(as_term(since) >= as_term(now)) else self.ended

    def free_micro(self, machine, _holds, capacity, _now):
        machine.solver.state(self.free <= as_term(capacity), self.free >= DEEPEST_DEBT)
        return self.free

    def remove(self, machine, result, _holds, _id, _length):
        machine.memory.store(result, 8, self.HOLD)

    def reaches(self, machine, *arguments):
        *_, level, refilled_at, _included_until, wanted = arguments
        missing = as_term(wanted) - as_term(level)
        in_domain = z3.And(
            missing >= -MOST_MISSING, missing <= MOST_MISSING, refilled_at >= 0, refilled_at <= LATEST
        )
        machine.require(in_domain, "holds are asked outside of the domain of the theorems about rates")
        return any_moment(machine)


def any_moment(machine, first=0):
    moment = z3.FreshInt("moment")
    machine.solver.state(moment >= first, moment <= LATEST + SATURATED)
    return moment


class Decimals:
    """Stands for what reads a decimal number, by one step of it."""

    MOST_DIGITS = 10**32
    # Where a decimal has its parts. One that is not there is inexact in a third way.
    EXPONENT_AT, INEXACT_AT, NONE = 16, 24, 2

    def unknown(self, machine, name):
        mantissa, exponent, inexact = (
            z3.Int(f"{part} {name}") for part in ("mantissa", "exponent", "inexact")
        )
        machine.solver.state(mantissa >= 0, mantissa < self.MOST_DIGITS, inexact >= 0, inexact <= 1)
        machine.solver.state(exponent >= -(2**63), exponent < 2**63)
        return mantissa, exponent, inexact

    def store(self, machine, result, mantissa, exponent, inexact):
        machine.memory.store(result, 16, mantissa)
        machine.memory.store(at(result, self.EXPONENT_AT), 8, exponent)
        machine.memory.store(at(result, self.INEXACT_AT), 1, inexact)

    def load(self, machine, decimal):
        offsets_and_sizes = ((0, 16), (self.EXPONENT_AT, 8), (self.INEXACT_AT, 1))
        return [machine.memory.load(at(decimal, offset), size) for offset, size in offsets_and_sizes]

    def one_digit_more(self, machine, result, _bytes, _length):
        """Appends a digit to any decimal, in the place of reading one: the step of an induction."""
        mantissa, exponent, inexact = self.unknown(machine, "before")
        digit, shift = z3.Int("digit"), z3.Int("shift")
        machine.solver.state(exponent >= -(2**62), exponent <= 2**62, digit >= 0, digit <= 9)
        machine.solver.state(shift >= -1, shift <= 0)
        decimal = Pointer("decimal", 0)
        self.store(machine, decimal, mantissa, exponent, inexact)
        push = next(name for name in machine.functions if "7Decimal4push17h" in name)
        machine.call(push, [decimal, digit + ord("0"), shift])
        found = self.load(machine, decimal)
        is_kept = found[0] == mantissa * 10 + digit
        machine.require(z3.And(found[0] >= 0, found[0] < self.MOST_DIGITS), "too many digits are kept")
        machine.require(
            z3.Or(is_kept, z3.And(found[0] == mantissa, mantissa >= self.MOST_DIGITS / 10)), "a digit is lost"
        )
        machine.require(found[1] == exponent + shift + z3.If(is_kept, 0, 1), "a digit is in a wrong place")
        machine.memory.store(at(result, self.INEXACT_AT), 1, self.NONE)


def at(pointer, offset):
    return Pointer(pointer.base, pointer.offset + offset)
