"""Limiters of one limit, for threads and asyncio alike."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..local.fork import begins_anew_after_fork
from ..transport.call import Call, Steps
from ..transport.commands import Command
from ..values.constants import CONNECT_WITHIN_S
from ..values.decision import Decision
from ..values.errors import BadArgument, TokenBucketError, Unanswered
from ..values.limit import Limit, Number, exactly
from .batches import Batch, Batches
from .denials import Denials
from .operations import (
    Backend,
    DecisionT,
    HoldT,
    OnDecision,
    OnError,
    Part,
    ServerT,
    decision_of,
    done,
    in_turn,
)

# How often a call asks that another fetches for, within the timeout.
_TRIES_WHILE_FETCHING = 10


class BaseLimiter(Backend[ServerT, DecisionT, HoldT]):
    """One limit for many names; each name has a bucket of its own, under `prefix` + name.

    `server` is a client of redis-py or valkey-py, a URL, or a `Server` that several limiters share.

    `on_error` decides while the server is away: "local" enforces the same limit in the memory of this
    process, "open" allows every call, "closed" denies it, "raise" raises ServerAway. A mistake of the
    caller raises BadArgument under every policy.

    `remember_denials` is the number of denied names that this process refuses by itself until their
    time has come. `batch` is the number of tokens to fetch at a time and spend here. `on_decision` is
    called with each name, limit, decision and duration in seconds.

    `shadow` lets every call pass, at once. The server decides and counts as always, and a decision that
    was a denial is `shadowed`.

    The `limit` of a call is for that call alone.

    >>> from tokenbucket import Limit, Limiter
    >>> from tokenbucket.testing import FakeServer
    >>> limiter = Limiter(FakeServer(), Limit(10, "5/s"))  # or "redis://localhost:6379", or redis.Redis()
    >>> if limiter.take("user:42", 3):
    ...     print("go on")
    go on
    >>> limiter.take("user:42", 8).retry_after_ms
    200
    >>> limiter.peek("user:42", 0).remaining
    7
    >>> limiter.take_up_to("user:42", 25).granted
    7
    >>> limiter.reserve("user:42", 2, max_wait_ms=1000).retry_after_ms
    400
    >>> limiter.wait("user:42", max_wait_ms=1000).allowed  # sleeps until it is its turn
    True
    >>> limiter.charge("user:42", 3).remaining
    -3
    >>> limiter.give("user:42", 5).remaining
    2
    >>> limiter.headers(limiter.take("user:42"))["RateLimit"]
    '"default";r=1;t=2'
    >>> limiter.reset("user:42").remaining
    10
    >>> jobs = Limiter(FakeServer(), Limit(3, 0))  # a semaphore: at most three at a time
    >>> with jobs.hold("import", 1) as hold:
    ...     hold.decision.remaining
    2
    """

    _finish: Callable[[Coroutine[Any, Any, Decision]], DecisionT]
    """Runs a coroutine, as threads and asyncio do in ways of their own."""

    def __init__(
        self,
        server: ServerT | str,
        limit: Limit,
        prefix: str = "tb:",
        *,
        on_error: OnError = "local",
        remember_denials: int = 0,
        batch: int = 0,
        on_decision: OnDecision | None = None,
        shadow: bool = False,
    ) -> None:
        for name, count in (("remember_denials", remember_denials), ("batch", batch)):
            if not isinstance(count, int) or count < 0:
                raise BadArgument(f"{name}: {count!r} is not a whole number of at least 0")
        super().__init__(server, prefix, on_error, on_decision, shadow)
        self.limit = _checked(limit)
        self._remembers = remember_denials
        self._batch = batch if batch > 1 else 0
        self._begin_anew()
        begins_anew_after_fork(self)

    def _begin_anew(self) -> None:
        self._denials = Denials(self._remembers, self._clock)
        self._batches = Batches(self._batch, self._clock)

    def take(
        self,
        name: str,
        cost: Number = 1,
        *,
        limit: Limit | None = None,
        max_wait_ms: float = 0,
        share: str | None = None,
        weight: Number = 1,
    ) -> DecisionT:
        """Takes `cost` tokens if the bucket holds them, else nothing.

        `max_wait_ms` is how long the call waits its turn in the server, at most 30 days.

        `share` names the tenant of the call, in 1 to 128 bytes. Tenants that wait for one bucket get
        tokens in proportion to `weight`, however many calls each has waiting. A weight is 0.001 to 1000,
        in millionths. Calls without a share are one tenant of weight 1. Raises BadArgument for other
        values.
        """
        part = self._part(name, limit, cost)
        if max_wait_ms or share is not None or weight != 1:
            # Past batches and remembered denials: the server alone knows which call is next.
            call = in_turn(max_wait_ms, share, weight)
            return self._run(self._decide([part], ("TB.TAKE", *part.words), call))
        # A batch has whole tokens, and serves no more than it has when it is new.
        if type(cost) is int and 0 < cost <= self._batch and cost <= part.limit._capacity:
            return self._run(self._take_batched(part))
        return self._run(self._take(part))

    def peek(self, name: str, cost: Number = 1, *, limit: Limit | None = None) -> DecisionT:
        """Returns what `take` would decide, and takes nothing; with cost 0, what the bucket has."""
        return self._run(self._simple("TB.PEEK", name, limit, cost))

    def take_up_to(self, name: str, most: Number, *, limit: Limit | None = None) -> DecisionT:
        """Takes as many whole tokens as the bucket has, at most `most`: see `granted`."""
        whole = exactly(most)
        if not whole or whole % 1:
            raise BadArgument(f"most: {most!r} is not a whole number from 1 to 1e12")
        return self._run(self._simple("TB.TAKEUPTO", name, limit, int(whole)))

    def reserve(
        self, name: str, cost: Number = 1, *, max_wait_ms: int, limit: Limit | None = None
    ) -> DecisionT:
        """Books a place in the queue: sleep `retry_after_ms`, then act.

        Denied, without taking a token, if the wait would exceed `max_wait_ms`.
        """
        return self._run(self._reserve(name, limit, cost, max_wait_ms))

    def wait(self, name: str, cost: Number = 1, *, max_wait_ms: int, limit: Limit | None = None) -> DecisionT:
        """Reserves, and sleeps until the call's turn; an interrupted wait gives its tokens back."""
        return self._finish(self._wait(name, cost, max_wait_ms, limit))

    def charge(self, name: str, amount: Number, *, limit: Limit | None = None) -> DecisionT:
        """Takes `amount` unconditionally, into debt if needed."""
        return self._run_once(self._simple("TB.CHARGE", name, limit, amount, once=True))

    def give(self, name: str, amount: Number, *, limit: Limit | None = None) -> DecisionT:
        """Puts `amount` back, at most up to the capacity."""
        return self._run_once(self._give(self._part(name, limit, amount)))

    def reset(self, name: str, *, limit: Limit | None = None) -> DecisionT:
        """Makes the bucket full, and forgets its holds."""
        return self._run_once(self._reset_one(self._part(name, limit, 0)))

    def hold(
        self,
        name: str,
        amount: Number,
        *,
        ttl_ms: int = 30_000,
        limit: Limit | None = None,
        max_wait_ms: float = 0,
        share: str | None = None,
        weight: Number = 1,
    ) -> HoldT:
        """Takes `amount` until the end of `with` (`async with`).

        If its process dies, the tokens come back when `ttl_ms`, 1 to 30 days, is over. It begins with the
        grant. `max_wait_ms`, `share` and `weight` are those of `take`.
        """
        part = self._part(name, limit, amount)
        return self._of_hold(self, [part], ttl_ms, in_turn(max_wait_ms, share, weight))

    def headers(self, decision: Decision, *, limit: Limit | None = None) -> dict[str, str]:
        """Returns RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers, and Retry-After.

        Retry-After is missing where waiting does not help, and a degraded decision has no RateLimit.
        """
        return decision._headers({"default": limit or self.limit})

    # Their steps.

    def _part(self, name: str, limit: Limit | None, amount: Number) -> Part:
        if not isinstance(name, str):
            raise BadArgument(f"name: {name!r} is not a str")
        limit = _checked(self.limit if limit is None else limit)
        return Part("", self.prefix + name, name, limit, amount)

    def _simple(
        self, operation: str, name: str, limit: Limit | None, amount: Number, *more: int, once: bool = False
    ) -> Steps[Decision]:
        part = self._part(name, limit, amount)
        return self._decide([part], (operation, *part.words, *map(str, more)), Call(once))

    def _take(self, part: Part) -> Steps[Decision]:
        began = self._clock.monotonic()
        return self._reported([part], (yield from self._take_quietly(part)), began)

    def _take_quietly(self, part: Part, pause_s: float = 0.0) -> Steps[Decision]:
        began, decision = self._clock.monotonic(), self._denials.recall(part)
        if decision is None:
            decision = yield from self._ask([part], ("TB.TAKE", *part.words), Call(pause_s=pause_s))
            self._denials.remember(part, decision, began)
        return decision

    def _reserve(self, name: str, limit: Limit | None, cost: Number, max_wait_ms: int) -> Steps[Decision]:
        decision = yield from self._simple("TB.RESERVE", name, limit, cost, max_wait_ms)
        return replace(decision, retry_after_ms=0) if self._shadow else decision

    async def _wait(self, name: str, cost: Number, max_wait_ms: int, limit: Limit | None) -> Decision:
        reserved: Any = self.reserve(name, cost, max_wait_ms=max_wait_ms, limit=limit)
        decision: Decision = await done(reserved)
        if decision.allowed and decision.retry_after_ms:
            try:
                await done(self._sleep(decision.retry_after_ms / 1000))
            except BaseException:
                await done(self._run_once(self._give_up(decision, self._part(name, limit, cost))))
                raise
        return decision

    def _came_back(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self._denials.forget(part)

    def _give(self, part: Part) -> Steps[Decision]:
        try:
            return (yield from self._decide([part], ("TB.GIVE", *part.words), Call(once=True)))
        finally:
            self._came_back([part])

    def _reset_one(self, part: Part) -> Steps[Decision]:
        try:
            return (yield from self._reset([part]))
        finally:
            self._came_back([part])
            self._batches.forget(part.name)

    def _give_up(self, decision: Decision, part: Part) -> Steps[None]:
        """Gives back what a wait has reserved, and raises nothing: its caller hears why it has ended."""
        if decision.degraded:
            self.server._local.execute("TB.GIVE", *part.words)
        else:
            with suppress(TokenBucketError):
                yield from self._give(part)

    # Batches.

    def _take_batched(self, part: Part) -> Steps[Decision]:
        began, batches = self._clock.monotonic(), self._batches
        batch, decision = batches.take(part)
        if decision is None:
            decision = self._denials.recall(part._replace(amount=max(int(part.amount) - batch.tokens, 1)))
        if decision is None:
            # No call takes longer; if this one is interrupted, others fetch then.
            within_s = 2 * CONNECT_WITHIN_S + 4 * self.server.timeout_ms / 1000
            if until := batches.begin_fetch(batch, began, within_s):
                decision = yield from self._fetch(batch, part, until)
            else:
                decision = yield from self._take_meanwhile(batch, part)
        if batches.left:  # by those that made room
            yield from self._give_back()
        return self._reported([part], decision, began)

    def _take_meanwhile(self, batch: Batch, part: Part) -> Steps[Decision]:
        """Takes for this call alone while another fetches, which may bring what the bucket lacks."""
        pause_s = 0.0
        for _ in range(_TRIES_WHILE_FETCHING):
            decision = yield from self._take_quietly(part, pause_s)
            is_fetching = self._clock.monotonic() < batch.fetched_until
            if not decision.allowed and not decision.degraded:
                decision = self._batches.take(part)[1] or decision
            if decision.allowed or not is_fetching:
                break
            pause_s = self.server.timeout_ms / 1000 / _TRIES_WHILE_FETCHING
        return decision

    def _fetch(self, batch: Batch, part: Part, until: float) -> Steps[Decision]:
        batches, asked_at, cost = self._batches, self._clock.monotonic(), int(part.amount)
        take = ("TB.TAKEUPTO", *part._replace(amount=batches.size).words)
        short = None
        try:
            # Another fetch may have just ended.
            if (decision := batches.take(part)[1]) is not None:
                return decision
            taken = yield from self.server._ask(take)
            with batches.lock:
                batch.add(taken[0], taken[3], asked_at)
                batch.reply = decision_of([part], taken)
                decision, lacking = batch.spend(cost), part._replace(amount=cost - batch.tokens)
            if decision is None and taken[0] < batches.size:  # else others have spent it
                look = yield from self.server._ask(("TB.PEEK", *lacking.words))
                short = decision_of([part], look)
        except Unanswered as unanswered:
            return self._degraded([part], ("TB.TAKE", *part.words), unanswered, Call())
        finally:
            if batch.fetched_until == until:
                batch.fetched_until = 0
        if decision is not None:
            return decision
        if short is None or short.allowed:
            return (yield from self._take_quietly(part))
        self._denials.remember(lacking, short, asked_at)
        return replace(short, remaining=short.remaining + cost - int(lacking.amount))

    def _give_back(self) -> Steps[None]:
        """Gives tokens of batches back, all at once; those that no server takes are lost."""
        commands: list[Command] = []
        with suppress(IndexError):
            while True:
                commands.append(("TB.GIVE", *self._batches.left.popleft().words))
        yield from self.server._ask_each(commands)


def _checked(limit: Limit) -> Limit:
    if not isinstance(limit, Limit):
        raise BadArgument(f"limit: {limit!r} is not a Limit")
    return limit
