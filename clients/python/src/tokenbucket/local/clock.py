"""The clock by which limiters wait and forget."""

from __future__ import annotations

import asyncio
import time
from fractions import Fraction


class Clock:
    """The real one. The fake server is another."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


REAL = Clock()
_AHEAD_NS = time.time_ns() - time.monotonic_ns()


def unix_ms_now() -> Fraction:
    """Unix time that never steps back."""
    return Fraction((_AHEAD_NS + time.monotonic_ns()) // 1000, 1000)
