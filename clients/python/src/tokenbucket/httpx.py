"""Transports of httpx that wait for a token before they send.

Every process that uses the same server, prefix and limit shares one bucket per host, and is served in
order of arrival.
"""

from __future__ import annotations

import math
import time
import uuid
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from fractions import Fraction
from ipaddress import IPv6Address
from typing import Any, Generic, Self, TypeVar

import httpx

from . import asyncio as _asyncio
from .api.limiter import BaseLimiter
from .api.operations import at_once, checked_ms, done
from .api.threads import Hold, Limiter
from .transport.call import Steps
from .values.decision import Decision, Denied
from .values.errors import BadArgument, ModuleMissing, TokenBucketError
from .values.limit import Limit, Number, exactly

Name = str | Callable[[httpx.Request], str | None]
"""The name of a request's bucket; None: this request is not limited."""
Cost = Number | Callable[[httpx.Request], Number]

AnyLimiter = BaseLimiter[Any, Any, Any]
SomeLimiter = TypeVar("SomeLimiter", bound=AnyLimiter)
Sending = TypeVar("Sending", httpx.BaseTransport, httpx.AsyncBaseTransport)

_PAUSES = {429, 503}
# How often a pause tries to hold what is left, while others take some of it.
_TRIES = 3


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


class RateLimiting(Generic[SomeLimiter, Sending]):
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
        if in_flight is not None and not (isinstance(in_flight, int) and in_flight >= 1):
            raise BadArgument(f"in_flight: {in_flight!r} is not a whole number of at least 1")
        if not (isinstance(name, str) or callable(name)):
            raise BadArgument(f"name: {name!r} is neither a str nor a function")
        if not callable(cost) and exactly(cost) is None:
            raise BadArgument(f"cost: {cost!r} is not a number from 0 to 1e12")
        self._limiter: Any = limiter
        self._max_wait_ms = checked_ms("max_wait_ms", max_wait_ms)
        self._slots = None if in_flight is None else Limit(in_flight, 0)
        self._ttl_ms = int(checked_ms("ttl_ms", ttl_ms, 1))
        self._name = name
        self._cost = cost
        self._heeds = retry_after
        self._transport: Any = transport or self._default()
        self._sends = "handle_async_request" if limiter.server._is_asynchronous else "handle_request"
        if not hasattr(self._transport, self._sends):
            raise BadArgument(f"transport: {transport!r} has no {self._sends}")

    async def _send(self, request: httpx.Request) -> httpx.Response:
        send = getattr(self._transport, self._sends)
        name = self._name(request) if callable(self._name) else self._name
        if name is None:
            unlimited: httpx.Response = await done(send(request))
            return unlimited
        ends_at = self._limiter._clock.monotonic() + self._max_wait_ms / 1000
        hold = await self._hold(name, ends_at)
        try:
            cost = self._cost(request) if callable(self._cost) else self._cost
            await self._take(name, cost, ends_at)
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
            is_asynchronous = self._limiter.server._is_asynchronous
            await done((response.aclose if is_asynchronous else response.close)())
            raise
        return response

    async def _hold(self, name: str, ends_at: float) -> Any:
        """A place in flight comes first: a token that waits for one would be sent with others at once."""
        if self._slots is None:
            return None
        hold: Hold | _asyncio.Hold

        async def ask(left_ms: float) -> Decision:
            nonlocal hold
            options = {"ttl_ms": self._ttl_ms, "limit": self._slots, "max_wait_ms": left_ms}
            hold = await done(self._limiter.hold(f"{name}:in-flight", 1, **options))
            return hold.decision

        await self._until_granted(name, ask, ends_at)
        hold.keep_renewing()
        return hold

    async def _take(self, name: str, cost: Number, ends_at: float) -> None:
        async def ask(left_ms: float) -> Decision:
            decision: Decision = await done(self._limiter.take(name, cost, max_wait_ms=left_ms))
            if decision.degraded and not decision.allowed and self._limiter._on_error == "local":
                # A caller that asks this process again and again may be overtaken each time; one that has
                # booked is not.
                left_ms = self._left_ms(ends_at)
                decision = await done(self._limiter.wait(name, cost, max_wait_ms=int(left_ms)))
            return decision

        await self._until_granted(name, ask, ends_at)

    def _left_ms(self, ends_at: float) -> float:
        left_s: float = ends_at - self._limiter._clock.monotonic()
        return max(left_s * 1000, 0.0)

    async def _until_granted(
        self, name: str, ask: Callable[[float], Awaitable[Decision]], ends_at: float
    ) -> None:
        """Asks until granted; raises the last denial when it is too late. `ask` gets the ms it may wait."""
        while not (decision := await ask(self._left_ms(ends_at))).allowed:
            left_s, pause_s = self._left_ms(ends_at) / 1000, max(decision.retry_after_ms, 1) / 1000
            if decision.degraded:
                # It may be back before the policy in its place allows the call.
                pause_s = min(pause_s, self._limiter.server.retry_every_ms / 1000 or pause_s, left_s)
            # A denial comes early if too many callers wait in the server, or if it is away.
            if decision.retry_after_ms < 0 or left_s <= 0 or pause_s > left_s:
                raise self._late(name, decision)
            await done(self._limiter._sleep(pause_s))

    def _late(self, name: str, decision: Decision) -> RateLimitTimeout:
        if decision.retry_after_ms < 0:
            why = "the cost is above the capacity, so the request can never be sent"
        else:
            away = ", and Redis is away" if decision.degraded else ""
            why = f"not granted within {self._max_wait_ms:g} ms{away}"
        return RateLimitTimeout(f"{name!r}: {why}", decision)

    async def _heed(self, name: str, response: httpx.Response) -> None:
        """Pauses the bucket for as long as the host wants nothing, as far as callers are ready to wait."""
        if not self._heeds or response.status_code not in _PAUSES:
            return
        wanted_ms = 1000 * _retry_after_s(response.headers)
        if pause_ms := math.ceil(min(max(wanted_ms, 0), self._max_wait_ms)):
            try:
                await done(self._limiter._run_once(_pause(self._limiter, name, pause_ms)))
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


class RateLimitTransport(RateLimiting[Limiter, httpx.BaseTransport], httpx.BaseTransport):
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
    RateLimiting[_asyncio.Limiter, httpx.AsyncBaseTransport], httpx.AsyncBaseTransport
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


def _pause(limiter: AnyLimiter, name: str, for_ms: int) -> Steps[None]:
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
