"""The `limits` library on token buckets, and with it Flask-Limiter and slowapi.

Behind one of our URIs every strategy decides by bucket: "10 per minute" is a bucket of 10 that refills
with 10 a minute. `docs/flask-limiter.md` has the URIs and their options.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

import limits.aio.storage
import limits.storage
import redis.exceptions
from limits.limits import TIME_TYPES

from . import asyncio as _asyncio
from .api import threads as _threads
from .api.operations import at_once, done
from .values.decision import Decision
from .values.errors import TokenBucketError
from .values.limit import Limit
from .values.options import read_numbers

# Whose clients are ours: each names a storage of the library.
_SCHEMES = ["tokenbucket", "tokenbuckets", "tokenbucket+unix", "tokenbucket+cluster", "tokenbucket+sentinel"]
_ERRORS: tuple[type[Exception], ...] = (TokenBucketError, redis.exceptions.RedisError)
# The library's own storages use another prefix, and other types of keys.
_PREFIX = "tb:limits"
_OF_SERVER = {"timeout_ms", "retry_every_ms", "by", "log"}
_OF_LIMITER = {"on_error", "remember_denials", "batch", "on_decision"}

# How `RateLimitItem.key_for` ends: amount, multiples, granularity. Two of the library's strategies
# tell a storage nothing else about the limit.
_LIMIT_IN_KEY = re.compile(rf".*/(\d+)/(\d+)/({'|'.join(TIME_TYPES)})", re.DOTALL)


def _limit_of(key: str) -> Limit:
    found = _LIMIT_IN_KEY.fullmatch(key)
    if found is None:
        raise ValueError(f"{key!r} does not end in a limit, like 10/1/minute")
    amount, multiples, granularity = found.groups()
    return Limit._of_window(int(amount), int(multiples) * TIME_TYPES[granularity].seconds)


def _client(uri: str, options: dict[str, Any]) -> Any:
    """The client of redis-py that the library's own storage makes, with its URI and its options."""
    scheme, _, rest = uri.partition("://")
    uri = f"{scheme.replace('tokenbuckets', 'rediss').replace('tokenbucket', 'redis')}://{rest}"
    if uri.startswith("async+"):
        made: Any = limits.storage.storage_from_string(uri, implementation="redispy", **options)
        return made.bridge.storage
    made = limits.storage.storage_from_string(uri, **options)
    return made.storage


_denied: ContextVar[tuple[str, float] | None] = ContextVar("tokenbucket_denied", default=None)
"""The key of the last denial in this thread or task, and when the same cost would pass.

A strategy is asked for the reset time without the cost that was denied.
"""


