"""The `limits` library on token buckets, and with it Flask-Limiter and slowapi.

    import tokenbucket.limits

    Limiter(get_remote_address, app=app, storage_uri="tokenbucket://localhost:6379")

Importing this module makes the URIs known: `tokenbucket://`, `tokenbuckets://` (TLS) and
`tokenbucket+unix://`, each with `async+` in front for `limits.aio`. Behind such a URI every strategy
decides by bucket: "10 per minute" is a bucket of 10 that refills with 10 a minute. The strategy
"token-bucket" says what it is.

What the storage is given beside the URI goes to `tokenbucket.Limiter`, by default
`on_error="raise"`, so that the library's users decide what an error means.
"""

from __future__ import annotations

import re
import time
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import limits.aio.storage
import limits.aio.strategies
import limits.storage
import limits.strategies
import redis
import redis.asyncio
from limits import RateLimitItem
from limits.limits import TIME_TYPES
from limits.util import WindowStats

import tokenbucket.asyncio

from ._decision import Decision
from ._errors import ASKING_ERRORS, ModuleMissing, ServerAway
from ._limit import Limit
from ._sync import Limiter

__all__ = [
    "AsyncTokenBucketRateLimiter",
    "AsyncTokenBucketStorage",
    "TokenBucketRateLimiter",
    "TokenBucketStorage",
]

_SCHEMES = {"tokenbucket": "redis", "tokenbuckets": "rediss", "tokenbucket+unix": "unix"}
_ERRORS = (*ASKING_ERRORS, ModuleMissing, ServerAway)

# How `RateLimitItem.key_for` ends: amount, multiples, granularity. Two of the library's strategies
# tell a storage nothing else about the limit.
_LIMIT_IN_KEY = re.compile(rf".*/(\d+)/(\d+)/({'|'.join(TIME_TYPES)})", re.DOTALL)


def _limit(amount: int, seconds: int) -> Limit:
    return Limit(amount, f"{amount}/{seconds}s" if amount else 1)


def _limit_of(key: str) -> Limit:
    found = _LIMIT_IN_KEY.fullmatch(key)
    if found is None:
        raise ValueError(f"{key!r} does not end in a limit, like 10/1/minute")
    amount, multiples, granularity = found.groups()
    return _limit(int(amount), int(multiples) * TIME_TYPES[granularity].seconds)


def _uri(uri: str) -> str:
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(scheme=_SCHEMES[parts.scheme.removeprefix("async+")]))


class _Level:
    """What a bucket has to tell, from a look at it that asks for one token."""

    def __init__(self, limit: Limit, look: Decision) -> None:
        self.capacity = int(limit.capacity)
        self.remaining = max(look.remaining + look.allowed, 0)
        """Whole tokens, of which the look did not take one."""
        self.used = self.capacity - self.remaining
        # When the next call passes, of an empty bucket; of others, when it is full.
        wait_ms = look.reset_after_ms if look.allowed else look.retry_after_ms
        if self.used == 0:
            wait_ms = 0
        self.resets_at = time.time() + max(wait_ms, 0) / 1000

    @property
    def stats(self) -> WindowStats:
        return WindowStats(self.resets_at, self.remaining)


