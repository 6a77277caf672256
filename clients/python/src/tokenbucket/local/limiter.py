"""Token buckets in this process: they limit while the server is away, and are the fake of `testing`.

They decide as the module does, in exact arithmetic.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import floor
from typing import Any

from ..values.errors import ReplyError
from ..values.limit import Limit
from .calendar import Refill, refill_of

_MICRO = 1_000_000
_NEVER = -1
# Longer than any bucket takes to fill: -1 becomes the end of it.
_LONG_MS = 200 * 366 * 86_400_000


# Amounts are in tokens, times in Unix milliseconds.


@dataclass(slots=True)
class _Held:
    amount: Fraction
    expires_at: Fraction


@dataclass(slots=True)
class _View:
    """A bucket under the limit of one call: as it is now, or as it was at its last write."""

    capacity: Fraction
    refill: Refill
    level: Fraction
    now: Fraction
    holds: dict[str, _Held] = field(default_factory=dict)
    full_at: Fraction = Fraction(0)

    def flow_until(self, moment: Fraction) -> None:
        self._fill(self.refill.between(self.now, moment))
        self.now = moment

    def _fill(self, tokens: Fraction) -> None:
        self.level = min(self.capacity, self.level + tokens)

    def pass_until(self, moment: Fraction) -> None:
        """Lets time pass: tokens flow in, and holds come back as they expire."""
        for id, held in sorted(self.holds.items(), key=lambda one: one[1].expires_at):
            if held.expires_at > moment:
                break
            self.flow_until(held.expires_at)
            self._fill(held.amount)
            del self.holds[id]
        self.flow_until(moment)

    def under(self, capacity: Fraction, refill: Refill) -> _View:
        """Returns a copy under another limit."""
        return _View(capacity, refill, min(self.level, capacity), self.now, dict(self.holds))

    def ms_until(self, level: Fraction) -> int:
        """How long until there is so much if nobody else acts, rounded up; -1 if never."""
        if self.level >= level:
            return 0
        if level > self.capacity:
            return _NEVER
        future = self.under(self.capacity, self.refill)
        for moment in [*sorted({held.expires_at for held in self.holds.values()}), None]:
            if future.level >= level:
                break
            reached = future.refill.reaches(future.now, level - future.level)
            if reached is not None and (moment is None or reached < moment):
                return _up(reached - self.now)
            if moment is None:
                return _NEVER
            future.pass_until(moment)
        return _up(future.now - self.now)

    def reply(self, allowed: int, retry_after_ms: int) -> list[Any]:
        return [allowed, floor(self.level), retry_after_ms, self.ms_until(self.capacity)]


class Buckets:
    """`now_ms` is the clock. Beyond `most` names those are forgotten that are full, or will be first."""

    def __init__(self, now_ms: Callable[[], Fraction], most: int | None = None) -> None:
        self._now_ms = now_ms
        self._most = most
        self._now = Fraction(0)
        self._buckets: dict[str, _View] = {}
        self._full_at: list[tuple[Fraction, str]] = []
        """A heap; what was written to a bucket later makes an entry void."""
        self._lock = threading.Lock()

    def begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._buckets.clear()
        self._full_at.clear()

    def execute(self, name: object, *arguments: object) -> Any:
        """The reply of the module to a command; an error is returned, not raised."""
        operation = getattr(self, f"_{str(name).removeprefix('TB.').lower()}", None)
        if operation is None or not (str(name).startswith("TB.") or name == "DEL"):
            return ReplyError(f"ERR unknown command '{name}', with args beginning with: ")
        with self._lock:
            self._now = self._now_ms()
            try:
                return operation(*map(str, arguments))
            except ReplyError as error:
                return error
            except ValueError as error:
                return ReplyError(f"ERR {error}")

    def _del(self, *keys: str) -> int:
        return sum(self._buckets.pop(key, None) is not None for key in keys)

    def _look(self, key: str, capacity: str, rate: str, *, pool: bool = False) -> _View:
        most, refill, is_pool = _limit(capacity, rate)
        if is_pool and not pool:
            raise ReplyError("ERR rate must be above 0 here: 0 is for the commands of holds")
        bucket = self._buckets.get(key)
        if bucket is None:
            return _View(most, refill, most, self._now)
        view = bucket.under(most, refill)
        view.pass_until(max(self._now, bucket.now))
        return view

    def _keep(self, key: str, view: _View) -> None:
        if view.level >= view.capacity and not view.holds:
            self._buckets.pop(key, None)
            return
        self._buckets[key] = view
        if self._most is not None:
            view.full_at = view.now + view.ms_until(view.capacity) % _LONG_MS
            heapq.heappush(self._full_at, (view.full_at, key))
            if len(self._buckets) > self._most:
                self._forget_one()
            if len(self._full_at) > 2 * self._most + 2:
                self._full_at = [(bucket.full_at, key) for key, bucket in self._buckets.items()]
                heapq.heapify(self._full_at)

    def _forget_one(self) -> None:
        """Those that are drained stay: a caller does not make its bucket full by asking for many names."""
        while True:
            full_at, key = heapq.heappop(self._full_at)
            bucket = self._buckets.get(key)
            if bucket is not None and bucket.full_at == full_at:
                del self._buckets[key]
                return

    def _peek(self, key: str, capacity: str, rate: str, cost: str = "1") -> list[Any]:
        return self._book(self._look(key, capacity, rate, pool=True), cost)

    def _take(self, key: str, capacity: str, rate: str, cost: str = "1") -> list[Any]:
        return self._reserve(key, capacity, rate, cost, "0")

    def _reserve(self, key: str, capacity: str, rate: str, cost: str, max_wait_ms: str) -> list[Any]:
        view = self._look(key, capacity, rate)
        reply = self._book(view, cost, int(max_wait_ms))
        if reply[0] and _cost(cost):
            self._keep(key, view)
        return reply

    def _book(self, view: _View, cost: str, max_wait_ms: int = 0) -> list[Any]:
        wait_ms = view.ms_until(wanted := _cost(cost))
        allowed = 0 <= wait_ms <= max_wait_ms
        if allowed:
            view.level -= wanted
        return view.reply(int(allowed), wait_ms)

    def _takeupto(self, key: str, capacity: str, rate: str, most: str) -> list[Any]:
        view = self._look(key, capacity, rate)
        granted = max(min(int(most), floor(view.level)), 0)
        if granted:
            view.level -= granted
            self._keep(key, view)
        return view.reply(granted, 0 if granted else view.ms_until(Fraction(1)))

    def _charge(self, key: str, capacity: str, rate: str, amount: str) -> list[Any]:
        view = self._look(key, capacity, rate)
        view.level -= _cost(amount)
        self._keep(key, view)
        return view.reply(1, max(view.ms_until(Fraction(0)), 0))

    def _give(self, key: str, capacity: str, rate: str, amount: str) -> list[Any]:
        view = self._look(key, capacity, rate, pool=True)
        view.level = min(view.capacity, view.level + _down(amount))
        self._keep(key, view)
        return view.reply(1, 0)

    def _mtake(self, count: str, *words: str) -> list[Any]:
        each = []
        for key, capacity, rate, cost in _fours(count, words):
            view = self._look(key, capacity, rate)
            wait_ms = view.ms_until(_cost(cost))
            each.append(view.reply(int(not wait_ms), wait_ms))
        if all(reply[0] for reply in each):
            each = [self._take(*four) for four in _fours(count, words)]
        return _joint(each)

    def _mhold(self, count: str, ttl_ms: str, id: str, *words: str) -> list[Any]:
        views = [(self._look(*four[:3], pool=True), four[0], _cost(four[3])) for four in _fours(count, words)]
        replies = []
        for view, _, amount in views:
            held = view.holds.get(id)
            more = amount - (held.amount if held else 0)
            wait_ms = view.ms_until(more) if more > 0 else 0
            replies.append(view.reply(int(not wait_ms), wait_ms))
        if not all(reply[0] for reply in replies):
            return _joint(replies)
        replies = []
        for view, key, amount in views:
            held = view.holds.pop(id, None)
            taken = amount - (held.amount if held else 0)
            view.level = min(view.capacity, view.level - taken)
            if amount:
                view.holds[id] = _Held(amount, view.now + int(ttl_ms))
            self._keep(key, view)
            replies.append(view.reply(1, 0))
        return _joint(replies)

    def _msettle(self, count: str, id: str, *words: str) -> list[Any]:
        replies = []
        for key, capacity, rate, used in _fours(count, words):
            view = self._look(key, capacity, rate, pool=True)
            held = view.holds.pop(id, None)
            if held is None:
                replies.append(view.reply(0, _NEVER))
                continue
            view.level = min(view.capacity, view.level + held.amount - _cost(used))
            self._keep(key, view)
            replies.append(view.reply(1, max(view.ms_until(Fraction(0)), 0)))
        return _joint(replies)


@lru_cache(1024)
def _limit(capacity: str, rate: str) -> tuple[Fraction, Refill, bool]:
    """What a bucket holds, how it fills, and whether it is a pool, which nothing refills."""
    limit = Limit(capacity, rate)
    return _down(capacity), refill_of(limit), not limit.tokens_per_s


def _fours(count: str, words: tuple[str, ...]) -> Iterator[tuple[str, str, str, str]]:
    for at in range(0, 4 * int(count), 4):
        key, capacity, rate, amount = words[at : at + 4]
        yield key, capacity, rate, amount


def _joint(each: list[list[Any]]) -> list[Any]:
    """The four numbers of the bucket that binds, and each bucket's own."""
    allowed, remaining, waits, resets = zip(*each, strict=True)
    wait = _NEVER if _NEVER in waits else max(waits)
    reset = _NEVER if _NEVER in resets else max(resets)
    return [min(allowed), min(remaining), wait, reset, each]


def _cost(text: str) -> Fraction:
    """Rounded up, to the millionth."""
    return Fraction(-(-_exactly(text) * _MICRO // 1), _MICRO)


def _down(text: str) -> Fraction:
    return Fraction(_exactly(text) * _MICRO // 1, _MICRO)


def _exactly(text: str) -> Fraction:
    try:
        tokens = Fraction(text)
    except ValueError:
        tokens = Fraction(-1)
    if tokens < 0:
        raise ReplyError(f"ERR {text!r} must be a decimal number of tokens from 0 to 1e12")
    return tokens


def _up(ms: Fraction) -> int:
    return -(-ms // 1)
