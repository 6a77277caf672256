"""How callers wait who have nothing else to do, and how a whole bucket is made to wait."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from fractions import Fraction
from typing import Any

from ..api.limiter import BaseLimiter
from ..api.operations import Backend, Part, keep
from ..local.clock import Clock
from ..transport.call import Steps, Terms
from ..values.decision import Decision
from ..values.errors import ModuleMissing
from ..values.limit import Number

# How often a pause tries to hold what is left, while others take some of it.
_TRIES = 3


class Patience:
    """The time that one caller has left."""

    def __init__(self, limiter: Backend, max_wait_ms: float) -> None:
        self.clock: Clock = limiter._clock
        self._retry_every_s: float = limiter.server.retry_every_ms / 1000
        self._ends_at = self.clock.monotonic() + max_wait_ms / 1000

    @property
    def left_ms(self) -> float:
        return max((self._ends_at - self.clock.monotonic()) * 1000, 0.0)

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


class Booking:
    """A place in the bucket of this process, while that decides.

    A caller that asks it again and again may be overtaken each time; one that has booked is not.
    """

    def __init__(self, limiter: BaseLimiter[Any, Any, Any], name: str, cost: Number) -> None:
        self._limiter, self._name, self._cost = limiter, name, cost

    def of(self, decision: Decision, left_ms: float) -> Decision | None:
        """Returns the place, to be waited for; None if the server decides or there is none in time."""
        if decision.allowed or not decision.degraded:
            return None
        booked = self._limiter._book_here(self._name, self._cost, left_ms)
        return booked if booked is not None and booked.allowed else None

    def give_back(self) -> None:
        self._limiter._give_here(self._name, self._cost)


def until_granted(
    patience: Patience, ask: Callable[[float], Decision], booking: Booking | None = None
) -> Decision:
    """Asks until granted or too late, and returns the last decision. `ask` gets the ms it may wait."""
    while True:
        decision = ask(patience.left_ms)
        if booking and (booked := booking.of(decision, patience.left_ms)):
            try:
                patience.clock.sleep(booked.retry_after_ms / 1000)
            except BaseException:
                booking.give_back()
                raise
            return booked
        pause_s = patience.pause_s(decision)
        if pause_s is None:
            return decision
        patience.clock.sleep(pause_s)


async def until_granted_async(
    patience: Patience, ask: Callable[[float], Awaitable[Decision]], booking: Booking | None = None
) -> Decision:
    while True:
        decision = await ask(patience.left_ms)
        if booking and (booked := booking.of(decision, patience.left_ms)):
            try:
                await patience.clock.sleep_async(booked.retry_after_ms / 1000)
            except BaseException:
                booking.give_back()
                raise
            return booked
        pause_s = patience.pause_s(decision)
        if pause_s is None:
            return decision
        await patience.clock.sleep_async(pause_s)


def pause(limiter: BaseLimiter[Any, Any, Any], name: str, for_ms: int) -> Steps[None]:
    """Keeps everybody from the bucket for so long; afterwards it has what it had before.

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


def _hold_all(limiter: BaseLimiter[Any, Any, Any], name: str, for_ms: int) -> Steps[int]:
    """Returns how many tokens are to be charged because this server cannot hold them."""
    for _ in range(_TRIES):
        left = (yield from limiter._simple("TB.PEEK", name, None, 0)).remaining
        if left <= 0:
            return 0
        part = Part("", limiter.prefix + name, name, limiter.limit, left)
        try:
            terms = Terms(late=keep)
            held = yield from limiter._decide_all(
                [part], "TB.MHOLD", 1, for_ms, uuid.uuid4().hex, terms=terms
            )
        except ModuleMissing:
            return left
        if held.allowed:
            return 0
    return 0


def _decimal(amount: Fraction) -> str:
    return f"{float(amount):.6f}"
