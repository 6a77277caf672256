"""How outgoing calls wait, and how `Retry-After` makes a whole bucket wait."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from fractions import Fraction
from typing import Any

from ..local.clock import Clock
from ..transport.call import Steps
from ..values.decision import Decision
from ..values.errors import ModuleMissing
from ..values.limit import Number
from .limiter import BaseLimiter
from .operations import done

# How often a pause tries to hold what is left, while others take some of it.
_TRIES = 3

AnyLimiter = BaseLimiter[Any, Any, Any]


class Patience:
    """The time that one caller has left."""

    def __init__(self, limiter: AnyLimiter, max_wait_ms: float) -> None:
        self._limiter = limiter
        self._clock: Clock = limiter._clock
        self._retry_every_s: float = limiter.server.retry_every_ms / 1000
        self._ends_at = self._clock.monotonic() + max_wait_ms / 1000

    @property
    def left_ms(self) -> float:
        left_s: float = self._ends_at - self._clock.monotonic()
        return max(left_s * 1000, 0.0)

    def pause_s(self, decision: Decision) -> float | None:
        """When to ask again; None if it was granted, or cannot be in time.

        A denial comes early if too many callers wait in the server, or if it is away. It may be back
        before the policy in its place allows the call, so it is tried as often as `retry_every_ms` says.
        """
        left_s, pause_s = self.left_ms / 1000, max(decision.retry_after_ms, 1) / 1000
        if decision.allowed or decision.retry_after_ms < 0 or left_s <= 0:
            return None
        if decision.degraded:
            return min(pause_s, self._retry_every_s or pause_s, left_s)
        return pause_s if pause_s <= left_s else None

    async def until_taken(self, name: str, cost: Number) -> Decision:
        """Takes of the limiter's bucket, or returns the last denial."""

        async def take(left_ms: float) -> Decision:
            decision: Decision = await done(self._limiter.take(name, cost, max_wait_ms=left_ms))
            if decision.degraded and not decision.allowed and self._limiter._on_error == "local":
                # A caller that asks this process again and again may be overtaken each time; one that has
                # booked is not.
                decision = await done(self._limiter.wait(name, cost, max_wait_ms=int(self.left_ms)))
            return decision

        return await self.until_granted(take)

    async def until_granted(self, ask: Callable[[float], Awaitable[Decision]]) -> Decision:
        """Asks until granted or too late, and returns the last decision. `ask` gets the ms it may wait."""
        while True:
            decision = await ask(self.left_ms)
            pause_s = self.pause_s(decision)
            if pause_s is None:
                return decision
            await done(self._limiter._sleep(pause_s))


def pause(limiter: AnyLimiter, name: str, for_ms: int) -> Steps[None]:
    """Empties the bucket for `for_ms`; afterwards it has what it had before.

    The tokens that it has are held, and come back when the hold expires. What would flow in meanwhile
    is charged. A pause that is shorter than one that lasts already changes nothing.
    """
    limit = limiter.limit
    # What flows in at a boundary of the calendar is not spread over the time before.
    rate = Fraction(0) if limit.is_calendar else limit.tokens_per_s
    lost = yield from _hold_all(limiter, name, for_ms)
    amount = rate * for_ms / 1000 + lost
    if not amount:
        return
    charged = yield from limiter._simple("TB.CHARGE", name, None, _decimal(amount), once=True)
    too_long_ms = charged.retry_after_ms - for_ms
    if rate and too_long_ms > 1:  # another process has charged the same pause
        too_much = min(rate * too_long_ms / 1000, amount)
        yield from limiter._simple("TB.GIVE", name, None, _decimal(too_much), once=True)


def _hold_all(limiter: AnyLimiter, name: str, for_ms: int) -> Steps[int]:
    """Returns how many tokens are to be charged because this server cannot hold them."""
    for _ in range(_TRIES):
        left = (yield from limiter._simple("TB.PEEK", name, None, 0)).remaining
        if left <= 0:
            return 0
        part = limiter._part(name, None, left)
        try:
            held = yield from limiter._ask([part], ("TB.MHOLD", 1, for_ms, uuid.uuid4().hex, *part.words))
        except ModuleMissing:
            return left
        if held.allowed:
            return 0
    return 0


def _decimal(amount: Fraction) -> str:
    return f"{float(amount):.6f}"
