"""The time by which limiters wait and forget."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol


class Clock(Protocol):
    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...

    async def sleep_async(self, seconds: float) -> None: ...


class _RealClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


_REAL = _RealClock()


def clock_of(client: Any) -> Clock:
    """The real one; with the fake server, the one that a test controls."""
    clock: Clock = getattr(client, "tokenbucket_clock", _REAL)
    return clock
