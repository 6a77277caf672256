"""Runs a function on symbolic integers, path by path.

An integer of N bits is the mathematical integer that its bits mean when signed; one of 1 bit is a boolean.
Each is a Python number where it is known, else a term of z3. A sum that may leave its bits is followed both
ways, or is an error, as the theorem asks.
"""

import os
import re
import sys
from typing import NamedTuple

import z3

from .ir import CALLEE, NAME, Unreadable, split_arguments


class Broken(Exception):
    """The theorem does not hold: what is wrong, and a model of it."""

    def __init__(self, what, model=None):
        super().__init__(what)
        self.what, self.model = what, model


class Infeasible(Exception):
    """Nothing leads to the end of this path."""


class Pointer(NamedTuple):
    base: object
    offset: int


# Where an empty slice is.
NOWHERE, DANGLING = "inttoptr (i64 1 to ptr)", Pointer("nowhere", 1)


class Poison:
    """A value that nothing may depend on."""

    def __eq__(self, other):
        raise Unreadable("a comparison of what was never written")


POISON = Poison()
# After so many failures a theorem is followed no further.
ENOUGH = 3
COMPARE = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}
BITWISE = {"and": lambda x, y: x & y, "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y}
CASTS = re.compile(r"(\w+)((?: nneg| nuw| nsw)*) i(\d+) (\S+) to i(\d+)")
BINARY = re.compile(r"\w+(?: (?:nuw|nsw|exact|disjoint))* i(\d+) ([^,]+), (.+)")
ICMP = re.compile(r"icmp (?:samesign )?(\w+) (\S+) ([^,]+), (.+)")
STEP = re.compile(r"getelementptr(?: inbounds| nuw| nusw)* (i\d+|ptr), ptr ([^,]+), i64 (.+)")
LOAD = re.compile(r"load (\S+), ptr ([^,]+)")
STORE = re.compile(r"store (\S+) ([^,]+), ptr ([^,]+)")
INCOMING = re.compile(rf"\[ ([^,]+), %({NAME}) \]")
CASE = re.compile(rf"i\d+ (-?\d+), label %({NAME})")
TARGET = re.compile(rf"label %({NAME})")
ARITHMETIC = re.compile(r"llvm\.(s|u)(add|sub|mul)\.(sat|with\.overflow)\.i(\d+)$")
EXTREME = re.compile(r"llvm\.(s|u)(min|max)\.i(\d+)$")
IGNORED = ("llvm.lifetime.", "llvm.dbg.", "llvm.experimental.noalias")
PANICS = ("panic", "unwrap_failed", "expect_failed", "unreachable")


def bits_of(kind):
    match = re.match(r"i(\d+)$", kind)
    return int(match.group(1)) if match else 64


def is_known(value):
    return isinstance(value, int)


def unquoted(name):
    return name.strip('"')


class Memory:
    """Cells at exact places: what is read is what was written there in one piece."""

    def __init__(self, constants):
        self.cells = {}
        self.constants = constants
        self.allocated = 0

    def allocate(self):
        self.allocated += 1
        return Pointer(self.allocated, 0)

    def _overlapping(self, base, first, end):
        return [
            (cell_base, offset)
            for (cell_base, offset), (size, _) in self.cells.items()
            if cell_base == base and offset < end and offset + size > first
        ]

    def store(self, at, size, value):
        for key in self._overlapping(at.base, at.offset, at.offset + size):
            del self.cells[key]
        self.cells[at] = (size, value)

    def load(self, at, size):
        found = self.cells.get(at)
        if found and found[0] == size:
            return found[1]
        if self._overlapping(at.base, at.offset, at.offset + size):
            raise Unreadable(f"a part of a cell at {at}")
        if at.base in self.constants:
            code = self.constants[at.base][at.offset : at.offset + size]
            return int.from_bytes(code, "little", signed=True)
        return POISON

    def copy(self, to, source, size):
        cells = [
            (key[1], self.cells[key])
            for key in self._overlapping(source.base, source.offset, source.offset + size)
        ]
        if source.base in self.constants:
            # Tables of constants are read by the word.
            words = range(source.offset, source.offset + size, 8)
            cells = [(offset, (8, self.load(Pointer(source.base, offset), 8))) for offset in words]
        for key in self._overlapping(to.base, to.offset, to.offset + size):
            del self.cells[key]
        for offset, cell in cells:
            self.cells[Pointer(to.base, to.offset + offset - source.offset)] = cell


class Machine:
    """One path: its memory, and what the solver knows on it."""

    def __init__(self, program, solver, counts, cuts=(), overflow_breaks=False):
        self.functions, constants = program
        self.solver, self.counts = solver, counts
        self.cuts, self.overflow_breaks = cuts, overflow_breaks
        self.memory = Memory(constants)
        self.divided = {}
        self.positive = set()
        self.is_child = False

    # Decisions and numbers.

    def decide(self, condition):
        """Follows both ways of a condition if both are open: one in a process of its own."""
        if is_known(condition):
            return bool(condition)
        if self.counts["failures"] >= ENOUGH:
            raise Infeasible
        if not self.solver.may_hold(condition):
            self.solver.add(z3.Not(condition))
            return False
        if self.solver.may_hold(z3.Not(condition)) and not self._is_followed():
            self.solver.add(z3.Not(condition))
            return False
        self.solver.add(condition)
        return True

    def _is_followed(self):
        """Returns `True` in a new process, and `False` in this one when the new one has ended."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            self.is_child = True
            return True
        _, status = os.waitpid(child, 0)
        if status:
            raise Unreadable("a path broke off")
        return False

    def require(self, condition, what):
        """Breaks the theorem if the condition can fail on this path."""
        if condition is True:
            return
        fails = z3.Not(condition) if not is_known(condition) else z3.BoolVal(True)
        model = self.solver.refute(fails)
        if model is not None:
            raise Broken(what, model)
        if is_known(condition):
            raise Infeasible

    def unsigned(self, value, bits):
        if is_known(value):
            return int(value) % (1 << bits)
        return value if self.decide(value >= 0) else z3.simplify(value + (1 << bits))

    def wrapped(self, value, bits):
        """Returns the signed number of the bits that are left of a sum or a conversion."""
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        if is_known(value):
            return (value - low) % (1 << bits) + low
        if not self.solver.may_hold(z3.Or(value > high, value < low)):
            return value
        if self.decide(value > high):
            return self._rest(value - (1 << bits), low, high)
        return self._rest(value + (1 << bits), low, high) if self.decide(value < low) else value

    def _rest(self, value, low, high):
        """Returns the number if it wraps once, else what is left of it after so many wraps as it takes."""
        if not self.solver.may_hold(z3.Or(value > high, value < low)):
            return value
        rest = value - (high - low + 1) * z3.FreshInt("wraps")
        self.solver.add(z3.And(rest >= low, rest <= high))
        return rest

    def summed(self, value, bits, text):
        """Wraps a sum, a difference or a product, if it may wrap."""
        # Characters wrap on purpose: what is below a digit is large then.
        if self.overflow_breaks and bits > 8:
            in_bits = (
                z3.And(value >= -(1 << (bits - 1)), value < 1 << (bits - 1)) if not is_known(value) else True
            )
            self.require(in_bits, f"a sum leaves its bits: {text}")
        self.counts["sums"] += 1
        return self.wrapped(value, bits)

    def product(self, x, y):
        for value, term in ((x, y), (y, x)):
            if not is_known(value) and not is_known(term) and term.get_id() in self.positive:
                return self.solver.times(value, term)
        return x * y

    def divide(self, dividend, divisor):
        """Returns quotient and rest of numbers that are not negative."""
        self.require(divisor > 0, "a division by zero")
        if is_known(dividend) and is_known(divisor):
            return divmod(dividend, divisor)
        key = (str(dividend), str(divisor)) if is_known(dividend) else (dividend.get_id(), str(divisor))
        if key not in self.divided:
            quotient, rest = z3.FreshInt("quotient"), z3.FreshInt("rest")
            self.solver.add(z3.And(rest >= 0, rest < divisor, quotient >= 0, quotient <= dividend))
            self.solver.add(dividend == self.product(quotient, divisor) + rest)
            self.divided[key] = (quotient, rest, dividend)
        return self.divided[key][:2]

    # Functions.

    def call(self, name, arguments):
        function = self.functions[name]
        values = dict(zip(function.parameters, arguments, strict=True))
        previous, label = None, function.entry
        while True:
            following = self._run_block(function.blocks[label], values, previous)
            if isinstance(following, tuple):
                return following[0]
            previous, label = label, following

    def _run_block(self, block, values, previous):
        """Returns the label of the next block, or what the function returns in a tuple."""
        incoming = {}
        for step in block:
            if step.opcode == "phi":
                incoming[step.result] = self._incoming(step.text, values, previous)
                continue
            values.update(incoming)
            incoming = {}
            if step.opcode in ("br", "switch"):
                return getattr(self, f"_do_{step.opcode}")(step.text, values)
            if step.opcode == "ret":
                return (self._returned(step.text, values),)
            if step.opcode == "unreachable":
                self.require(False, "what cannot be reached")
            result = self._do(step, values)
            if step.result:
                values[step.result] = result
        raise Unreadable("a block without an end")

    def _returned(self, text, values):
        if text == "ret void":
            return None
        if text.endswith("}"):
            constant = text.rsplit("{", 1)[1].rstrip(" }")
            return tuple(self._value(part.split()[-1], values) for part in split_arguments(constant))
        return self._value(text.split()[-1], values)

    def _do(self, step, values):
        handler = self.HANDLERS.get(step.opcode)
        if handler is None:
            raise Unreadable(step.text)
        try:
            return handler(self, step.text, values)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, z3.Z3Exception) as error:
            raise Unreadable(f"{step.text}: {error!r}") from error

    def _value(self, text, values):
        text = text.strip()
        if text.startswith("%"):
            return values[text]
        if text.startswith("@"):
            return Pointer(text, 0)
        if text.startswith("inttoptr"):
            return DANGLING
        known = {"true": True, "false": False, "null": Pointer("null", 0), "poison": POISON, "undef": POISON}
        return known[text] if text in known else int(text)

    def _incoming(self, text, values, previous):
        for value, label in INCOMING.findall(text):
            if unquoted(label) == previous:
                return self._value(value, values)
        raise Unreadable(text)

    def _do_br(self, text, values):
        targets = [unquoted(name) for name in TARGET.findall(text)]
        if len(targets) == 1:
            return targets[0]
        condition = self._value(split_arguments(text)[0].split()[-1], values)
        return targets[0] if self.decide(condition) else targets[1]

    def _do_switch(self, text, values):
        head, cases = text.split("[", 1)
        value = self._value(split_arguments(head)[0].split()[-1], values)
        for number, label in CASE.findall(cases):
            if self.decide(value == int(number)):
                return unquoted(label)
        return unquoted(TARGET.search(head).group(1))

    # Instructions: each takes its text and the values of names.

    def _do_sum(self, text, values):
        bits, x, y = BINARY.match(text).groups()
        x, y = self._value(x, values), self._value(y, values)
        opcode = text.split()[0]
        if isinstance(x, Pointer) and isinstance(y, Pointer) and x.base == y.base and opcode == "sub":
            return x.offset - y.offset
        total = x + y if opcode == "add" else x - y if opcode == "sub" else self.product(x, y)
        return self.summed(total, int(bits), text)

    def _do_division(self, text, values):
        bits, x, y = BINARY.match(text).groups()
        x, y, bits = self._value(x, values), self._value(y, values), int(bits)
        opcode = text.split()[0]
        if opcode[0] == "u":
            both = self.divide(self.unsigned(x, bits), self.unsigned(y, bits))
            return self.wrapped(both[opcode == "urem"], bits)
        is_negative = self.decide(x < 0)
        both = self.divide(-x if is_negative else x, y)
        result = both[opcode == "srem"]
        return -result if is_negative else result

    def _do_bitwise(self, text, values):
        bits, x, y = BINARY.match(text).groups()
        x, y = self._value(x, values), self._value(y, values)
        if int(bits) == 1:
            x, y = self.decide(x), self.decide(y)
        return BITWISE[text.split()[0]](x, y)

    def _do_icmp(self, text, values):
        predicate, kind, x, y = ICMP.match(text).groups()
        x, y = self._value(x, values), self._value(y, values)
        if kind == "ptr":
            return COMPARE[predicate](x, y)
        if predicate[0] == "u":
            x, y = self.unsigned(x, bits_of(kind)), self.unsigned(y, bits_of(kind))
        elif bits_of(kind) == 1:
            x, y = self.decide(x), self.decide(y)
        return COMPARE[predicate[-2:]](x, y)

    def _do_select(self, text, values):
        condition, *ways = (self._value(part.split()[-1], values) for part in split_arguments(text))
        return ways[0] if self.decide(condition) else ways[1]

    def _do_cast(self, text, values):
        opcode, flags, bits, value, to = CASTS.match(text).groups()
        bits, to, value = int(bits), int(to), self._value(value, values)
        if opcode == "trunc":
            return self._truncated(value, to, "nuw" in flags)
        if bits == 1:
            value = int(self.decide(value))
            return value if opcode == "zext" else -value
        return self.unsigned(value, bits) if opcode == "zext" else value

    def _truncated(self, value, to, is_small):
        if to > 1:
            return self.wrapped(value, to)
        if not is_known(value) and not is_small:
            raise Unreadable("the last bit of an unknown number")
        return value % 2 == 1 if is_known(value) else value == 1

    def _do_step(self, text, values):
        kind, pointer, count = STEP.match(text).groups()
        pointer = self._value(pointer, values)
        return Pointer(pointer.base, pointer.offset + self._value(count, values) * bits_of(kind) // 8)

    def _do_address(self, text, values):
        """Returns what may be compared with null, or taken from another in the same place."""
        pointer = self._value(text.split()[2], values)
        return 0 if pointer.base == "null" else pointer

    def _do_load(self, text, values):
        kind, pointer = LOAD.match(text).groups()
        return self.memory.load(self._value(pointer, values), (bits_of(kind) + 7) // 8)

    def _do_store(self, text, values):
        kind, value, pointer = STORE.match(text).groups()
        self.memory.store(self._value(pointer, values), (bits_of(kind) + 7) // 8, self._value(value, values))

    def _do_extract(self, text, values):
        aggregate, index = split_arguments(text.split("}", 1)[1])
        return self._value(aggregate, values)[int(index)]

    def _do_insert(self, text, values):
        aggregate, value, index = split_arguments(text.split("}", 1)[1])
        if aggregate.startswith("{"):
            fields = [self._value(part.split()[-1], values) for part in split_arguments(aggregate[1:])]
        else:
            aggregate = self._value(aggregate, values)
            fields = [POISON] * 2 if aggregate is POISON else list(aggregate)
        fields[int(index)] = self._value(value.split()[-1], values)
        return tuple(fields)

    def _do_call(self, text, values):
        match = CALLEE.search(text)
        name = unquoted(match.group(1))
        if name.startswith(IGNORED):
            return None
        if any(word in name for word in PANICS) and name not in self.functions:
            self.require(False, f"a panic: {name}")
        parts = split_arguments(text[match.end() :].replace(NOWHERE, "inttoptr"))
        arguments = [self._value(part.split()[-1], values) for part in parts]
        for part, cut in self.cuts:
            if part in name:
                return cut(self, *arguments)
        if name == "memcmp":
            return self._compared(*arguments)
        return self._intrinsic(name, arguments) if name.startswith("llvm.") else self.call(name, arguments)

    def _compared(self, one, other, length):
        """Tells whether bytes are the same, and no more."""
        pairs = zip(self._bytes(one, length), self._bytes(other, length), strict=True)
        return 0 if all(self.decide(left == right) for left, right in pairs) else 1

    def _bytes(self, start, length):
        return [self.memory.load(Pointer(start.base, start.offset + index), 1) for index in range(length)]

    def _intrinsic(self, name, arguments):
        if name.startswith("llvm.memcpy"):
            return self.memory.copy(*arguments[:3])
        if name.startswith("llvm.assume"):
            return None if is_known(arguments[0]) else self.solver.add(arguments[0])
        if name.startswith("llvm.expect"):
            return arguments[0]
        if match := EXTREME.match(name):
            return self._extreme(*match.groups(), *arguments)
        if match := ARITHMETIC.match(name):
            return self._checked(*match.groups(), *arguments)
        raise Unreadable(name)

    def _extreme(self, sign, which, bits, x, y):
        left, right = (self.unsigned(x, int(bits)), self.unsigned(y, int(bits))) if sign == "u" else (x, y)
        is_first = self.decide(left < right if which == "min" else left > right)
        return x if is_first else y

    def _checked(self, sign, which, how, bits, x, y):
        """Sums that saturate, or return whether they overflow: what is left then is any number."""
        bits = int(bits)
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        if sign == "u":
            x, y, low, high = self.unsigned(x, bits), self.unsigned(y, bits), 0, (1 << bits) - 1
        total = x + y if which == "add" else x - y if which == "sub" else self.product(x, y)
        is_above = self.decide(total > high)
        is_below = not is_above and self.decide(total < low)
        if how == "sat":
            return self.wrapped(high if is_above else low if is_below else total, bits)
        overflows = is_above or is_below
        return (POISON if overflows else self.wrapped(total, bits), overflows)

    HANDLERS = {
        **dict.fromkeys(("add", "sub", "mul"), _do_sum),
        **dict.fromkeys(("udiv", "urem", "sdiv", "srem"), _do_division),
        **dict.fromkeys(("and", "or", "xor"), _do_bitwise),
        **dict.fromkeys(("zext", "sext", "trunc"), _do_cast),
        "alloca": lambda self, text, values: self.memory.allocate(),
        "call": _do_call,
        "extractvalue": _do_extract,
        "freeze": lambda self, text, values: self._value(text.split()[-1], values),
        "getelementptr": _do_step,
        "icmp": _do_icmp,
        "insertvalue": _do_insert,
        "load": _do_load,
        "ptrtoint": _do_address,
        "select": _do_select,
        "store": _do_store,
    }
