"""Token buckets in this process: they limit while the server is away, and are the fake of `testing`.

They decide as the module does, in exact arithmetic.
"""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import ceil, floor
from typing import Any

from ..values.errors import ReplyError
from ..values.limit import MOST_TOKENS, Limit, amount_of
from .calendar import CENTURY_MS, Refill, refill_of

_MICRO = 1_000_000
_NEVER = -1
# The server sets no later one.
_LAST_EXPIRY_MS = 2**53
# Of one call.
_MOST_BUCKETS = 1024
# What a float is off by, in millionths of a token.
_FLOAT_NOISE = Fraction(1, _MICRO)


# Amounts are in tokens, times in Unix milliseconds; those of holds in millionths and microseconds.


# When it ends, its id, its amount.
_Held = tuple[int, str, int]


class _Chunk:
    """Holds that follow each other, and the sums of what the first of them hold together."""

    MOST = 256

    def __init__(self, holds: list[_Held]) -> None:
        self.holds = holds
        self._sums: list[int] | None = None

    @property
    def sums(self) -> list[int]:
        if self._sums is None:
            self._sums = list(accumulate((held[2] for held in self.holds), initial=0))
        return self._sums

    def changing(self) -> list[_Held]:
        """The holds, which the caller changes next."""
        self._sums = None
        return self.holds


