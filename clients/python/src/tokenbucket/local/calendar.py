"""How tokens flow into the buckets of this process. Times are Unix milliseconds."""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from math import ceil

from ..values.limit import PERIOD_MS, UNIT_MS, Limit

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# In which an empty bucket is full, and a token has flowed in.
CENTURY_MS = 36_525 * UNIT_MS["d"]
_MONTHS = {"mo": 1, "3mo": 3, "y": 12}
_DAYS_OF_A_WEEK = 7
# What the module replies in place of a longer wait.
_LONGEST_MS = 2**62 // 1000 + 1
_SHIFT = re.compile(r"(?:\+(\d+)d)?(?:([+-])(\d\d):(\d\d))?")


def unix_ms(moment: datetime) -> Fraction:
    return Fraction((moment - _EPOCH) // timedelta(microseconds=1), 1000)


@dataclass(frozen=True, slots=True)
class Continuous:
    per_ms: Fraction

    @property
    def usually(self) -> tuple[Fraction, int]:
        """Returns how many tokens come in how many milliseconds."""
        return self.per_ms, 1

    def between(self, since: Fraction, until: Fraction) -> Fraction:
        return self.per_ms * (until - since)

    def reaches(self, since: Fraction, tokens: Fraction) -> Fraction | None:
        """When so many have come; None if they never do."""
        return since + tokens / self.per_ms if self.per_ms else None


@dataclass(frozen=True, slots=True)
class Calendar:
    """`count` at each boundary of the period, by a clock that is so far ahead of UTC: that of the
    local time, put back by the days by which a week begins later. A period of months begins `days`
    after the first, at most on the month's last day."""

    count: Fraction
    number: int
    unit: str
    ahead_ms: int
    days: int = 0

    @property
    def usually(self) -> tuple[Fraction, int]:
        """Returns the same, as the module's bounds count: a month is the 1,200th part of a century."""
        months = _MONTHS.get(self.unit)
        return self.count, months * CENTURY_MS // 1200 if months else self.number * PERIOD_MS[self.unit]

    def between(self, since: Fraction, until: Fraction) -> Fraction:
        return self.count * (self._period_of(until) - self._period_of(since))

    def reaches(self, since: Fraction, tokens: Fraction) -> Fraction | None:
        try:
            return self._begins(self._period_of(since) + ceil(tokens / self.count))
        except (ValueError, OverflowError):  # after the year 9999
            return since + _LONGEST_MS

    def _period_of(self, moment: Fraction) -> int:
        """Its number, counted without a gap from whenever."""
        local = moment + self.ahead_ms
        if self.unit in UNIT_MS:
            return local // (self.number * UNIT_MS[self.unit])
        day = (_EPOCH + timedelta(milliseconds=local // 1)).date()
        if self.unit == "w":
            return (day.toordinal() - 1) // _DAYS_OF_A_WEEK  # the first day of all was a Monday
        months = day.year * 12 + day.month - 1
        return (months - (day < self._begins_in(months))) // _MONTHS[self.unit]

    def _begins(self, period: int) -> Fraction:
        if self.unit in UNIT_MS:
            return Fraction(period * self.number * UNIT_MS[self.unit] - self.ahead_ms)
        if self.unit == "w":
            day = date.fromordinal(period * _DAYS_OF_A_WEEK + 1)
        else:
            day = self._begins_in(period * _MONTHS[self.unit])
        return unix_ms(datetime(day.year, day.month, day.day, tzinfo=UTC)) - self.ahead_ms

    def _begins_in(self, months: int) -> date:
        """Returns the day on which a period begins in a month, which counts from the year 0."""
        year, month = divmod(months, 12)
        last = monthrange(year, month + 1)[1]
        return date(year, month + 1, min(self.days + 1, last))


Refill = Continuous | Calendar


def refill_of(limit: Limit, count: Fraction) -> Refill:
    """Makes it; `count` is that of a rate of the calendar, to the millionth."""
    if not limit.is_calendar:
        return Continuous(limit.tokens_per_s / 1000)
    _, number, unit, shift = limit._terms
    found = _SHIFT.fullmatch(shift)
    assert found
    days, sign, hours, minutes = found.groups("0")
    offset_ms = (int(hours) * 60 + int(minutes)) * 60_000
    ahead_ms = -offset_ms if sign == "-" else offset_ms
    if unit == "w":
        return Calendar(count, 1, unit, ahead_ms - int(days) * UNIT_MS["d"])
    return Calendar(count, int(number or 1), unit, ahead_ms, int(days))
