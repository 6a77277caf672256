"""Transports of httpx that wait for a token before they send.

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
from ipaddress import IPv6Address
from typing import Any, Generic, Self, TypeVar

import httpx

from .api import asyncio as _asyncio
from .api.operations import at_once, checked_ms, done
from .api.outbound import AnyLimiter, Patience, pause
from .api.threads import Limiter
from .values.decision import Decision, Denied
from .values.errors import BadArgument, TokenBucketError
from .values.limit import Limit, Number

Name = str | Callable[[httpx.Request], str | None]
"""The name of a request's bucket; None: this request is not limited."""
Cost = Number | Callable[[httpx.Request], Number]

SomeLimiter = TypeVar("SomeLimiter", bound=AnyLimiter)
Sending = TypeVar("Sending", httpx.BaseTransport, httpx.AsyncBaseTransport)

_PAUSES = {429, 503}


class RateLimitTimeout(Denied, httpx.TimeoutException):
    """The request was not sent: its turn did not come within `max_wait_ms`."""

    def __init__(self, message: str, decision: Decision = Decision(False)) -> None:  # noqa: B008
        # Each base has arguments of its own. One that is copied gets its decision as its attribute.
        httpx.TimeoutException.__init__(self, message)
        self.decision = decision


def host_of(request: httpx.Request) -> str:
    """Returns the default name: one bucket per host, however its URL spells it."""
    host = request.url.host.rstrip(".")
    return IPv6Address(host).compressed if ":" in host else host


class _RateLimit(Generic[SomeLimiter, Sending]):
    _kind: type[SomeLimiter]
    _default: type[Sending]

    def __init__(
        self,
        limiter: SomeLimiter,
        transport: Sending | None = None,
        *,
        name: Name = host_of,
        cost: Cost = 1,
        max_wait_ms: float = 60_000,
        in_flight: int | None = None,
        ttl_ms: int = 30_000,
        retry_after: bool = True,
    ) -> None:
        if not isinstance(limiter, self._kind):
            package = "tokenbucket.asyncio" if self._kind is _asyncio.Limiter else "tokenbucket"
            raise BadArgument(f"limiter: {limiter!r} is not a {package}.Limiter")
        if not limiter.limit.tokens_per_s:
            raise BadArgument("limiter: its rate is 0; limit requests in flight by in_flight=")
        if in_flight is not None and in_flight < 1:
            raise BadArgument(f"in_flight: {in_flight!r} is less than 1")
        self._limiter: Any = limiter
        self._max_wait_ms = checked_ms("max_wait_ms", max_wait_ms)
        self._slots = None if in_flight is None else Limit(in_flight, 0)
        self._ttl_ms = ttl_ms
        self._name = name
        self._cost = cost
        self._heeds = retry_after
        self._transport: Any = transport or self._default()

    async def _send(self, request: httpx.Request) -> httpx.Response:
        is_asynchronous = self._limiter.server._is_asynchronous
        transport = self._transport
        send = transport.handle_async_request if is_asynchronous else transport.handle_request
        name = self._name(request) if callable(self._name) else self._name
        if name is None:
            unlimited: httpx.Response = await done(send(request))
            return unlimited
        patience = Patience(self._limiter, self._max_wait_ms)
        hold = await self._hold(name, patience)
        try:
            cost = self._cost(request) if callable(self._cost) else self._cost
            self._granted(name, await patience.until_taken(name, cost))
            response: httpx.Response = await done(send(request))
        except BaseException:
            await _release(hold)
            raise
        if hold is not None:
            if response.is_closed:
                await _release(hold)
            else:
                response.stream = _Held(response.stream, hold)
        try:
            await self._heed(name, response)
        except BaseException:
            await done((response.aclose if is_asynchronous else response.close)())
            raise
        return response

    async def _hold(self, name: str, patience: Patience) -> Any:
        """A place in flight comes first: a token that waits for one would be sent with others at once."""
        if self._slots is None:
            return None
        hold: Any = None

        async def ask(left_ms: float) -> Decision:
            nonlocal hold
            options = {"ttl_ms": self._ttl_ms, "limit": self._slots, "max_wait_ms": left_ms}
            hold = await done(self._limiter.hold(f"{name}:in-flight", 1, **options))
            decision: Decision = hold.decision
            return decision

        self._granted(name, await patience.until_granted(ask))
        hold.keep_renewing()
        return hold

    def _granted(self, name: str, decision: Decision) -> None:
        if decision.allowed:
            return
        if decision.retry_after_ms < 0:
            why = "the cost is above the capacity, so the request can never be sent"
        else:
            away = ", and Redis is away" if decision.degraded else ""
            why = f"not granted within {self._max_wait_ms:g} ms{away}"
        raise RateLimitTimeout(f"{name!r}: {why}", decision)

    async def _heed(self, name: str, response: httpx.Response) -> None:
        """Pauses the bucket for as long as the host wants nothing, as far as callers are ready to wait."""
        if not self._heeds or response.status_code not in _PAUSES:
            return
        wanted_ms = 1000 * _retry_after_s(response.headers)
        if pause_ms := math.ceil(min(max(wanted_ms, 0), self._max_wait_ms)):
            try:
                await done(self._limiter._run_once(pause(self._limiter, name, pause_ms)))
            except TokenBucketError:  # the response is worth more than the pause
                self._limiter.server.log.warning("Retry-After of %r was not heeded", name, exc_info=True)