class _Holds:
    """What is held of a bucket, in the order in which it comes back: no decision walks through all of it.

    A signal may interrupt each change: all that is in the order is known by its id, and no chunk is empty.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, tuple[int, int]] = {}
        self._chunks: list[_Chunk] = []

    def amount_of(self, id: str) -> Fraction:
        return Fraction(self.by_id.get(id, (0, 0))[1], _MICRO)

    def total(self) -> Fraction:
        return Fraction(sum(chunk.sums[-1] for chunk in self._chunks), _MICRO)

    def set(self, id: str, amount: Fraction, expires_at: Fraction) -> None:
        self.end(id)
        if amount:
            expires_us, micros = floor(expires_at * 1000), int(amount * _MICRO)
            self.by_id[id] = expires_us, micros
            self._insert((expires_us, id, micros))

    def _insert(self, held: _Held) -> None:
        if not self._chunks:
            self._chunks.append(_Chunk([held]))
            return
        at = min(self._chunk_of(held), len(self._chunks) - 1)
        holds = self._chunks[at].changing()
        insort(holds, held)
        if len(holds) > _Chunk.MOST:
            half = len(holds) // 2
            self._chunks[at : at + 1] = _Chunk(holds[:half]), _Chunk(holds[half:])

    def end(self, id: str) -> None:
        if (known := self.by_id.get(id)) is not None:
            held = known[0], id, known[1]
            at = self._chunk_of(held)
            holds = self._chunks[at].holds if at < len(self._chunks) else []
            place = bisect_left(holds, held)
            if holds[place : place + 1] == [held]:
                self._delete(at, place)
            self.by_id.pop(id, None)

    def _chunk_of(self, held: _Held) -> int:
        return bisect_left(self._chunks, held, key=lambda chunk: chunk.holds[-1])

    def _delete(self, at: int, place: int) -> None:
        if len(self._chunks[at].holds) == 1:
            del self._chunks[at]
        else:
            del self._chunks[at].changing()[place]

    def end_until(self, moment: Fraction) -> Fraction:
        """Ends those that are over, and returns how much comes back."""
        ended, until_us = 0, floor(moment * 1000)
        while self._chunks and (first := self._chunks[0].holds[0])[0] <= until_us:
            self._delete(0, 0)
            self.by_id.pop(first[1], None)
            ended += first[2]
        return Fraction(ended, _MICRO)

    def last_end(self) -> Fraction:
        return Fraction(self._chunks[-1].holds[-1][0], 1000) if self._chunks else Fraction(0)

    def first(
        self, is_enough: Callable[[Fraction, Fraction], bool], *, but: str
    ) -> tuple[Fraction | None, Fraction]:
        """Finds when there is enough, at the end of which hold, and what came back before; without `but`."""
        chunks, (but_ends_us, but_micros) = self._chunks, self.by_id.get(but, (0, 0))
        sums = list(accumulate((chunk.sums[-1] for chunk in chunks), initial=0))

        def look(held: _Held, sum_with_it: int) -> bool:
            over = but_micros if (but_ends_us, but) <= held[:2] else 0
            return is_enough(Fraction(held[0], 1000), Fraction(sum_with_it - over, _MICRO))

        at = bisect_left(range(len(chunks)), True, key=lambda at: look(chunks[at].holds[-1], sums[at + 1]))
        if at == len(chunks):
            return None, Fraction(sums[at] - but_micros, _MICRO)
        holds, within = chunks[at].holds, chunks[at].sums
        place = bisect_left(
            range(len(holds)), True, key=lambda place: look(holds[place], sums[at] + within[place + 1])
        )
        over = but_micros if (but_ends_us, but) < holds[place][:2] else 0
        return Fraction(holds[place][0], 1000), Fraction(sums[at] + within[place] - over, _MICRO)


@dataclass(slots=True)
class _View:
    """A bucket under the limit of one call: as it is now, or as it was at its last write.

    Its level at the last write may include holds that ended since.
    """

    capacity: Fraction
    refill: Refill
    level: Fraction
    now: Fraction
    holds: _Holds = field(default_factory=_Holds)
    """Shared by the views of a bucket. Those that ended are in the level."""
    expires_ms: int = 0

    def _reached_at(self, level: Fraction, *, but: str = "") -> Fraction | None:
        """Returns when there is so much, unless other calls act or `but` ends; None if never."""
        lacking = level - self.level
        ended_at, returned = self.holds.first(
            lambda at, returned: returned + self.refill.between(self.now, at) >= lacking, but=but
        )
        flowed_at = self.refill.reaches(self.now, lacking - returned)
        return min((one for one in (ended_at, flowed_at) if one is not None), default=None)

    def ms_until(self, level: Fraction, *, but: str = "") -> int:
        """Returns milliseconds until this level, unless other calls act, rounded up; -1 if never."""
        if self.level >= level:
            return 0
        reached_at = self._reached_at(level, but=but) if level <= self.capacity else None
        return _NEVER if reached_at is None else ceil(reached_at - self.now)

    def ms_until_held(self, id: str, amount: Fraction) -> int:
        """Returns milliseconds until a hold may have so much. Above the capacity it grows until it ends."""
        more = amount - self.holds.amount_of(id)
        wait_ms = self.ms_until(more, but=id) if more > 0 else 0
        ends_us, _ = self.holds.by_id.get(id, (0, 0))
        is_too_late = ends_us and amount > self.capacity and (self.now + wait_ms) * 1000 >= ends_us
        return _NEVER if wait_ms and is_too_late else wait_ms

    def reply(self, allowed: int, retry_after_ms: int) -> list[Any]:
        return [allowed, floor(self.level), retry_after_ms, self.ms_until(self.capacity)]

    def lengthen(self) -> bool:
        """Lets the bucket last until it is full by this limit too. Returns whether it expires later now.

        As in the server, where an expiry has slack, so that it is seldom set, and is never shortened.
        """
        full_at = self._reached_at(self.capacity) or Fraction(_LAST_EXPIRY_MS)
        full_at = max(full_at, self.holds.last_end())
        if ceil(full_at) <= self.expires_ms:
            return False
        slack_ms = floor(full_at - self.now) // 4 + 1000
        self.expires_ms = min(ceil(full_at) + slack_ms, _LAST_EXPIRY_MS)
        return True


class LocalLimiter:
    """`now_ms` is the clock. Beyond `most` names those are forgotten that expire first."""

    def __init__(self, now_ms: Callable[[], Fraction], most: int | None = None) -> None:
        self._now_ms = now_ms
        self._most = most
        self._now = Fraction(0)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._buckets: dict[str, _View] = {}
        self._expiries: list[tuple[int, str]] = []
        """A heap; a later expiry of the bucket makes an entry void."""
        self._lock = threading.RLock()
        self._is_inside = False

    def execute(self, name: object, *arguments: object) -> Any:
        """The reply of the module to a command; an error is returned, not raised."""
        operation = getattr(self, f"_{str(name).removeprefix('TB.').lower()}", None)
        if operation is None or not (str(name).startswith("TB.") or name == "DEL"):
            return ReplyError(f"ERR unknown command '{name}', with args beginning with: ")
        with self._lock:
            if self._is_inside:  # asked by a finaliser or a signal's handler amid a decision, so denied
                return [0, 0, 1, 0]
            self._is_inside = True
            try:
                self._now = self._now_ms()
                return operation(*map(str, arguments))
            except ReplyError as error:
                return error
            except ValueError as error:
                return ReplyError(f"ERR {error}")
            finally:
                self._is_inside = False

    def mistake_in(self, *words: object) -> ReplyError | None:
        """Returns the error of a command that is wrong whatever the buckets hold."""
        reply = LocalLimiter(self._now_ms).execute(*words)
        return reply if isinstance(reply, ReplyError) else None

    def _del(self, *keys: str) -> int:
        return sum(self._buckets.pop(key, None) is not None for key in keys)

    def _look(self, key: str, capacity: str, rate: str, *, pool: bool = False) -> _View:
        most, refill, is_pool = _limit(capacity, rate)
        if is_pool and not pool:
            raise ReplyError("ERR rate must be above 0 here: 0 is for the commands of holds")
        bucket = self._buckets.get(key)
        if bucket is None or bucket.expires_ms < floor(self._now):
            return _View(most, refill, most, self._now)
        now = max(self._now, bucket.now)
        bucket.level += bucket.holds.end_until(now)
        if is_pool:
            level = most - bucket.holds.total()
        else:
            level = min(most, min(most, bucket.level) + refill.between(bucket.now, now))
        return _View(most, refill, level, now, bucket.holds, bucket.expires_ms)

    def _keep(self, key: str, view: _View) -> None:
        if view.level >= view.capacity and not view.holds.by_id:
            self._buckets.pop(key, None)
            return
        self._buckets[key] = view
        if view.lengthen() and self._most is not None:
            heapq.heappush(self._expiries, (view.expires_ms, key))
            if len(self._buckets) > self._most:
                self._forget_one()
            if len(self._expiries) > 2 * self._most + 2:
                self._expiries = [(bucket.expires_ms, key) for key, bucket in self._buckets.items()]
                heapq.heapify(self._expiries)

    def _forget_one(self) -> None:
        """Those that are drained stay: a caller does not make its bucket full by asking for many names."""
        while True:
            expires_ms, key = heapq.heappop(self._expiries)
            bucket = self._buckets.get(key)
            if bucket is not None and bucket.expires_ms == expires_ms:
                del self._buckets[key]
                return

    def _change(self, key: str, view: _View, taken: Fraction) -> None:
        """Takes so much, or gives it back. A call that moves nothing writes nothing, as in the server."""
        if taken and (taken > 0 or view.level < view.capacity):
            view.level = min(view.capacity, view.level - taken)
            self._keep(key, view)

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
        if not 1 <= int(most) <= MOST_TOKENS:
            raise ReplyError("ERR max must be a whole number of tokens from 1 to 1e12")
        granted = max(min(int(most), floor(view.level)), 0)
        self._change(key, view, Fraction(granted))
        return view.reply(granted, 0 if granted else view.ms_until(Fraction(1)))

    def _charge(self, key: str, capacity: str, rate: str, amount: str) -> list[Any]:
        view, taken = self._look(key, capacity, rate), _cost(amount)
        if view.level - taken < -MOST_TOKENS:
            raise ReplyError("ERR the bucket would be more than 1e12 tokens in debt")
        self._change(key, view, taken)
        return view.reply(1, max(view.ms_until(Fraction(0)), 0))

    def _give(self, key: str, capacity: str, rate: str, amount: str) -> list[Any]:
        view = self._look(key, capacity, rate)
        self._change(key, view, -_down(amount))
        return view.reply(1, 0)

    def _mtake(self, count: str, *words: str) -> list[Any]:
        return self._take_all(_groups(4, count, words))

    def _mhold(self, count: str, ttl_ms: str, id: str, *words: str) -> list[Any]:
        return self._take_all(_groups(4, count, words), id, int(ttl_ms))

    def _take_all(self, groups: Iterator[tuple[str, ...]], id: str = "", ttl_ms: int = 0) -> list[Any]:
        """Takes or holds all amounts, or none. A hold takes no more than it lacks."""
        parts, replies = [], []
        for key, capacity, rate, amount in groups:
            view = self._look(key, capacity, rate, pool=bool(id))
            wanted = _cost(amount)
            more = wanted - view.holds.amount_of(id)
            wait_ms = view.ms_until_held(id, wanted) if id else view.ms_until(wanted)
            replies.append(view.reply(int(not wait_ms), wait_ms))
            parts.append((key, view, wanted, more))
        if not all(reply[0] for reply in replies):
            return _joint(replies)
        for key, view, wanted, more in parts:
            if wanted or more:
                view.level = min(view.capacity, view.level - more)
                if more > 0:  # before the hold is there: an interrupted call gives back no more than it took
                    self._buckets[key] = view
                if id:
                    view.holds.set(id, wanted, view.now + ttl_ms)
                self._keep(key, view)
        return _joint([view.reply(1, 0) for _, view, _, _ in parts])

    def _takeany(self, count: str, each: str, *words: str) -> list[Any]:
        return self._take_one_of(4 * int(each), words)

    def _holdany(self, count: str, each: str, ttl_ms: str, id: str, *words: str) -> list[Any]:
        return self._take_one_of(4 * int(each), words, id, int(ttl_ms))

    def _take_one_of(self, size: int, words: tuple[str, ...], id: str = "", ttl_ms: int = 0) -> list[Any]:
        """Takes the first alternative that allows it; or asks that alone which has the hold already.

        Of several that have it, the first that wants just what is held, or else the first.
        """
        _check_count(len(words) // 4)
        alternatives = list(enumerate(_cut(size, words), 1))
        # Looked at one and all, since a mistake in the last is one, too.
        likeness = [self._likeness(id, alternative) for _, alternative in alternatives]
        most = likeness.index(max(likeness))
        denials = []
        for number, alternative in alternatives[most : most + 1] if likeness[most] else alternatives:
            reply = self._take_all(_groups(4, str(size // 4), alternative), id, ttl_ms)
            if reply[0]:
                return [number, *reply[1:]]
            denials.append(reply)
        return min(denials, key=lambda reply: (reply[2] == _NEVER, reply[2]))

    def _likeness(self, id: str, words: tuple[str, ...]) -> int:
        """Returns 2 if just so much is held of each bucket, and 1 if the hold is in each of which more than 0
        is wanted; in one of all, if none is."""
        parts = [
            (_cost(amount), self._look(*bucket, pool=bool(id)).holds.amount_of(id))
            for *bucket, amount in _groups(4, str(len(words) // 4), words)
        ]
        is_there = [held > 0 for wanted, held in parts if wanted] or [any(held for _, held in parts)]
        return all(is_there) + all(is_there + [wanted == held for wanted, held in parts])

    def _mrenew(self, count: str, ttl_ms: str, id: str, *words: str) -> list[Any]:
        views = [(self._look(*three, pool=True), three[0]) for three in _groups(3, count, words)]
        are_all_there = all(id in view.holds.by_id for view, _ in views)
        replies = []
        for view, key in views:
            is_there = id in view.holds.by_id
            if are_all_there:
                view.holds.set(id, view.holds.amount_of(id), view.now + int(ttl_ms))
                self._keep(key, view)
            replies.append(view.reply(int(is_there), 0 if is_there else _NEVER))
        return _joint(replies)

    def _msettle(self, count: str, id: str, *words: str) -> list[Any]:
        replies = []
        for key, capacity, rate, used in _groups(4, count, words):
            view = self._look(key, capacity, rate, pool=True)
            if id not in view.holds.by_id:
                replies.append(view.reply(0, _NEVER))
                continue
            view.level = min(view.capacity, view.level + view.holds.amount_of(id) - _cost(used))
            view.holds.end(id)
            self._keep(key, view)
            replies.append(view.reply(1, max(view.ms_until(Fraction(0)), 0)))
        return _joint(replies)


@lru_cache(1024)
def _limit(capacity: str, rate: str) -> tuple[Fraction, Refill, bool]:
    """What a bucket holds, how it fills, and whether it is a pool, which nothing refills."""
    limit = Limit(capacity, rate)
    most, (count, _, unit, _) = _down(capacity), limit._terms
    refill = refill_of(limit, _down(count))
    if not limit.tokens_per_s:
        if unit:
            raise ReplyError(f"ERR rate: count {count!r} must be above 0")
        return most, refill, True
    comes, in_ms = refill.usually
    is_within = comes <= in_ms * MOST_TOKENS / 1000 and in_ms <= comes * CENTURY_MS
    if not is_within or (limit.is_calendar and in_ms > CENTURY_MS):
        raise ReplyError("ERR rate must be at least 1 token in 100 years and at most 1e12 a second")
    times = CENTURY_MS // in_ms if limit.is_calendar else Fraction(CENTURY_MS) / in_ms
    if most > comes * times:
        raise ReplyError("ERR refilling capacity from empty at this rate would take more than 100 years")
    return most, refill, False


def _groups(size: int, count: str, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    _check_count(int(count))
    return _cut(size, words)


def _check_count(buckets: int) -> None:
    if not 1 <= buckets <= _MOST_BUCKETS:
        raise ReplyError(f"ERR numkeys must be a whole number from 1 to {_MOST_BUCKETS}")


def _cut(size: int, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for at in range(0, len(words), size):
        yield words[at : at + size]


def _joint(each: list[list[Any]]) -> list[Any]:
    """The four numbers of the bucket that binds, and each bucket's own."""
    allowed, remaining, waits, resets = zip(*each, strict=True)
    wait = _NEVER if _NEVER in waits else max(waits)
    reset = _NEVER if _NEVER in resets else max(resets)
    return [min(allowed), min(remaining), wait, reset, each]


def _cost(text: str) -> Fraction:
    """Rounded up, to the millionth."""
    return _rounded(text, ceil)


def _down(text: str) -> Fraction:
    return _rounded(text, floor)


def _rounded(text: str, whole: Callable[[Fraction], int]) -> Fraction:
    """The millionths of an amount: those that it is meant to be, if floats alone make the difference."""
    tokens = amount_of(text)
    if tokens is None:
        raise ReplyError(f"ERR {text!r} must be a decimal number of tokens from 0 to 1e12")
    micros = tokens * _MICRO
    meant = round(micros)
    return Fraction(meant if abs(micros - meant) <= _FLOAT_NOISE else whole(micros), _MICRO)
