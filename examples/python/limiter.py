"""Token bucket limits for asyncio, on redis-py and the tokenbucket module.

    redis = connect("redis://127.0.0.1:6379/0")
    limiter = Limiter(redis, "search", Limit(capacity=10, rate="5/s"))
    if await limiter.is_allowed("user:42"):
        ...

Copy this file; it needs nothing but redis-py.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import DataError, RedisError, ResponseError
from redis.maint_notifications import MaintNotificationsConfig

log = logging.getLogger("limiter")

OnError = Literal["open", "closed"]
Number = int | float | str

_NUMBER = re.compile(r"\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_PERIOD = re.compile(r"(.*?)(ms|s|m|h|d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Limit:
    """How many tokens a bucket holds, and how fast they come back.

    `capacity` is at least 0; `rate` is tokens per second (`5`, `0.25`) or a count per period
    (`"100/m"`, `"10/10s"`). Neither is stored in Redis: a new limit counts from the next call.

    Raises ValueError for what cannot be a limit. The server alone knows every bound, see
    `check_limit`.
    """

    capacity: Number
    rate: Number

    def __post_init__(self) -> None:
        if not _NUMBER.fullmatch(str(self.capacity)):
            raise ValueError(f"capacity: {self.capacity!r} is not a number of at least 0")
        count, slash, period = str(self.rate).partition("/")
        unit = _PERIOD.fullmatch(period)
        good_period = not slash or (unit and (not unit[1] or _NUMBER.fullmatch(unit[1])))
        if not _NUMBER.fullmatch(count) or not good_period:
            raise ValueError(f"rate: {self.rate!r} is neither tokens per second nor like '100/m'")

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Reads `"20 10/s"`: capacity and rate, as TB.TAKE takes them."""
        words = text.split()
        if len(words) != 2:
            raise ValueError(f"{text!r} is not a capacity and a rate, like '20 10/s'")
        return cls(*words)


