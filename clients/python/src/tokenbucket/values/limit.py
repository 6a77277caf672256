"""What a bucket holds, and how fast it fills."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from .errors import BadArgument

Number = int | float | str | Decimal
"""An amount of tokens, sent to the server as Python prints it."""

MOST_TOKENS = 10**12
_MOST_BYTES = 128
# A larger exponent alone makes an amount too large or 0: no arithmetic on a million digits.
_LARGEST_EXPONENT = 999
_NUMBER = re.compile(r"\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_FORMS = {
    "": re.compile(""),
    "/": re.compile(r"(.*?)(ms|s|m|h|d)", re.ASCII),
    "@": re.compile(
        r"(\d*(?=ms|m(?!o)|[shd])|)(ms|3?mo|[smhdwy])"
        r"((?:(?<=w)\+0?[0-6]d|(?<=mo)\+(?:[0-2]?\d|30)d)?(?:[+-]\d\d:\d\d)?)",
        re.ASCII,
    ),
}

UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DAYS = {"w": 7, "mo": 30, "3mo": 90, "y": 365}
PERIOD_MS = UNIT_MS | {unit: days * UNIT_MS["d"] for unit, days in _DAYS.items()}


@dataclass(frozen=True, slots=True)
class Limit:
    """The capacity of a bucket, and the rate at which it refills.

    `rate` is tokens per second (`5`, `0.25`), a count per period (`"100/m"`, `"10/10s"`) or a count
    at each boundary of the calendar (`"1000@d"`, `"1000@mo+14d"`). Rate 0 makes a pool: its tokens come
    back only from holds. The server stores neither, so a new limit counts from the next call.

    Raises BadArgument for an invalid limit. Bounds that the server alone knows are checked by the
    first call.

    >>> from tokenbucket import Limit
    >>> Limit(20, "10/s")
    Limit(capacity=20, rate='10/s')
    >>> Limit("twenty", "10/s")
    Traceback (most recent call last):
    ...
    tokenbucket.values.errors.BadArgument: capacity: 'twenty' is not a number from 0 to 1e12
    """

    capacity: Number
    rate: Number

    def __post_init__(self) -> None:
        if amount_of(str(self.capacity)) is None:
            raise BadArgument(f"capacity: {self.capacity!r} is not a number from 0 to 1e12")
        if not _read_rate(str(self.rate)):
            raise BadArgument(
                f"rate: {self.rate!r} must be tokens per second (5, 0.25), count/period in ms, s, m, h or d "
                "(100/m, 10/15s), or count@period (1000@d)"
            )

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Reads a capacity and a rate, as TB.TAKE takes them: `Limit.parse("20 10/s")`."""
        words = text.split()
        if len(words) != 2:
            raise BadArgument(f"{text!r} is not a capacity and a rate, like '20 10/s'")
        return cls(*words)

    @classmethod
    def _of_window(cls, count: int, seconds: int) -> Limit:
        """Returns the bucket of a window: `count`, refilled within `seconds`. Below 1 it denies."""
        count = min(count, MOST_TOKENS)
        return cls(count, f"{count}/{seconds}s") if count > 0 else cls(0, 1)

    @property
    def is_calendar(self) -> bool:
        """Returns whether tokens come at boundaries of the calendar."""
        return "@" in str(self.rate)

    @property
    def _terms(self) -> tuple[str, str, str, str]:
        """Returns count, number, unit, and days with offset of `1000@15m+09:00`; "" for a missing one."""
        terms = _read_rate(str(self.rate))
        assert terms
        return terms

    @property
    def _capacity(self) -> int | Fraction:
        """Returns the exact capacity."""
        capacity = exactly(self.capacity)
        assert capacity is not None
        return capacity

    @property
    def tokens_per_s(self) -> Fraction:
        """Returns the exact rate; the average of a calendar's rate, with months of 30 days."""
        count, number, unit, _ = self._terms
        return 1000 * Fraction(count) / (Fraction(number or 1) * PERIOD_MS[unit or "s"])

    @property
    def window_s(self) -> int | None:
        """In how many seconds an empty bucket fills, rounded up; None if nothing flows in."""
        rate = self.tokens_per_s
        return -(-self._capacity // rate) if rate else None


def amount_of(text: str) -> Fraction | None:
    """Reads an amount of tokens as the module does; None if it is invalid."""
    return _amount_of(text) if len(text) <= _MOST_BYTES else None


@lru_cache(1024)
def _amount_of(text: str) -> Fraction | None:
    if not _NUMBER.fullmatch(text):
        return None
    digits, _, exponent = text.lower().partition("e")
    bounded = max(min(int(exponent or 0), _LARGEST_EXPONENT), -_LARGEST_EXPONENT)
    amount = Fraction(Decimal(f"{digits}e{bounded}"))
    return amount if amount <= MOST_TOKENS else None


def exactly(amount: Number) -> int | Fraction | None:
    """Reads what a caller has given as an amount; None if it is invalid."""
    if type(amount) is int and 0 <= amount <= MOST_TOKENS:
        return amount
    return amount_of(str(amount))


@lru_cache(1024)
def _read_rate(rate: str) -> tuple[str, str, str, str] | None:
    """Returns None for what is not a rate."""
    count, separator, period = re.split(r"([/@]|$)", rate, maxsplit=1)
    found = _FORMS[separator].fullmatch(period)
    if found is None or amount_of(count) is None:
        return None
    number, unit, offset, *_ = (*found.groups(""), "", "", "")
    return (count, number, unit, offset) if not number or amount_of(number) else None
