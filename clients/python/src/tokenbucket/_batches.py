"""Tokens fetched in batches and spent here, so that most takes ask nobody."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from ._clock import Clock
from ._decision import Decision
from ._limit import Limit


@dataclass(slots=True)
class Batch:
    """What is left of the tokens that were fetched for one name."""

    name: str
    limit: Limit
    clock: Clock
    lock: Any
    """Held while tokens are fetched: one batch may be enough for all who wait."""
    tokens: int = 0
    fetched_at: float = 0
    stale_at: float = 0
    reply: Decision = field(default_factory=lambda: Decision(allowed=False))

    def left(self) -> int:
        """What may be spent: nothing once as many tokens have flowed into the bucket again.

        Or a process that was idle would spend a batch beside the bucket that filled meanwhile.
        """
        if self.clock.monotonic() >= self.stale_at:
            self.tokens = 0
        return self.tokens

    def add(self, reply: Decision, asked_at: float) -> None:
        self.tokens = self.left() + reply.granted
        self.fetched_at, self.reply = asked_at, reply
        rate = self.limit.tokens_per_s
        refilled_s = float(self.tokens / rate) if rate else 0.0
        if self.limit.is_calendar:  # nothing flows before the next boundary, and then all at once
            refilled_s = min(refilled_s, reply.reset_after_ms / 1000)
        self.stale_at = asked_at + refilled_s

    def spend(self, cost: int) -> Decision:
        self.tokens -= cost
        passed_ms = int((self.clock.monotonic() - self.fetched_at) * 1000)
        return Decision(
            True,
            remaining=self.reply.remaining + self.tokens,
            reset_after_ms=max(self.reply.reset_after_ms - passed_ms, 0),
        )


class Batches:
    def __init__(self, size: int, clock: Clock, new_lock: type[Any]) -> None:
        self._clock = clock
        self.size = size
        self._new_lock = new_lock
        self._lock = Lock()
        self._batches: OrderedDict[tuple[str, Limit], Batch] = OrderedDict()

    def of(self, name: str, limit: Limit) -> Batch:
        with self._lock:
            batch = self._batches.get((name, limit))
            if batch is None:
                self._drop_stale()
                batch = self._batches[name, limit] = Batch(name, limit, self._clock, self._new_lock())
            self._batches.move_to_end((name, limit))
            return batch

    def drain(self) -> Iterator[tuple[Batch, int]]:
        """What each batch has left, which it then has no longer."""
        with self._lock:
            batches = list(self._batches.values())
            self._batches.clear()
        for batch in batches:
            if left := batch.left():
                batch.tokens = 0
                yield batch, left

    def _drop_stale(self) -> None:
        """Looks at the two that were not used for longest, so that memory stays bounded."""
        for place, batch in list(self._batches.items())[:2]:
            if batch.left() or batch.lock.locked():
                return
            del self._batches[place]
