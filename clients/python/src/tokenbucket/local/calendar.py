"""How tokens flow into the buckets of this process. Times are Unix milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from math import ceil

from ..values.limit import Limit

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MONTHS = {"mo": 1, "y": 12}
_DAYS_OF_A_WEEK = 7


def unix_ms(moment: datetime) -> Fraction:
    return Fraction((moment - _EPOCH) // timedelta(microseconds=1), 1000)


@dataclass(frozen=True, slots=True)
class Continuous:
    per_ms: Fraction

    def between(self, since: Fraction, until: Fraction) -> Fraction:
        """How many tokens come."""
        return self.per_ms * (until - since)

    def reaches(self, since: Fraction, tokens: Fraction) -> Fraction | None:
        """When so many have come; None if they never do."""
        return since + tokens / self.per_ms if self.per_ms else None


@dataclass(frozen=True, slots=True)
class Calendar:
    """`count` at each boundary of the period, by a local time that is so far ahead of UTC."""

    count: Fraction
    number: int
    unit: str
    ahead_ms: int

    def between(self, since: Fraction, until: Fraction) -> Fraction:
        return self.count * (self._period_of(until) - self._period_of(since))

    def reaches(self, since: Fraction, tokens: Fraction) -> Fraction | None:
        return self._begins(self._period_of(since) + ceil(tokens / self.count))

    def _period_of(self, moment: Fraction) -> int:
        """Its number, counted without a gap from whenever."""
        local = moment + self.ahead_ms
        if self.unit in _UNIT_MS:
            return local // (self.number * _UNIT_MS[self.unit])
        day = (_EPOCH + timedelta(milliseconds=local // 1)).date()
        if self.unit == "w":
            return (day.toordinal() - 1) // _DAYS_OF_A_WEEK  # the first day of all was a Monday
        return (day.year * 12 + day.month - 1) // _MONTHS[self.unit]

    def _begins(self, period: int) -> Fraction:
        if self.unit in _UNIT_MS:
            return Fraction(period * self.number * _UNIT_MS[self.unit] - self.ahead_ms)
        if self.unit == "w":
            day = date.fromordinal(period * _DAYS_OF_A_WEEK + 1)
        else:
            year, month = divmod(period * _MONTHS[self.unit], 12)
            day = date(year, month + 1, 1)
        return unix_ms(datetime(day.year, day.month, day.day, tzinfo=UTC)) - self.ahead_ms


Refill = Continuous | Calendar


def refill_of(limit: Limit) -> Refill:
    if not limit.is_calendar:
        return Continuous(limit.tokens_per_s / 1000)
    count, number, unit, offset = limit.terms
    sign = -1 if offset.startswith("-") else 1
    hours, minutes = (int(part) for part in (offset.lstrip("+-") or "00:00").split(":"))
    return Calendar(Fraction(count), int(number or 1), unit, sign * (hours * 60 + minutes) * 60_000)