@dataclass(frozen=True, slots=True)
class Decision:
    """What the server decided, or the policy when the server could not be asked (`degraded`)."""

    allowed: bool
    remaining: int = 0
    retry_after_ms: int = 0
    """0 when allowed; -1 when waiting does not help, because the cost is above the capacity."""
    reset_after_ms: int = 0
    degraded: bool = False

    @property
    def retry_after_s(self) -> int:
        """For the Retry-After header: rounded up, so that nobody comes back too early."""
        return -(-self.retry_after_ms // 1000)


@dataclass(frozen=True, slots=True)
class JointDecision(Decision):
    """The decision over several limits; `each` is empty when degraded."""

    each: Mapping[str, Decision] = field(default_factory=dict)


def connect(url: str, *, max_connections: int = 50) -> Redis:
    """A client that suits a limiter: it answers now or fails now."""
    return Redis.from_pool(
        BlockingConnectionPool.from_url(
            url,
            # The plain pool raises when all connections are in use. A limiter that fails open would
            # then let a flood through because it is a flood; this one queues, within the timeout.
            max_connections=max_connections,
            timeout=None,
            # The default retries for seconds. Nothing is sent twice here: a call that got no reply
            # may have happened, and a TB.GIVE that happens twice is tokens out of nothing.
            retry=Retry(NoBackoff(), 0),
            # Each call has a deadline of its own. The one of redis-py can swallow it: it is made of
            # asyncio.wait_for, which before Python 3.12 may miss that it was cancelled.
            socket_timeout=None,
            # With these the pool hands out connections that died with the old server, and each
            # would fail once; without them it looks first.
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
    )


class _Client:
    """Asks Redis within a deadline, and knows what to say when there is no answer."""

    def __init__(self, redis: Redis, *, on_error: OnError, timeout_ms: int) -> None:
        if on_error not in ("open", "closed"):
            raise ValueError(f"on_error: {on_error!r} is neither 'open' nor 'closed'")
        if timeout_ms <= 0:
            raise ValueError(f"timeout_ms: {timeout_ms!r} is not above 0")
        self._redis = redis
        self._on_error = on_error
        self._timeout_ms = timeout_ms
        self._away = False

    @property
    def _allow_on_error(self) -> bool:
        return self._on_error == "open"

    async def _ask(self, *command: Number) -> list | None:
        """The server's reply, or None when it could not decide in time."""
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                reply = await self._redis.execute_command(*command)
        except (RedisError, OSError, TimeoutError) as error:
            if _is_callers_mistake(error):
                raise
            # Logged when it begins and when it ends, not for every request in between.
            if not self._away:
                log.warning("cannot ask Redis, failing %s: %r", self._on_error, error)
            self._away = True
            return None
        if self._away:
            log.warning("Redis is back, limiting again")
            self._away = False
        return reply


def _is_callers_mistake(error: Exception) -> bool:
    """Whether a call was wrong in itself; such a call must not pass because it failed."""
    if isinstance(error, DataError):
        return True
    if not isinstance(error, ResponseError):
        return False
    text = str(error)
    if text.startswith("unknown command"):
        return False  # a server that came back without the module: its state, not our call
    return error.status_code == "ERR" or text.startswith("WRONGTYPE")


class Limiter(_Client):
    """One limit for many callers; each key has a bucket of its own.

    `on_error` decides when Redis does not answer within `timeout_ms`: `"open"` lets the caller
    through, `"closed"` does not. A call that the server refuses as wrong raises ResponseError
    under either policy.
    """

    def __init__(
        self,
        redis: Redis,
        name: str,
        limit: Limit,
        *,
        on_error: OnError = "open",
        timeout_ms: int = 100,
    ) -> None:
        super().__init__(redis, on_error=on_error, timeout_ms=timeout_ms)
        self.name = name
        self.limit = limit

    async def is_allowed(self, key: str, tokens: Number = 1) -> bool:
        return (await self.take(key, tokens)).allowed

    async def take(self, key: str, tokens: Number = 1) -> Decision:
        """Takes `tokens` if the bucket holds them, else nothing."""
        reply = await self._ask(
            "TB.TAKE", self._bucket(key), self.limit.capacity, self.limit.rate, tokens
        )
        if reply is None:
            return Decision(allowed=self._allow_on_error, degraded=True)
        return _decision(reply)

    def _bucket(self, key: str) -> str:
        return f"tb:{self.name}:{{{key}}}"


class MultiLimiter(_Client):
    """Several limits that are decided together: a denied call takes from none of them.

    The caller's key is the hash tag of all its buckets, so that they share a slot in a cluster.
    """

    def __init__(
        self,
        redis: Redis,
        name: str,
        limits: Mapping[str, Limit],
        *,
        on_error: OnError = "open",
        timeout_ms: int = 100,
    ) -> None:
        super().__init__(redis, on_error=on_error, timeout_ms=timeout_ms)
        self.name = name
        self.limits = dict(limits)

    async def take(self, key: str, costs: Mapping[str, Number]) -> JointDecision:
        """Takes every cost or none, e.g. `take("user:42", {"requests": 1, "tokens": 900})`."""
        command: list[Number] = ["TB.MTAKE", len(costs)]
        for which, cost in costs.items():
            limit = self.limits[which]
            command += [self._bucket(key, which), limit.capacity, limit.rate, cost]
        reply = await self._ask(*command)
        if reply is None:
            return JointDecision(allowed=self._allow_on_error, degraded=True)
        *binding, each = reply
        decisions = {which: _decision(one) for which, one in zip(costs, each, strict=True)}
        allowed, remaining, retry_after_ms, reset_after_ms = binding
        return JointDecision(
            bool(allowed), remaining, retry_after_ms, reset_after_ms, each=decisions
        )

    async def settle(self, key: str, which: str, *, taken: int, spent: int) -> Decision | None:
        """Corrects what was taken to what was really spent.

        Too little taken is charged, into debt if need be: the next call waits until it is paid off.
        Too much is given back. None when there was nothing to correct or Redis was away; the work
        is done by then, so there is nobody to refuse.
        """
        limit = self.limits[which]
        if spent == taken:
            return None
        verb, amount = ("TB.CHARGE", spent - taken) if spent > taken else ("TB.GIVE", taken - spent)
        reply = await self._ask(verb, self._bucket(key, which), limit.capacity, limit.rate, amount)
        return _decision(reply) if reply else None

    def _bucket(self, key: str, which: str) -> str:
        return f"tb:{self.name}:{which}:{{{key}}}"


async def check_limit(redis: Redis, limit: Limit, *, timeout_ms: int = 1000) -> None:
    """Has the server look at a limit; changes nothing. For the start of a program.

    Raises ResponseError for a limit out of bounds or a server without the module. Only warns when
    Redis is away: that is what `on_error` is for.
    """
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            # Of cost 0: TB.PEEK would not mind a rate of 0, which is for pools.
            await redis.execute_command("TB.TAKE", "tb:check", limit.capacity, limit.rate, 0)
    except (RedisError, OSError, TimeoutError) as error:
        if isinstance(error, ResponseError) and error.status_code == "ERR":
            raise
        log.warning("cannot check the limits, Redis is away: %r", error)


def _decision(reply: list[int]) -> Decision:
    allowed, remaining, retry_after_ms, reset_after_ms = reply
    return Decision(bool(allowed), remaining, retry_after_ms, reset_after_ms)
