"""Tokens fetched in batches and spent here, so that most takes ask no server."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from ..local.clock import Clock
from ..values.decision import Decision
from ..values.limit import Limit
from .operations import Part

MOST_BATCHES = 10_000


@dataclass(slots=True)
class Batch:
    """What is left of the tokens that were fetched for one name."""

    of: Part
    """The bucket."""
    tokens: int = 0
    stale_at: float = 0
    fetched_until: float = 0
    """Until when a fetch counts as under way. Meanwhile other calls ask for what they need."""
    reply: Decision = field(default_factory=lambda: Decision(allowed=False))

    def left(self, now: float) -> int:
        """Returns what may be spent: nothing once the bucket would have filled.

        Otherwise an idle process would spend a batch beside a full bucket.
        """
        if now >= self.stale_at:
            self.tokens = 0
        return self.tokens

    def add(self, granted: int, reset_after_ms: int, asked_at: float) -> None:
        self.left(asked_at)
        self.tokens += granted
        rate = self.of.limit.tokens_per_s
        fills_s = float(self.of.limit._capacity / rate) if rate else float("inf")
        if self.of.limit.is_calendar:  # nothing flows before the next boundary, and then all at once
            fills_s = reset_after_ms / 1000
        self.stale_at = asked_at + fills_s

    def spend(self, cost: int) -> Decision | None:
        if self.tokens < cost:
            return None
        self.tokens -= cost
        return Decision(True, self.reply.remaining + self.tokens, 0, self.reply.reset_after_ms, granted=1)


class Batches:
    """The batches of a limiter. No call waits for another."""

    def __init__(self, size: int, clock: Clock) -> None:
        self.size = size
        self.clock = clock
        self.lock = threading.RLock()
        self._batches: OrderedDict[tuple[str, Limit], Batch] = OrderedDict()
        self.left: deque[Part] = deque()
        """Tokens to give back."""

    def take(self, part: Part) -> tuple[Batch, Decision | None]:
        """Returns the batch of the bucket, and the decision if it has what the part wants."""
        key, now = (part.name, part.limit), self.clock.monotonic()
        with self.lock:
            batch = self._batches.get(key) or self._batches.setdefault(key, Batch(part))
            self._batches.move_to_end(key)
            if len(self._batches) > MOST_BATCHES:
                self._evict(self._batches.popitem(last=False)[1], now)
            batch.left(now)
            return batch, batch.spend(int(part.amount))

    def begin_fetch(self, batch: Batch, now: float, for_s: float) -> float:
        """Returns until when a fetch counts as under way that this call has begun; 0 if another has."""
        with self.lock:
            if now < batch.fetched_until:
                return 0
            batch.fetched_until = now + for_s
            return batch.fetched_until

    def forget(self, name: str) -> None:
        """Drops those of a name under all limits."""
        with self.lock:
            for key in [key for key in self._batches if key[0] == name]:
                del self._batches[key]

    def drain(self) -> None:
        """Removes all batches."""
        with self.lock:
            while self._batches:
                self._evict(self._batches.popitem()[1], self.clock.monotonic())

    def _evict(self, batch: Batch, now: float) -> None:
        if left := batch.left(now):
            batch.tokens = 0
            self.left.append(batch.of._replace(amount=left))