def _retry_after_s(headers: httpx.Headers) -> float:
    """Returns 0 if the header is missing or invalid. A date counts from the sender's `Date`."""
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
        return (said if said.tzinfo else said.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


class RateLimitTransport(_RateLimit[Limiter, httpx.BaseTransport], httpx.BaseTransport):
    """Waits for a token of `limiter` before each request, then sends it by `transport`.

    `name` is that of the bucket: the host by default, a string, or a function of the request (None: not
    limited). `cost` is a number or a function of the request. A request that is not served within
    `max_wait_ms` raises RateLimitTimeout. `in_flight` bounds the open requests of one name, over all
    processes; a place is free again when the response is closed, or `ttl_ms` after its process died.
    With `retry_after`, a response 429 or 503 with `Retry-After` pauses its bucket, for all processes, but
    for `max_wait_ms` at most.

    >>> import httpx
    >>> from tokenbucket import Limit, Limiter
    >>> from tokenbucket.httpx import RateLimitTransport
    >>> from tokenbucket.testing import FakeServer
    >>> limiter = Limiter(FakeServer(), Limit(10, "10/s"))
    >>> answers = httpx.MockTransport(lambda request: httpx.Response(200))  # the default is httpx's own
    >>> with httpx.Client(transport=RateLimitTransport(limiter, answers)) as client:
    ...     client.get("https://api.example.com/")
    <Response [200 OK]>
    >>> limiter.peek("api.example.com", 0).remaining
    9
    """

    _kind = Limiter
    _default = httpx.HTTPTransport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return at_once(self._send(request))

    def close(self) -> None:
        """Closes the transport that sends; the limiter stays open."""
        self._transport.close()

    def __enter__(self) -> Self:
        self._transport.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._transport.__exit__(*error)


class AsyncRateLimitTransport(
    _RateLimit[_asyncio.Limiter, httpx.AsyncBaseTransport], httpx.AsyncBaseTransport
):
    """`RateLimitTransport` for asyncio, with the same options."""

    _kind = _asyncio.Limiter
    _default = httpx.AsyncHTTPTransport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._send(request)

    async def aclose(self) -> None:
        """Closes the transport that sends; the limiter stays open."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._transport.__aexit__(*error)


async def _release(hold: Any) -> None:
    """Gives the place back. If that fails, the place comes back by itself, and the response counts more."""
    if hold is not None:
        try:
            await done(hold.settle())
        except TokenBucketError:
            hold._backend.server.log.warning("a place in flight was not given back", exc_info=True)


class _Held(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body of a response, whose end frees its place."""

    def __init__(self, stream: Any, hold: Any) -> None:
        self._stream = stream
        self._place = hold
        # A response that is forgotten instead of closed leaves its place to expire.
        weakref.finalize(self, hold._stop_renewing).atexit = False

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            at_once(_release(self._place))

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            await _release(self._place)
