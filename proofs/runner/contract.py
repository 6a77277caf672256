"""What the theorems `flow` and `reaches` say of a rate, in the place of its code.

A rate is a function W of time that never falls: what has flowed up to a moment, as a fraction. A flow is
its difference, rounded down; the time to an amount is the first whole moment at which the difference is
that amount.
"""

import z3

LATEST = 2**60
SATURATED = 2**62
MOST_MISSING = 2 * 10**18

flowed = z3.Function("W", z3.IntSort(), z3.RealSort())
flow = z3.Function("flow", z3.IntSort(), z3.IntSort(), z3.IntSort())
carry = z3.Function("carry", z3.IntSort(), z3.IntSort(), z3.IntSort())
reaches = z3.Function("reaches", z3.IntSort(), z3.IntSort(), z3.IntSort())


def as_term(value):
    return z3.IntVal(value) if isinstance(value, int) else z3.simplify(value)


class Contract:
    """Stands for the functions of one rate, on one path. A rate that is steady flows in every microsecond."""

    def __init__(self, is_steady=False):
        self.moments = []
        self.is_steady = is_steady

    def cuts(self):
        """Returns which functions it stands for, by a part of their names."""
        return (
            ("4rate4Rate4flow17h", self.flow),
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
        micro, rest = flow(since, until), carry(since, until)
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
                    z3.Implies(moment <= other, flowed(moment) <= flowed(other)),
                    z3.Implies(other <= moment, flowed(other) <= flowed(moment)),
                )
            self.moments.append(moment)
        return flowed(moment)
