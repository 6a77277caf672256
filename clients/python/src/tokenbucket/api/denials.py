"""Denials remembered, so that a flood is refused without asking."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from fractions import Fraction

from ..local.clock import Clock
from ..values.decision import Decision
from ..values.limit import Limit, exactly
from .operations import Part


@dataclass(frozen=True, slots=True)
class _Denial:
    limit: Limit
    cost: int | Fraction
    decision: Decision
    asked_at: float
    heard_at: float


class Denials:
    """The last denial of each of at most `size` names.

    The server decided between the request and its reply. Calls are refused as if it was at the request,
    so never for too long; `retry_after_ms` counts from the reply, so it is never too short.
    """

    def __init__(self, size: int, clock: Clock) -> None:
        self._clock = clock
        self._size = size
        self._lock = threading.RLock()
        self._denials: OrderedDict[str, _Denial] = OrderedDict()
        self._forgotten_at = -math.inf

    def recall(self, part: Part) -> Decision | None:
        """Returns the denial that still holds for this cost: one of cost 5 says nothing about cost 1."""
        if not self._denials:
            return None
        with self._lock:
            denial = self._denials.get(part.name)
            if denial is None:
                return None
            now = self._clock.monotonic()
            if now >= denial.asked_at + denial.decision.retry_after_ms / 1000:
                self._denials.pop(part.name, None)
                return None
        if denial.limit != part.limit:
            return None
        wanted = exactly(part.amount)
        # The server says of others what is wrong with them.
        if wanted is None or not denial.cost <= wanted <= part.limit._capacity:
            return None
        waited_ms = int((now - denial.heard_at) * 1000)
        return replace(
            denial.decision,
            retry_after_ms=max(denial.decision.retry_after_ms - waited_ms, 1),
            reset_after_ms=max(denial.decision.reset_after_ms - waited_ms, 1),
        )

    def remember(self, part: Part, decision: Decision, asked_at: float) -> None:
        if not self._size or decision.allowed or decision.degraded or decision.retry_after_ms <= 0:
            return
        exact = exactly(part.amount)
        if exact is None:
            return
        with self._lock:
            if asked_at < self._forgotten_at:
                return  # the server may have denied it before the tokens came back
            heard_at = self._clock.monotonic()
            self._denials[part.name] = _Denial(part.limit, exact, decision, asked_at, heard_at)
            self._denials.move_to_end(part.name)
            if len(self._denials) > self._size:
                self._denials.popitem(last=False)

    def forget(self, part: Part) -> None:
        """Tokens have come back, by whatever limit: the denial may no longer hold."""
        with self._lock:
            self._denials.pop(part.name, None)
            self._forgotten_at = self._clock.monotonic()
