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
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ConnectionLost
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
    (`"100/m"`, `"10/10s"`); 0 is a pool, whose tokens come back only from holds (`HoldLimiter`).
    Neither is stored in Redis: a new limit counts from the next call.

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
            # The default retries for seconds, and whatever it is: a call that got no reply may have
            # happened, and a take that happens twice is paid twice. `_ask` knows which may be.
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

    async def _ask(self, *command: Number, repeatable: bool = False) -> list | None:
        """The server's reply, or None when it could not decide in time.

        `repeatable` is a call that changes nothing the second time: it is sent once more, within
        the same deadline, if the connection broke before the reply.
        """
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                try:
                    reply = await self._redis.execute_command(*command)
                except ConnectionLost:
                    if not repeatable:
                        raise
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


class HoldLimiter(_Client):
    """Several limits that one piece of work holds together while it lasts.

    For work whose cost is known only afterwards, or that occupies something meanwhile (a limit with
    rate 0: so many at a time). A hold that nobody renews comes back by itself after `ttl_ms`, also
    when the program that made it was killed.

        hold = await limiter.hold("user:42", {"requests": 1, "tokens": 900, "inflight": 1})
        if hold.decision.allowed:
            async with hold:  # renews it, and settles it at the end
                ...
                hold.used = {"requests": 1, "tokens": 412}

    The caller's key is the hash tag of all its buckets, so that they share a slot in a cluster.
    """

    def __init__(
        self,
        redis: Redis,
        name: str,
        limits: Mapping[str, Limit],
        *,
        ttl_ms: int,
        on_error: OnError = "open",
        timeout_ms: int = 100,
    ) -> None:
        super().__init__(redis, on_error=on_error, timeout_ms=timeout_ms)
        self.name = name
        self.limits = dict(limits)
        self.ttl_ms = ttl_ms

    async def hold(self, key: str, amounts: Mapping[str, Number]) -> Hold:
        """Holds every amount or none; the hold's `decision` says which."""
        hold = Hold(self, key, amounts)
        await hold.renew()
        return hold

    def _bucket(self, key: str, which: str) -> str:
        return f"tb:{self.name}:{{{key}}}:{which}"


class Hold:
    """What `HoldLimiter.hold` took for one piece of work.

    Work that was let through because Redis was away has one too, which the first renewal after
    its return takes, if there is room, and the settlement charges in any case.
    """

    def __init__(self, limiter: HoldLimiter, key: str, amounts: Mapping[str, Number]) -> None:
        self._limiter = limiter
        self._key = key
        self._id = uuid.uuid4().hex
        self.amounts = dict(amounts)
        self.used: Mapping[str, Number] = {}
        """What the work used of each limit, for the end of `async with`; 0 of those left out."""
        self.decision = JointDecision(allowed=False)
        """The first decision, then that of the last renewal."""
        self.remaining: dict[str, int] = {}
        """What each limit had left at the last reply."""
        self._over = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._renewing = asyncio.create_task(self._renew_until_over())
        return self

    async def __aexit__(self, *_: object) -> None:
        # Waited for, not cancelled: a renewal on its way could arrive after the settlement.
        self._over.set()
        try:
            await self._renewing
        finally:
            await self.settle(self.used)

    async def renew(self) -> JointDecision:
        """Makes the hold last `ttl_ms` from now; one that has expired is taken anew, given room."""
        limiter = self._limiter
        reply = await limiter._ask(
            "TB.MHOLD",
            len(self.amounts),
            limiter.ttl_ms,
            self._id,
            *self._arguments(self.amounts),
            repeatable=True,
        )
        if reply is None:
            self.decision = JointDecision(allowed=limiter._allow_on_error, degraded=True)
        else:
            self.decision = self._read(reply)
        return self.decision

    async def settle(self, used: Mapping[str, Number]) -> None:
        """Ends the hold: what was not used comes back, what was used beyond it is charged.

        A hold that is not there (it expired, or Redis was away when the work began) is charged what
        was used. While Redis is away nothing is: the work is done, there is nobody to refuse.
        """
        used = {which: used.get(which, 0) for which in self.amounts}
        # Sent once: a second "not there" could mean that the first has settled.
        reply = await self._limiter._ask("TB.MSETTLE", len(used), self._id, *self._arguments(used))
        if reply is None:
            return
        settled = self._read(reply).each
        for which, amount in used.items():
            if not settled[which].allowed and float(amount) > 0:
                await self._charge(which, amount)

    async def _charge(self, which: str, amount: Number) -> None:
        """Into debt, if need be: the next call waits until it is paid off."""
        limit = self._limiter.limits[which]
        bucket = self._limiter._bucket(self._key, which)
        reply = await self._limiter._ask("TB.CHARGE", bucket, limit.capacity, limit.rate, amount)
        if reply:
            self.remaining[which] = _decision(reply).remaining

    async def _renew_until_over(self) -> None:
        """Three times a ttl, so that one renewal may fail and the next still comes in time."""
        while True:
            try:
                async with asyncio.timeout(self._limiter.ttl_ms / 3000):
                    await self._over.wait()
                return
            except TimeoutError:
                await self.renew()

    def _arguments(self, amounts: Mapping[str, Number]) -> Iterator[Number]:
        for which, amount in amounts.items():
            limit = self._limiter.limits[which]
            yield from (self._limiter._bucket(self._key, which), limit.capacity, limit.rate, amount)

    def _read(self, reply: list) -> JointDecision:
        """The decision in a reply of several buckets; keeps what it says is left of each."""
        *binding, each = reply
        decisions = dict(zip(self.amounts, map(_decision, each), strict=True))
        self.remaining = {which: one.remaining for which, one in decisions.items()}
        allowed, remaining, retry_after_ms, reset_after_ms = binding
        return JointDecision(
            bool(allowed), remaining, retry_after_ms, reset_after_ms, each=decisions
        )


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
