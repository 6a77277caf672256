"""Tokens fetched in batches and spent here, so that most takes ask nobody."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ..local.clock import Clock
from ..values.decision import Decision
from ..values.limit import Limit

MOST_BATCHES = 10_000


@dataclass(slots=True, eq=False)
class Waiter:
    """A take that waits for tokens to be fetched."""

    cost: int
    wake: Callable[[], None]
    decision: Decision | None = None
    error: Exception | None = None

    @property
    def is_decided(self) -> bool:
        return self.decision is not None or self.error is not None

    def result(self) -> Decision:
        if self.error is not None:
            raise self.error
        assert self.decision is not None
        return self.decision


@dataclass(slots=True)
class Batch:
    """What is left of the tokens that were fetched for one name."""

    name: str
    limit: Limit
    tokens: int = 0
    stale_at: float = 0
    reply: Decision = field(default_factory=lambda: Decision(allowed=False))
    waiting: list[Waiter] = field(default_factory=list)
    leader: Any = None
    """What fetches for all that wait: a waiter, or with asyncio a task."""

    def left(self, now: float) -> int:
        """What may be spent: nothing once the bucket would have filled.

        Or a process that was idle would spend a batch beside a full bucket.
        """
        if now >= self.stale_at:
            self.tokens = 0
        return self.tokens

    def add(self, granted: int, reset_after_ms: int, asked_at: float) -> None:
        self.left(asked_at)
        self.tokens += granted
        rate = self.limit.tokens_per_s
        fills_s = float(self.limit.capacity) / float(rate) if rate else float("inf")
        if self.limit.is_calendar:  # nothing flows before the next boundary, and then all at once
            fills_s = reset_after_ms / 1000
        self.stale_at = asked_at + fills_s

    def spend(self, cost: int) -> Decision:
        self.tokens -= cost
        reply = self.reply
        return Decision(True, reply.remaining + self.tokens, 0, reply.reset_after_ms, granted=1)

    def wanted(self, size: int) -> int:
        """How much to fetch: one fetch serves all who wait."""
        return max(size, sum(waiter.cost for waiter in self.waiting) - self.tokens)

    def serve(self, look: Decision | None) -> None:
        """Wakes those whose decision is made; the others wait for the next fetch.

        `look`: the reply of a bucket that had less than was asked for. More of the same would be in vain.
        """
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            if waiter.cost <= self.tokens:
                waiter.decision = self.spend(waiter.cost)
            elif look is not None:
                waiter.decision = self._denial(look, waiter.cost)
            else:
                self.waiting.append(waiter)
                continue
            waiter.wake()

    def leave(self, waiter: Waiter) -> None:
        """Takes out a caller that is gone, and puts back, once, what was spent for it."""
        if waiter in self.waiting:
            self.waiting.remove(waiter)
        decision, waiter.decision = waiter.decision, None
        if decision is not None and decision.allowed and not decision.degraded:
            self.tokens += waiter.cost

    def _denial(self, look: Decision, cost: int) -> Decision:
        """From the bucket's reply to a look for one token."""
        lacking = cost - self.tokens
        if cost > float(self.limit.capacity):
            retry_after_ms = -1
        else:
            more_s = 0 if self.limit.is_calendar else (lacking - 1) / self.limit.tokens_per_s
            retry_after_ms = max(look.retry_after_ms, 1) + int(-(-more_s * 1000 // 1))
        return replace(
            look,
            allowed=False,
            granted=0,
            remaining=look.remaining + self.tokens,
            retry_after_ms=retry_after_ms,
        )


class Batches:
    """The batches of one event loop, or of all threads."""

    def __init__(self, size: int, clock: Clock) -> None:
        self.size = size
        self.clock = clock
        self.lock = threading.Lock()
        self._batches: OrderedDict[tuple[str, Limit], Batch] = OrderedDict()
        self.evicted: deque[tuple[Batch, int]] = deque()
        """What is to be given back."""

    def of(self, name: str, limit: Limit) -> Batch:
        batch = self._batches.get((name, limit))
        if batch is None:
            batch = self._batches[name, limit] = Batch(name, limit)
            if len(self._batches) > MOST_BATCHES:
                self._evict()
        else:
            self._batches.move_to_end((name, limit))
        return batch

    def take(self, name: str, limit: Limit, cost: int) -> tuple[Batch, Decision | None]:
        batch = self.of(name, limit)
        if batch.tokens >= cost and batch.left(self.clock.monotonic()) >= cost and not batch.waiting:
            return batch, batch.spend(cost)
        return batch, None

    def _evict(self) -> None:
        """Forgets the batch that was used longest ago and for which nothing is being fetched."""
        for key, batch in self._batches.items():
            if batch.leader is None:
                del self._batches[key]
                if left := batch.left(self.clock.monotonic()):
                    batch.tokens = 0
                    self.evicted.append((batch, left))
                return

    def forget(self, name: str, limit: Limit) -> None:
        self._batches.pop((name, limit), None)

    def drain(self) -> Iterator[tuple[Batch, int]]:
        """What each batch has left, which it then has no longer."""
        with self.lock:
            batches = list(self._batches.values())
            self._batches.clear()
        now = self.clock.monotonic()
        for batch in batches:
            if left := batch.left(now):
                batch.tokens = 0
                yield batch, left
