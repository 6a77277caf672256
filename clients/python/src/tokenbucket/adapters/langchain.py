"""A rate limiter of LangChain on a token bucket that all processes share."""

from __future__ import annotations

from langchain_core.rate_limiters import BaseRateLimiter

from ..api import asyncio as _asyncio
from ..api import threads as _sync
from ..api.operations import LONGEST_MS, OnError, at_once, checked_ms, done
from ..values.decision import Denied
from ..values.errors import BadArgument
from ..values.limit import Limit, Number
from .outbound import AnyLimiter, Patience


class TokenBucketRateLimiter(BaseRateLimiter):
    """Takes `cost` tokens of the bucket `prefix` + `name` for each request, in order of arrival.

    `server` is a URL, a `tokenbucket.Server`, or a client for threads; with one of the latter two,
    `async_server` is what `ainvoke` and the like use, a `tokenbucket.asyncio.Server` or a client for
    asyncio. LangChain ignores a denial, so a call that is not served within `max_wait_ms`
    (by default 30 days) raises `Denied`.

    >>> from tokenbucket import Limit, Server
    >>> from tokenbucket.langchain import TokenBucketRateLimiter
    >>> from tokenbucket.testing import FakeServer
    >>> limiter = TokenBucketRateLimiter(Server(FakeServer()), Limit(2, "1/s"))
    >>> [limiter.acquire(blocking=False) for _ in range(3)]
    [True, True, False]
    """

    def __init__(
        self,
        server: _sync.Server | _sync.Client | str,
        limit: Limit,
        name: str = "langchain",
        *,
        async_server: _asyncio.Server | _asyncio.Client | str | None = None,
        cost: Number = 1,
        max_wait_ms: float = LONGEST_MS,
        prefix: str = "tb:",
        on_error: OnError = "local",
    ) -> None:
        if async_server is None and isinstance(server, str):
            async_server = server
        self.limiter = _sync.Limiter(server, limit, prefix, on_error=on_error)
        self.async_limiter = (
            None if async_server is None else _asyncio.Limiter(async_server, limit, prefix, on_error=on_error)
        )
        self.name = name
        self.cost = cost
        self.max_wait_ms = checked_ms("max_wait_ms", max_wait_ms)

    def acquire(self, *, blocking: bool = True) -> bool:
        return at_once(self._acquire(self.limiter, blocking))

    async def aacquire(self, *, blocking: bool = True) -> bool:
        if self.async_limiter is None:
            raise BadArgument("async_server: asyncio needs a client for asyncio, or a URL as server")
        return await self._acquire(self.async_limiter, blocking)

    async def _acquire(self, limiter: AnyLimiter, blocking: bool) -> bool:
        if not blocking:
            return bool((await done(limiter.take(self.name, self.cost))).allowed)
        decision = await Patience(limiter, self.max_wait_ms).until_taken(self.name, self.cost)
        if not decision.allowed:
            raise Denied(decision)
        return True

    def close(self) -> None:
        """Closes the connections of threads; `aclose` those of asyncio too."""
        self.limiter.close()

    async def aclose(self) -> None:
        self.limiter.close()
        if self.async_limiter is not None:
            await self.async_limiter.aclose()
