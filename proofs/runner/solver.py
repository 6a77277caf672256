"""Asks z3 about integers.

Products of unknowns become unknowns of their own, of which lemmas are stated when a model has them wrong:
every question is linear, and ends.
"""

import time

import z3

QUERY_MS = 20_000
REFINEMENTS = 60
CENTURY_US = 3_155_760_000 * 10**6


class Undecided(Exception):
    """The solver does not decide a question, or the theorem takes too long."""


class Products:
    """Puts an unknown in the place of each product of unknowns."""

    COMPARE = {
        z3.Z3_OP_LE: lambda side: side <= 0,
        z3.Z3_OP_LT: lambda side: side < 0,
        z3.Z3_OP_GE: lambda side: side >= 0,
        z3.Z3_OP_GT: lambda side: side > 0,
        z3.Z3_OP_EQ: lambda side: side == 0,
        z3.Z3_OP_DISTINCT: lambda side: side != 0,
    }

    def __init__(self):
        self.unknowns = {}
        self.done = {}

    def linear(self, term):
        """Returns the term with its products replaced. Keeps it: z3 numbers a term as long as it lives."""
        key = term.get_id()
        if key not in self.done:
            self.done[key] = (term, self._formula(term))
        return self.done[key][1]

    def _formula(self, term):
        """Compares side by side: z3 turns a product's comparison with 0 into one of its factors' signs."""
        if z3.is_int(term):
            return self._sum(z3.simplify(term, som=True))
        children = term.children()
        compare = self.COMPARE.get(term.decl().kind())
        if compare and len(children) == 2 and all(map(z3.is_int, children)):
            return compare(self._sum(z3.simplify(children[0] - children[1], som=True)))
        children = [self._formula(child) for child in children]
        if z3.is_and(term):
            return z3.And(*children)
        if z3.is_or(term):
            return z3.Or(*children)
        return term.decl()(*children) if children else term

    def _sum(self, term):
        kind = term.decl().kind()
        if kind == z3.Z3_OP_ADD:
            return z3.Sum([self._sum(child) for child in term.children()])
        if kind in (z3.Z3_OP_MUL, z3.Z3_OP_POWER):
            return self._product(term)
        return term

    def _product(self, term):
        number, factors = factors_of(term)
        if len(factors) == 1:
            return number * factors[0]
        key = tuple(sorted(factor.get_id() for factor in factors))
        if key not in self.unknowns:
            self.unknowns[key] = (factors, z3.FreshInt("product"))
        return number * self.unknowns[key][1]

    def lemmas(self, model):
        """Returns what excludes the model: the tangents at its point of each product that is wrong in it."""
        found = []
        for factors, product in list(self.unknowns.values()):
            if len(factors) != 2:
                continue
            (a, b), (at_a, at_b) = factors, (value_in(model, factor) for factor in factors)
            if value_in(model, product) != at_a * at_b:
                found += tangents(a, b, product, at_a, at_b)
        return found


def factors_of(term):
    """Returns the number and the unknowns of which a term is the product."""
    if z3.is_int_value(term):
        return term.as_long(), []
    if term.decl().kind() == z3.Z3_OP_POWER:
        base, exponent = term.children()
        return 1, [base] * exponent.as_long()
    if term.decl().kind() != z3.Z3_OP_MUL:
        return 1, [term]
    number, factors = 1, []
    for child in term.children():
        times, unknowns = factors_of(child)
        number, factors = number * times, factors + unknowns
    return number, factors


def value_in(model, term):
    return model.eval(term, model_completion=True).as_long()


def tangents(a, b, product, at_a, at_b):
    tangent = at_b * a + at_a * b - at_a * at_b
    return [
        z3.Implies(a == at_a, product == at_a * b),
        z3.Implies(b == at_b, product == at_b * a),
        z3.Implies(z3.Or(z3.And(a < at_a, b > at_b), z3.And(a > at_a, b < at_b)), product < tangent),
        z3.Implies(z3.Or(z3.And(a < at_a, b < at_b), z3.And(a > at_a, b > at_b)), product > tangent),
    ]


class Solver:
    """Knows what holds on one path."""

    # Where the factors of a product are compared with numbers, the product is compared with their product.
    BOUNDS = (0, CENTURY_US - 1, CENTURY_US, 2**60, 10**18, -(10**18), 2**62, 2**64)

    def __init__(self, counts, deadline):
        self.counts, self.deadline = counts, deadline
        self.z3 = z3.Solver()
        self.z3.set("timeout", QUERY_MS)
        self.products = Products()
        self.scaled = {}

    def add(self, condition):
        self.z3.add(self.products.linear(condition))

    def state(self, *facts):
        """Adds facts that have no products."""
        self.z3.add(*facts)

    def times(self, value, term):
        """Multiplies by a term that is known to be positive. States how the product grows with the value."""
        known = self.scaled.setdefault(term.get_id(), [])
        if any(value.eq(other) for other in known):
            return value * term
        for bound in self.BOUNDS:
            self.add(z3.Implies(value <= bound, value * term <= bound * term))
            self.add(z3.Implies(value >= bound, value * term >= bound * term))
        self.add(z3.Implies(value >= 1, value * term >= term))
        for other in known:
            self._state_order(value, other, term)
            self._state_order(other, value, term)
        known.append(value)
        return value * term

    def _state_order(self, less, more, term):
        self.add(z3.Implies(less <= more, less * term <= more * term))
        self.add(z3.Implies(less + 1 <= more, less * term + term <= more * term))

    def check(self, *conditions):
        if time.monotonic() > self.deadline:
            raise Undecided("out of time")
        self.counts["queries"] += 1
        return self.z3.check(*(self.products.linear(condition) for condition in conditions))

    def may_hold(self, condition):
        """Returns whether the condition may hold on this path. What is not decided may."""
        return self.check(condition) != z3.unsat

    def refute(self, condition):
        """Returns `None` if the condition holds nowhere on this path, or a model of where it does."""
        self.z3.push()
        try:
            self.add(condition)
            for _ in range(REFINEMENTS):
                answer = self.check()
                if answer == z3.unsat:
                    return None
                if answer != z3.sat:
                    raise Undecided(f"z3: {self.z3.reason_unknown()}")
                model = self.z3.model()
                lemmas = self.products.lemmas(model)
                if not lemmas:
                    return model
                self.z3.add(*lemmas)
            raise Undecided("no end of wrong products")
        finally:
            self.z3.pop()
