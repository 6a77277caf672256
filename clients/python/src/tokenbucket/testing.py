"""An in-memory server with a clock that your test controls."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from .local.calendar import unix_ms
from .local.clock import Clock
from .local.limiter import LocalLimiter
from .values.errors import BadArgument, ReplyError


class FakeServer(Clock):
    """An in-memory server for tests of your own. It takes the place of a client of redis-py.

    For `tokenbucket.asyncio` pass its attribute `asyncio`. It decides as the module does, in exact
    arithmetic. Its clock begins at midnight UTC on January 1st, 2026, or at `now`.

    >>> from tokenbucket import Limit, Limiter
    >>> from tokenbucket.testing import FakeServer
    >>> server = FakeServer()
    >>> limiter = Limiter(server, Limit(1, "1/s"))
    >>> [limiter.take("alice").allowed for _ in range(2)]
    [True, False]
    >>> server.advance(1)
    >>> limiter.take("alice").allowed
    True
    """

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = self._began = unix_ms(now)
        self._buckets = LocalLimiter(lambda: self._now)
        self.asyncio = _AsyncFakeServer(self)

    def advance(self, seconds: float | Fraction) -> None:
        """Moves the clock of buckets and limiters by `seconds`, in whole microseconds."""
        self._now += Fraction(round(seconds * 1_000_000), 1000)

    @property
    def _tokenbucket_fake(self) -> FakeServer:
        """Returns itself: by this attribute a limiter recognises a fake."""
        return self

    # The clock of its limiters, which `wait` advances.

    def monotonic(self) -> float:
        return float((self._now - self._began) / 1000)

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.advance(seconds)

    def execute_command(self, *words: Any, **_: Any) -> Any:
        reply = self._buckets.execute(*words)
        if isinstance(reply, ReplyError):
            raise BadArgument(str(reply))
        return reply


class _AsyncFakeServer:
    def __init__(self, server: FakeServer) -> None:
        self._tokenbucket_fake = server

    async def execute_command(self, *words: Any, **options: Any) -> Any:
        return self._tokenbucket_fake.execute_command(*words, **options)
