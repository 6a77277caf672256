"""Transports of httpx that wait for a token before they send.

    limiter = tokenbucket.Limiter("redis://localhost:6379", tokenbucket.Limit(10, "10/s"), "out:")
    client = httpx.Client(transport=RateLimitTransport(limiter))

Every process that uses the same server, prefix and limit shares one bucket per host, and is served in
order of arrival.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx

from ..api import asyncio as _asyncio
from ..api.operations import checked_wait
from ..api.threads import Hold, Limiter
from ..values.decision import Decision, Denied, JointDecision
from ..values.errors import BadArgument, TokenBucketError
from ..values.limit import Limit, Number
from .outbound import Booking, Patience, pause, until_granted, until_granted_async

__all__ = ["AsyncRateLimitTransport", "RateLimitTimeout", "RateLimitTransport", "host_of"]

Name = str | Callable[[httpx.Request], str | None]
"""The name of a request's bucket; None: this request is not limited."""
Cost = Number | Callable[[httpx.Request], Number]

AnyLimiter = TypeVar("AnyLimiter", Limiter, _asyncio.Limiter)

_PAUSES = {429, 503}


class RateLimitTimeout(Denied, httpx.TimeoutException):
    """The request was not sent: its turn did not come within `max_wait_ms`."""

    def __init__(self, name: str, decision: Decision, max_wait_ms: float) -> None:
        # Each base has arguments of its own.
        httpx.TimeoutException.__init__(self, _why(name, decision, max_wait_ms))
        self.decision = JointDecision.of(decision)
        self._arguments = name, decision, max_wait_ms

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments


def _why(name: str, decision: Decision, max_wait_ms: float) -> str:
    if decision.retry_after_ms < 0:
        return f"{name!r}: the cost is above the capacity, so the request can never be sent"
    away = ", and Redis is away" if decision.degraded else ""
    return f"{name!r}: not granted within {max_wait_ms:g} ms{away}"


def host_of(request: httpx.Request) -> str:
    """The default name: one bucket per host."""
    return request.url.host


def _checked(limiter: AnyLimiter, kind: type[AnyLimiter]) -> AnyLimiter:
    if not isinstance(limiter, kind):
        package = "tokenbucket.asyncio" if kind is _asyncio.Limiter else "tokenbucket"
        raise BadArgument(f"limiter: {limiter!r} is not a {package}.Limiter")
    return limiter


class _RateLimit(Generic[AnyLimiter]):
    """What both transports know."""

    def __init__(
        self,
        limiter: AnyLimiter,
        name: Name,
        cost: Cost,
        max_wait_ms: float,
        in_flight: int | None,
        ttl_ms: int,
        retry_after: bool,
    ) -> None:
        if not limiter.limit.tokens_per_s:
            raise BadArgument("limiter: its rate is 0; limit requests in flight by in_flight=")
        if in_flight is not None and in_flight < 1:
            raise BadArgument(f"in_flight: {in_flight!r} is less than 1")
        self.limiter: AnyLimiter = limiter
        self.max_wait_ms = checked_wait(max_wait_ms)
        self.slots = None if in_flight is None else Limit(in_flight, 0)
        self._ttl_ms = ttl_ms
        self._name = name
        self._cost = cost
        self._heeds = retry_after

    def name(self, request: httpx.Request) -> str | None:
        return self._name(request) if callable(self._name) else self._name

    def cost(self, request: httpx.Request) -> Number:
        return self._cost(request) if callable(self._cost) else self._cost

    def patience(self) -> Patience:
        return Patience(self.limiter, self.max_wait_ms)

    def hold(self, name: str, left_ms: float) -> Any:
        """Asks for a place in flight."""
        in_flight = f"{name}:in-flight"
        return self.limiter.hold(in_flight, 1, ttl_ms=self._ttl_ms, limit=self.slots, max_wait_ms=left_ms)

    def granted(self, name: str, decision: Decision) -> None:
        if not decision.allowed:
            raise RateLimitTimeout(name, decision, self.max_wait_ms)

    def pause_ms(self, response: httpx.Response) -> int:
        """For how long the host wants nothing, as far as callers are ready to wait."""
        if not self._heeds or response.status_code not in _PAUSES:
            return 0
        wanted_ms = 1000 * _retry_after_s(response.headers)
        return math.ceil(min(max(wanted_ms, 0), self.max_wait_ms))

    def not_paused(self, name: str) -> None:
        """The response is worth more than the pause."""
        self.limiter.server.log.warning("Retry-After of %r was not heeded", name, exc_info=True)


