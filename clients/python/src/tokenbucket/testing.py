"""A server in memory, whose time stands still until it is told otherwise: for tests of your own.

    server = FakeServer()
    limiter = tokenbucket.Limiter(server, Limit(1, "1/s"))      # asyncio: server.asyncio
    assert limiter.take("a").allowed
    assert not limiter.take("a").allowed
    server.advance(1)
    assert limiter.take("a").allowed

It decides as the module does, in exact arithmetic. Its calendar begins at midnight UTC of January 1st,
2026, or when it is told: `FakeServer(datetime(2026, 12, 31, 23, 59, tzinfo=UTC))`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from math import floor
from typing import Any

from redis.exceptions import ResponseError

from ._calendar import Flow, flow_of, unix_ms
from ._limit import Limit

__all__ = ["FakeServer"]

_MICRO = 1_000_000
_NEVER = -1


@dataclass(slots=True)
class _Held:
    amount: Fraction
    expires_at: Fraction


@dataclass(slots=True)
class _Bucket:
    """As it was at its last write; amounts in tokens, times in Unix milliseconds."""

    level: Fraction
    at: Fraction
    holds: dict[str, _Held] = field(default_factory=dict)


@dataclass(slots=True)
class _View:
    """A bucket as it is now under the limit of one call."""

    capacity: Fraction
    flow: Flow
    level: Fraction
    now: Fraction
    holds: dict[str, _Held]

    def flow_until(self, moment: Fraction) -> None:
        self._fill(self.flow.between(self.now, moment))
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

    def copy(self) -> _View:
        return _View(self.capacity, self.flow, self.level, self.now, dict(self.holds))

    def ms_until(self, level: Fraction) -> int:
        """How long until there is so much if nobody else acts, rounded up; -1 if never."""
        if level > self.capacity:
            return _NEVER
        future = self.copy()
        for moment in [*sorted({held.expires_at for held in self.holds.values()}), None]:
            if future.level >= level:
                break
            reached = future.flow.reaches(future.now, level - future.level)
            if reached is not None and (moment is None or reached < moment):
                return _up(reached - self.now)
            if moment is None:
                return _NEVER
            future.pass_until(moment)
        return _up(future.now - self.now)

    def reply(self, allowed: int, retry_after_ms: int) -> list[Any]:
        return [allowed, floor(self.level), retry_after_ms, self.ms_until(self.capacity)]


class FakeServer:
    """Stands where `redis.Redis` stands; `server.asyncio` where `redis.asyncio.Redis` does."""

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = self._began = unix_ms(now)
        self._buckets: dict[str, _Bucket] = {}
        self.asyncio = _AsyncFakeServer(self)

    def advance(self, seconds: float | Fraction) -> None:
        """Lets time pass, for buckets and for what limiters remember. Kept to the microsecond."""
        self._now += Fraction(round(seconds * _MICRO), 1000)

    def reset(self) -> None:
        """Makes every bucket full."""
        self._buckets.clear()

    @property
    def tokenbucket_clock(self) -> FakeServer:
        """The limiters' clock: theirs is the server's, and `reserve` advances it."""
        return self

    def monotonic(self) -> float:
        return float((self._now - self._began) / 1000)

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.advance(seconds)

    def execute_command(self, *words: Any, **_: Any) -> Any:
        name, *arguments = map(str, words)
        operation = getattr(self, f"_{name.removeprefix('TB.').lower()}", None)
        if not name.startswith("TB.") or operation is None:
            raise ResponseError(f"unknown command '{name}', with args beginning with: ")
        return operation(*arguments)

    def _look(self, key: str, capacity: str, rate: str, *, pool: bool = False) -> _View:
        limit = Limit(capacity, rate)
        if not limit.tokens_per_s and not pool:
            raise ResponseError("rate must be above 0 here: 0 is for the commands of holds")
        most = _down(capacity)
        bucket = self._buckets.get(key) or _Bucket(most, self._now)
        view = _View(
            most,
            flow_of(limit),
            min(bucket.level, most),
            bucket.at,
            dict(bucket.holds),
        )
        view.pass_until(self._now)
        return view

    def _keep(self, key: str, view: _View) -> None:
        self._buckets[key] = _Bucket(view.level, view.now, view.holds)
        if view.level >= view.capacity and not view.holds:
            del self._buckets[key]

    def _peek(self, key: str, capacity: str, rate: str, cost: str = "1") -> list[Any]:
        view = self._look(key, capacity, rate, pool=True)
        wanted = _cost(cost)
        wait_ms = 0 if view.level >= wanted else view.ms_until(wanted)
        if not wait_ms:
            view.level -= wanted
        return view.reply(int(not wait_ms), wait_ms)

    def _take(self, key: str, capacity: str, rate: str, cost: str = "1") -> list[Any]:
        return self._reserve(key, capacity, rate, cost, "0")

    def _reserve(self, key: str, capacity: str, rate: str, cost: str, max_wait_ms: str) -> list[Any]:
        view = self._look(key, capacity, rate)
        wanted = _cost(cost)
        wait_ms = 0 if view.level >= wanted else view.ms_until(wanted)
        allowed = 0 <= wait_ms <= int(max_wait_ms)
        if allowed and wanted:
            view.level -= wanted
            self._keep(key, view)
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
            view, wanted = self._look(key, capacity, rate), _cost(cost)
            wait_ms = 0 if view.level >= wanted else view.ms_until(wanted)
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
            allowed = more <= 0 or view.level >= more
            replies.append(view.reply(int(allowed), 0 if allowed else view.ms_until(more)))
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


class _AsyncFakeServer:
    def __init__(self, server: FakeServer) -> None:
        self._server = server

    @property
    def tokenbucket_clock(self) -> FakeServer:
        return self._server

    async def execute_command(self, *words: Any, **options: Any) -> Any:
        return self._server.execute_command(*words, **options)


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
        raise ResponseError(f"{text!r} must be a decimal number of tokens from 0 to 1e12")
    return tokens


def _up(ms: Fraction) -> int:
    return -(-ms // 1)