class TokenBucketStorage(
    limits.storage.Storage,
    limits.storage.MovingWindowSupport,
    limits.storage.SlidingWindowCounterSupport,
):
    """What the strategies of `limits` ask of a storage, answered by token buckets."""

    STORAGE_SCHEME = [*_SCHEMES]  # noqa: RUF012

    def __init__(
        self,
        uri: str,
        key_prefix: str = "LIMITS",
        wrap_exceptions: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        of_limiter: dict[str, Any] = {"on_error": "raise", "timeout_ms": 1000} | options
        self.redis = redis.Redis.from_url(_uri(uri))
        self.limiter = Limiter(self.redis, Limit(0, 1), f"{key_prefix}:", **of_limiter)

    @property
    def base_exceptions(self) -> tuple[type[Exception], ...]:
        return _ERRORS

    def take(self, key: str, limit: Limit, amount: int) -> Decision:
        return self.limiter.take(key, amount, limit=limit)

    def look(self, key: str, limit: Limit) -> _Level:
        return _Level(limit, self.limiter.peek(key, limit=limit))

    def check(self) -> bool:
        try:
            return bool(self.limiter._client.ping())
        except ASKING_ERRORS:
            return False

    def reset(self) -> int:
        """Makes every bucket under the prefix full; how many were not."""
        keys = list(self.redis.scan_iter(f"{_escaped(self.limiter.prefix)}*", count=1000))
        return sum(int(self.redis.unlink(key)) for key in keys)

    def clear(self, key: str) -> None:
        name = self.limiter.prefix + key
        self.redis.unlink(name, f"{name}:script")

    # The fixed window's.

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """How much of the limit is used; more than all of it if that was denied, and not taken."""
        limit = _limit_of(key)
        return _count(limit, self.take(key, limit, amount), amount)

    def get(self, key: str) -> int:
        return self.look(key, _limit_of(key)).used

    def get_expiry(self, key: str) -> float:
        return self.look(key, _limit_of(key)).resets_at

    # The moving window's.

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return self.take(key, _limit(limit, expiry), amount).allowed

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        level = self.look(key, _limit(limit, expiry))
        return level.resets_at - expiry, level.used

    # The sliding window's.

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return self.acquire_entry(key, limit, expiry, amount)

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """No previous window: a bucket has but one level."""
        level = self.look(key, _limit_of(key))
        return 0, 0.0, level.used, max(level.resets_at - time.time(), 0)

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        self.clear(key)


class TokenBucketRateLimiter(limits.strategies.RateLimiter):
    """The strategy "token-bucket"."""

    storage: TokenBucketStorage

    def __init__(self, storage: limits.storage.StorageTypes) -> None:
        if not isinstance(storage, TokenBucketStorage):
            raise NotImplementedError(f"a {type(storage).__name__} holds no token buckets")
        super().__init__(storage)

    def hit(self, item: RateLimitItem, *identifiers: str, cost: int = 1) -> bool:
        return self.storage.take(item.key_for(*identifiers), _limit_in(item), cost).allowed

    def test(self, item: RateLimitItem, *identifiers: str, cost: int = 1) -> bool:
        return self.storage.look(item.key_for(*identifiers), _limit_in(item)).remaining >= cost

    def get_window_stats(self, item: RateLimitItem, *identifiers: str) -> WindowStats:
        return self.storage.look(item.key_for(*identifiers), _limit_in(item)).stats


class AsyncTokenBucketStorage(
    limits.aio.storage.Storage,
    limits.aio.storage.MovingWindowSupport,
    limits.aio.storage.SlidingWindowCounterSupport,
):
    """`TokenBucketStorage` for `limits.aio`."""

    STORAGE_SCHEME = [f"async+{scheme}" for scheme in _SCHEMES]  # noqa: RUF012

    def __init__(
        self,
        uri: str,
        key_prefix: str = "LIMITS",
        wrap_exceptions: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        # Which asyncio library the storages of `limits` use; here it is redis-py.
        options.pop("implementation", None)
        of_limiter: dict[str, Any] = {"on_error": "raise", "timeout_ms": 1000} | options
        self.redis = redis.asyncio.Redis.from_url(_uri(uri))
        prefix = f"{key_prefix}:"
        self.limiter = tokenbucket.asyncio.Limiter(self.redis, Limit(0, 1), prefix, **of_limiter)

    @property
    def base_exceptions(self) -> tuple[type[Exception], ...]:
        return _ERRORS

    async def take(self, key: str, limit: Limit, amount: int) -> Decision:
        return await self.limiter.take(key, amount, limit=limit)

    async def look(self, key: str, limit: Limit) -> _Level:
        return _Level(limit, await self.limiter.peek(key, limit=limit))

    async def check(self) -> bool:
        try:
            return bool(await self.limiter._client.ping())
        except ASKING_ERRORS:
            return False

    async def reset(self) -> int:
        """Makes every bucket under the prefix full; how many were not."""
        pattern = f"{_escaped(self.limiter.prefix)}*"
        keys = [key async for key in self.redis.scan_iter(pattern, count=1000)]
        return sum([int(await self.redis.unlink(key)) for key in keys])

    async def clear(self, key: str) -> None:
        name = self.limiter.prefix + key
        await self.redis.unlink(name, f"{name}:script")

    # The fixed window's.

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """How much of the limit is used; more than all of it if that was denied, and not taken."""
        limit = _limit_of(key)
        return _count(limit, await self.take(key, limit, amount), amount)

    async def get(self, key: str) -> int:
        return (await self.look(key, _limit_of(key))).used

    async def get_expiry(self, key: str) -> float:
        return (await self.look(key, _limit_of(key))).resets_at

    # The moving window's.

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return (await self.take(key, _limit(limit, expiry), amount)).allowed

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        level = await self.look(key, _limit(limit, expiry))
        return level.resets_at - expiry, level.used

    # The sliding window's.

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return await self.acquire_entry(key, limit, expiry, amount)

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """No previous window: a bucket has but one level."""
        level = await self.look(key, _limit_of(key))
        return 0, 0.0, level.used, max(level.resets_at - time.time(), 0)

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        await self.clear(key)


class AsyncTokenBucketRateLimiter(limits.aio.strategies.RateLimiter):
    """The strategy "token-bucket" of `limits.aio`."""

    storage: AsyncTokenBucketStorage

    def __init__(self, storage: limits.storage.StorageTypes) -> None:
        if not isinstance(storage, AsyncTokenBucketStorage):
            raise NotImplementedError(f"a {type(storage).__name__} holds no token buckets")
        super().__init__(storage)

    async def hit(self, item: RateLimitItem, *identifiers: str, cost: int = 1) -> bool:
        return (await self.storage.take(item.key_for(*identifiers), _limit_in(item), cost)).allowed

    async def test(self, item: RateLimitItem, *identifiers: str, cost: int = 1) -> bool:
        level = await self.storage.look(item.key_for(*identifiers), _limit_in(item))
        return level.remaining >= cost

    async def get_window_stats(self, item: RateLimitItem, *identifiers: str) -> WindowStats:
        return (await self.storage.look(item.key_for(*identifiers), _limit_in(item))).stats


def _limit_in(item: RateLimitItem) -> Limit:
    return _limit(item.amount, item.get_expiry())


def _count(limit: Limit, decision: Decision, amount: int) -> int:
    capacity = int(limit.capacity)
    if decision.degraded:
        return amount if decision.allowed else capacity + amount
    return capacity - decision.remaining + (0 if decision.allowed else amount)


def _escaped(prefix: str) -> str:
    """For a pattern of SCAN."""
    return re.sub(r"([\\\[\]*?])", r"\\\1", prefix)


_strategies: dict[str, Any] = limits.strategies.STRATEGIES
_strategies["token-bucket"] = TokenBucketRateLimiter
_async_strategies: dict[str, Any] = limits.aio.strategies.STRATEGIES
_async_strategies["token-bucket"] = AsyncTokenBucketRateLimiter