def _retry_after_s(headers: httpx.Headers) -> float:
    """0 if there is no such header, or nobody can read it. A date counts from the sender's."""
    text = headers.get("Retry-After", "")
    try:
        seconds = float(text)
    except ValueError:
        until = _unix_s(text)
        sent = _unix_s(headers.get("Date", ""))
        return 0 if until is None else until - (time.time() if sent is None else sent)
    return 0 if math.isnan(seconds) else seconds


def _unix_s(text: str) -> float | None:
    try:
        said: datetime = parsedate_to_datetime(text)
    except ValueError:
        return None
    return (said if said.tzinfo else said.replace(tzinfo=UTC)).timestamp()


class RateLimitTransport(httpx.BaseTransport):
    """Waits for a token of `limiter` before each request, then sends it by `transport`.

    `name` is that of the bucket: the host by default, a string, or a function of the request (None: not
    limited). `cost` is a number or a function of the request. Who is not served within `max_wait_ms` gets
    RateLimitTimeout. With `in_flight`, no more than so many requests of one name are open at a time, over
    all processes; a place is free again when the response is closed, or `ttl_ms` after its process died.
    With `retry_after`, a response 429 or 503 with `Retry-After` pauses its bucket, for all processes, but
    for `max_wait_ms` at most.
    """

    def __init__(
        self,
        limiter: Limiter,
        transport: httpx.BaseTransport | None = None,
        *,
        name: Name = host_of,
        cost: Cost = 1,
        max_wait_ms: float = 60_000,
        in_flight: int | None = None,
        ttl_ms: int = 30_000,
        retry_after: bool = True,
    ) -> None:
        limiter = _checked(limiter, Limiter)
        self._limit = _RateLimit(limiter, name, cost, max_wait_ms, in_flight, ttl_ms, retry_after)
        self._transport = transport or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        name = self._limit.name(request)
        if name is None:
            return self._transport.handle_request(request)
        patience = self._limit.patience()
        hold = self._hold(name, patience)
        try:
            self._take(name, self._limit.cost(request), patience)
            response = self._transport.handle_request(request)
        except BaseException:
            _release(hold)
            raise
        if hold is not None:
            if response.is_closed:
                _release(hold)
            else:
                response.stream = _HeldStream(response.stream, hold)
        self._heed(name, response)
        return response

    def _hold(self, name: str, patience: Patience) -> Hold | None:
        """A place in flight comes first: a token that waits for one would be sent with others at once."""
        if self._limit.slots is None:
            return None
        holds: list[Hold] = []

        def ask(left_ms: float) -> Decision:
            holds.append(self._limit.hold(name, left_ms))
            return holds[-1].decision

        self._limit.granted(name, until_granted(patience, ask))
        return holds[-1].__enter__()

    def _take(self, name: str, cost: Number, patience: Patience) -> None:
        take = self._limit.limiter.take
        booking = Booking(self._limit.limiter, name, cost)
        decision = until_granted(patience, lambda left_ms: take(name, cost, max_wait_ms=left_ms), booking)
        self._limit.granted(name, decision)

    def _heed(self, name: str, response: httpx.Response) -> None:
        if pause_ms := self._limit.pause_ms(response):
            limiter = self._limit.limiter
            try:
                limiter._run(pause(limiter, name, pause_ms))
            except TokenBucketError:
                self._limit.not_paused(name)
            except BaseException:
                response.close()
                raise

    def close(self) -> None:
        """Closes the transport that sends; the limiter stays open."""
        self._transport.close()

    def __enter__(self) -> Self:
        self._transport.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._transport.__exit__(kind, error, traceback)


