"""A server in memory, whose time stands still until it is told otherwise: for tests of your own.

    server = FakeServer()
    limiter = tokenbucket.Limiter(server, Limit(1, "1/s"))      # asyncio: server.asyncio
    assert limiter.take("a").allowed
    assert not limiter.take("a").allowed
    server.advance(1)
    assert limiter.take("a").allowed

It decides as the module does, in exact arithmetic. Its calendar begins at midnight UTC of January 1st,
2026, or at the time that you pass: `FakeServer(datetime(2026, 12, 31, 23, 59, tzinfo=UTC))`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from ..values.errors import BadArgument, ReplyError
from .calendar import unix_ms
from .clock import Clock
from .limiter import Buckets


class FakeServer(Clock):
    """Stands where `redis.Redis` stands; `server.asyncio` where `redis.asyncio.Redis` does."""

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = self._began = unix_ms(now)
        self._buckets = Buckets(lambda: self._now)
        self.asyncio = _AsyncFakeServer(self)

    def advance(self, seconds: float | Fraction) -> None:
        """Lets time pass, for buckets and for what limiters remember. Kept to the microsecond."""
        self._now += Fraction(round(seconds * 1_000_000), 1000)

    def reset(self) -> None:
        """Makes every bucket full."""
        self._buckets.begin_anew()

    @property
    def tokenbucket_fake(self) -> FakeServer:
        """By this, limiters know that they need no connection."""
        return self

    # The clock of its limiters, which `wait` advances.

    def monotonic(self) -> float:
        return float((self._now - self._began) / 1000)

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.advance(seconds)

    def answer(self, *words: object) -> Any:
        return self._buckets.execute(*words)

    def execute_command(self, *words: Any, **_: Any) -> Any:
        reply = self.answer(*words)
        if isinstance(reply, ReplyError):
            raise BadArgument(str(reply))
        return reply


class _AsyncFakeServer:
    def __init__(self, server: FakeServer) -> None:
        self.tokenbucket_fake = server

    async def execute_command(self, *words: Any, **options: Any) -> Any:
        return self.tokenbucket_fake.execute_command(*words, **options)
