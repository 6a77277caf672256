"""An in-memory server with a clock that your test controls."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from .local.calendar import unix_ms
from .local.clock import Clock
from .local.limiter import LocalLimiter
from .transport.call import Attempt
from .transport.circuit import Circuit
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

    name = "the fake server"

    def _transport_for(self, asynchronous: bool) -> type[_Transport]:
        return _AsyncTransport if asynchronous else _Transport

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


class _Transport:
    """Decides in this process, at once."""

    def __init__(self, circuit: Circuit) -> None:
        self._server: Any = circuit.endpoint

    def exchange(self, attempt: Attempt) -> Any:
        self._server.advance(attempt.call.pause_s)
        attempt.call.pause_s = 0.0
        return [self._server._buckets.execute(*words) for words in attempt.words]

    def drop(self) -> None:
        """Has no connections."""

    _begin_anew = drop


class _AsyncTransport(_Transport):
    def here(self) -> _AsyncTransport:
        return self

    async def exchange(self, attempt: Attempt) -> Any:
        await asyncio.sleep(0)  # a caller in a loop still lets the event loop read
        return super().exchange(attempt)

    async def close(self) -> None:
        self.drop()