class AsyncRateLimitTransport(httpx.AsyncBaseTransport):
    """`RateLimitTransport`, which says what the options mean, for asyncio."""

    def __init__(
        self,
        limiter: _asyncio.Limiter,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        name: Name = host_of,
        cost: Cost = 1,
        max_wait_ms: float = 60_000,
        in_flight: int | None = None,
        ttl_ms: int = 30_000,
        retry_after: bool = True,
    ) -> None:
        limiter = _checked(limiter, _asyncio.Limiter)
        self._limit = _RateLimit(limiter, name, cost, max_wait_ms, in_flight, ttl_ms, retry_after)
        self._transport = transport or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        name = self._limit.name(request)
        if name is None:
            return await self._transport.handle_async_request(request)
        patience = self._limit.patience()
        hold = await self._hold(name, patience)
        try:
            await self._take(name, self._limit.cost(request), patience)
            response = await self._transport.handle_async_request(request)
        except BaseException:
            await _release_async(hold)
            raise
        if hold is not None:
            if response.is_closed:
                await _release_async(hold)
            else:
                response.stream = _AsyncHeldStream(response.stream, hold)
        await self._heed(name, response)
        return response

    async def _hold(self, name: str, patience: Patience) -> _asyncio.Hold | None:
        if self._limit.slots is None:
            return None
        holds: list[_asyncio.Hold] = []

        async def ask(left_ms: float) -> Decision:
            holds.append(await self._limit.hold(name, left_ms))
            return holds[-1].decision

        self._limit.granted(name, await until_granted_async(patience, ask))
        return await holds[-1].__aenter__()

    async def _take(self, name: str, cost: Number, patience: Patience) -> None:
        take = self._limit.limiter.take
        booking = Booking(self._limit.limiter, name, cost)
        decision = await until_granted_async(
            patience, lambda left_ms: take(name, cost, max_wait_ms=left_ms), booking
        )
        self._limit.granted(name, decision)

    async def _heed(self, name: str, response: httpx.Response) -> None:
        if pause_ms := self._limit.pause_ms(response):
            limiter = self._limit.limiter
            try:
                await limiter._run_once(pause(limiter, name, pause_ms))
            except TokenBucketError:
                self._limit.not_paused(name)
            except BaseException:
                await response.aclose()
                raise

    async def aclose(self) -> None:
        """Closes the transport that sends; the limiter stays open."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._transport.__aexit__(kind, error, traceback)


def _release(hold: Hold | None) -> None:
    """Gives the place back. If that fails, the place comes back by itself, and the response counts more."""
    if hold is not None:
        try:
            hold.settle()
        except TokenBucketError:
            _not_released(hold)


async def _release_async(hold: _asyncio.Hold | None) -> None:
    if hold is not None:
        try:
            await hold.settle()
        except TokenBucketError:
            _not_released(hold)


def _not_released(hold: Hold | _asyncio.Hold) -> None:
    hold._backend.server.log.warning("a place in flight was not given back", exc_info=True)


def _expires_with(stream: object, hold: Hold | _asyncio.Hold) -> None:
    """Leaves a place to expire if the response is forgotten instead of closed."""
    weakref.finalize(stream, hold.stop_renewing).atexit = False


class _HeldStream(httpx.SyncByteStream):
    """The body of a response, whose end frees its place."""

    def __init__(self, stream: Any, hold: Hold) -> None:
        self._stream = stream
        self._held = hold
        _expires_with(self, hold)

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            _release(self._held)


class _AsyncHeldStream(httpx.AsyncByteStream):
    def __init__(self, stream: Any, hold: _asyncio.Hold) -> None:
        self._stream = stream
        self._held = hold
        _expires_with(self, hold)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            await _release_async(self._held)