def _of_threads(method: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
    @wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        return at_once(method(*arguments, **options))

    return call


class BucketStorage:
    """What the strategies of `limits` ask of a storage, answered by token buckets."""

    is_asynchronous: bool
    _kinds: Any
    """The package for threads, or for asyncio."""

    def __init_subclass__(cls) -> None:
        for name, method in vars(BucketStorage).items():
            if not (cls.is_asynchronous or name.startswith("_")) and iscoroutinefunction(method):
                setattr(cls, name, _of_threads(method))
        super().__init_subclass__()

    def __init__(
        self, uri: str, key_prefix: str = _PREFIX, wrap_exceptions: bool = False, **options: Any
    ) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)  # type: ignore[call-arg]
        # Which asyncio library the storages of `limits` use; here it is redis-py.
        options.pop("implementation", None)
        options = {"timeout_ms": 1000} | read_numbers(options)
        of_server = {name: options.pop(name) for name in _OF_SERVER & options.keys()}
        of_limiter = {name: options.pop(name) for name in _OF_LIMITER & options.keys()}
        self.redis = _client(uri, options)
        self.server = self._kinds.Server(self.redis, **of_server)
        self.limiter = self._kinds.Limiter(self.server, Limit(0, 1), f"{key_prefix}:", **of_limiter)

    @property
    def base_exceptions(self) -> tuple[type[Exception], ...]:
        return _ERRORS

    async def _take(self, key: str, limit: Limit, amount: int) -> Decision:
        decision: Decision = await done(self.limiter.take(key, amount, limit=limit))
        if decision.allowed:
            _denied.set(None)
        else:
            # No wait helps a cost above the capacity: Retry-After is a whole period.
            wait_s = decision.retry_after_ms / 1000 if decision.retry_after_ms >= 0 else limit.window_s or 1
            _denied.set((key, time.time() + max(wait_s, 1)))
        return decision

    async def _look(self, key: str, limit: Limit) -> tuple[int, float]:
        """Returns how much of the limit is used, and when the next call passes, or a used bucket is full."""
        look = await done(self.limiter.peek(key, 0, limit=limit))
        is_open = look.degraded and look.allowed and look.reset_after_ms == 0
        capacity, now = int(limit.capacity), time.time()
        used = 0 if is_open else capacity - min(max(look.remaining, 0), capacity)
        denied = _denied.get()
        if denied is not None and denied[0] == key and denied[1] > now:
            return used, denied[1]
        wait_ms = look.reset_after_ms
        if look.remaining <= 0:
            wait_ms = (await done(self.limiter.peek(key, limit=limit))).retry_after_ms
        return used, now + max(wait_ms, 1000 if used == capacity else 0) / 1000

    async def check(self) -> bool:
        try:
            return not (await done(self.limiter.peek("check", 0))).degraded
        except TokenBucketError:
            return False

    async def reset(self) -> int:
        """Makes every bucket under the prefix full; how many were not."""
        prefix = re.sub(r"([\\\[\]*?])", r"\\\1", self.limiter.prefix)
        found = self.redis.scan_iter(f"{prefix}*", count=1000)
        keys = [key async for key in found] if self.is_asynchronous else list(found)
        return sum([int(await done(self.redis.unlink(key))) for key in keys])

    async def clear(self, key: str) -> None:
        await done(self.limiter.reset(key))

    # The fixed window's.

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """How much of the limit is used; more than all of it if that was denied, and not taken."""
        limit = _limit_of(key)
        decision = await self._take(key, limit, amount)
        return int(limit.capacity) - decision.remaining + (0 if decision.allowed else amount)

    async def get(self, key: str) -> int:
        return (await self._look(key, _limit_of(key)))[0]

    async def get_expiry(self, key: str) -> float:
        return (await self._look(key, _limit_of(key)))[1]

    # The moving window's.

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return (await self._take(key, Limit._of_window(limit, expiry), amount)).allowed

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        used, resets_at = await self._look(key, Limit._of_window(limit, expiry))
        return resets_at - expiry, used

    # The sliding window's.

    acquire_sliding_window_entry = acquire_entry

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """No previous window: a bucket has but one level."""
        used, resets_at = await self._look(key, _limit_of(key))
        return 0, 0.0, used, max(resets_at - time.time(), 0)

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        await done(self.limiter.reset(key))


class TokenBucketStorage(  # type: ignore[misc] # its methods are those of threads
    BucketStorage,
    limits.storage.Storage,
    limits.storage.MovingWindowSupport,
    limits.storage.SlidingWindowCounterSupport,
):
    __doc__ = BucketStorage.__doc__

    STORAGE_SCHEME = _SCHEMES
    is_asynchronous = False
    _kinds = _threads


class AsyncTokenBucketStorage(
    BucketStorage,
    limits.aio.storage.Storage,
    limits.aio.storage.MovingWindowSupport,
    limits.aio.storage.SlidingWindowCounterSupport,
):
    """`TokenBucketStorage` for `limits.aio`."""

    STORAGE_SCHEME = [f"async+{scheme}" for scheme in _SCHEMES]  # noqa: RUF012
    is_asynchronous = True
    _kinds = _asyncio
