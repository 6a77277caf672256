"""Limiters of one limit, for threads and asyncio alike."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Generic, TypeVar

from ..local.fork import begins_anew_after_fork
from ..transport.call import Steps, Terms
from ..transport.commands import Command, command
from ..transport.driver import CONNECT_WITHIN_S
from ..values.decision import Decision
from ..values.errors import BadArgument, TokenBucketError, Unanswered
from ..values.limit import Limit, Number, exactly
from .batches import Batch, Batches
from .denials import Denials
from .operations import Backend, OnDecision, OnError, Part, done, in_turn

# How often a call asks that another fetches for, within the timeout.
_TRIES_WHILE_FETCHING = 10

ServerT = TypeVar("ServerT")
"""A server or a client."""
DecisionT = TypeVar("DecisionT")
"""A decision, or with asyncio what is awaited for one."""
HoldT = TypeVar("HoldT")
"""A hold."""


class BaseLimiter(Backend, Generic[ServerT, DecisionT, HoldT]):
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
    >>> if limiter.take("user:42"):
    ...     print("go on")
    go on
    """

    # What threads and asyncio do in ways of their own.
    _of_hold: Any
    _run: Callable[[Steps[Decision]], DecisionT]
    _run_once: Callable[[Steps[Any]], DecisionT]
    """Runs them to their end, even if the call is cancelled."""
    _finish: Callable[[Coroutine[Any, Any, Decision]], DecisionT]

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
        if not isinstance(limit, Limit):
            raise BadArgument(f"limit: {limit!r} is not a Limit")
        if remember_denials < 0:
            raise BadArgument(f"remember_denials: {remember_denials!r} is less than 0")
        if batch < 0:
            raise BadArgument(f"batch: {batch!r} is less than 0")
        super().__init__(server, prefix, on_error, on_decision, shadow)
        self.limit = limit
        self._remembers = remember_denials
        self._batch = batch if batch > 1 else 0
        self._begin_anew()
        begins_anew_after_fork(self)

    def _begin_anew(self) -> None:
        self._denials = Denials(self._remembers, self._clock)
        self._batches = Batches(self._batch, self._clock)

    # The calls.

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

        >>> limiter = Limiter(FakeServer(), Limit(10, "5/s"))
        >>> limiter.take("alice", 8).allowed
        True
        >>> limiter.take("alice", 8).retry_after_ms
        1200
        """
        if max_wait_ms or share is not None or weight != 1:
            return self._run(self._take_in_turn(name, cost, limit, (max_wait_ms, share, weight)))
        limit = limit or self.limit
        # A batch has whole tokens, and serves no more than it has when it is new.
        if isinstance(cost, int) and 0 < cost <= self._batch and cost <= limit._capacity:
            return self._run(self._take_batched(name, int(cost), limit))
        return self._run(self._take(name, cost, limit))

    def peek(self, name: str, cost: Number = 1, *, limit: Limit | None = None) -> DecisionT:
        """Returns what `take` would decide, and takes nothing; with cost 0, what the bucket has.

        >>> Limiter(FakeServer(), Limit(10, "5/s")).peek("alice", 0).remaining
        10
        """
        return self._run(self._simple("TB.PEEK", name, limit, cost))

    def take_up_to(self, name: str, most: Number, *, limit: Limit | None = None) -> DecisionT:
        """Takes as many whole tokens as the bucket has, at most `most`: see `granted`.

        >>> Limiter(FakeServer(), Limit(10, "5/s")).take_up_to("alice", 25).granted
        10
        """
        return self._run(self._take_up_to(name, most, limit))

    def reserve(
        self, name: str, cost: Number = 1, *, max_wait_ms: int, limit: Limit | None = None
    ) -> DecisionT:
        """Books a place in the queue: sleep `retry_after_ms`, then act.

        Denied, without taking a token, if the wait would exceed `max_wait_ms`.

        >>> limiter = Limiter(FakeServer(), Limit(1, "1/s"))
        >>> [limiter.reserve("alice", max_wait_ms=1500).retry_after_ms for _ in range(2)]
        [0, 1000]
        >>> limiter.reserve("alice", max_wait_ms=1500).allowed
        False
        """
        return self._run(self._reserve(name, limit, cost, max_wait_ms))

    def wait(self, name: str, cost: Number = 1, *, max_wait_ms: int, limit: Limit | None = None) -> DecisionT:
        """Reserves, and sleeps until the call's turn; an interrupted wait gives its tokens back.

        >>> limiter = Limiter(FakeServer(), Limit(1, "1/s"))
        >>> [limiter.wait("alice", max_wait_ms=1000).allowed for _ in range(2)]
        [True, True]
        """
        return self._finish(self._wait(name, cost, max_wait_ms, limit))

    def charge(self, name: str, amount: Number, *, limit: Limit | None = None) -> DecisionT:
        """Takes `amount` unconditionally, into debt if needed.

        >>> Limiter(FakeServer(), Limit(10, "5/s")).charge("alice", 12).remaining
        -2
        """
        return self._run_once(self._simple("TB.CHARGE", name, limit, amount, once=True))

    def give(self, name: str, amount: Number, *, limit: Limit | None = None) -> DecisionT:
        """Puts `amount` back, at most up to the capacity.

        >>> limiter = Limiter(FakeServer(), Limit(10, "5/s"))
        >>> limiter.take("alice", 8).remaining
        2
        >>> limiter.give("alice", 3).remaining
        5
        """
        return self._run_once(self._give(name, amount, limit))

    def reset(self, name: str, *, limit: Limit | None = None) -> DecisionT:
        """Makes the bucket full, and forgets its holds.

        >>> limiter = Limiter(FakeServer(), Limit(10, "5/s"))
        >>> limiter.take("alice", 8).remaining
        2
        >>> limiter.reset("alice").remaining
        10
        """
        return self._run_once(self._reset_name(name, limit))

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

        >>> jobs = Limiter(FakeServer(), Limit(3, 0))  # a semaphore: at most three at a time
        >>> with jobs.hold("import", 1) as hold:
        ...     hold.decision.remaining
        2
        """
        part = Part("", self._key(name), name, limit or self.limit, amount)
        hold: HoldT = self._of_hold(self, [part], ttl_ms, in_turn(max_wait_ms, share, weight))
        return hold

    def headers(
        self, decision: Decision, *, limit: Limit | None = None, name: str = "default", jitter: float = 0
    ) -> dict[str, str]:
        """Returns the HTTP headers of a decision: see `Decision.headers`.

        >>> limiter = Limiter(FakeServer(), Limit(10, "5/s"))
        >>> limiter.headers(limiter.take("alice"))["RateLimit"]
        '"default";r=9;t=1'
        """
        return decision.headers(limit or self.limit, name, jitter)

    # Their steps. Nothing is checked before they begin, so with asyncio a mistake is raised by `await`.

    def _words(self, name: str, operation: str, limit: Limit, *arguments: Number) -> Command:
        return command(operation, self._key(name), limit, *arguments)

    def _simple(
        self, operation: str, name: str, limit: Limit | None, *arguments: Number, once: bool = False
    ) -> Steps[Decision]:
        limit = limit or self.limit
        words = self._words(name, operation, limit, *arguments)
        return (yield from self._decide(name, limit, words, Terms(once)))

    def _take(self, name: str, cost: Number, limit: Limit) -> Steps[Decision]:
        began = self._clock.monotonic()
        return self._told(name, limit, (yield from self._take_untold(name, cost, limit)), began)

    def _take_untold(self, name: str, cost: Number, limit: Limit, pause_s: float = 0.0) -> Steps[Decision]:
        began, words = self._clock.monotonic(), self._words(name, "TB.TAKE", limit, cost)
        decision = self._denials.recall(name, limit, cost)
        if decision is None:
            decision = Decision._read(*(yield from self._ask(words, Terms(pause_s=pause_s))))
            self._denials.remember(name, limit, cost, decision, began)
        return decision

    def _take_up_to(self, name: str, most: Number, limit: Limit | None) -> Steps[Decision]:
        whole = exactly(most)
        if not whole or whole % 1:
            raise BadArgument(f"most: {most!r} is not a whole number from 1 to 1e12")
        return (yield from self._simple("TB.TAKEUPTO", name, limit, int(whole)))

    def _take_in_turn(
        self, name: str, cost: Number, limit: Limit | None, turn: tuple[float, str | None, Number]
    ) -> Steps[Decision]:
        """Asks the server, past batches and remembered denials: it alone knows which call is next."""
        limit = limit or self.limit
        words = self._words(name, "TB.TAKE", limit, cost)
        return (yield from self._decide(name, limit, words, in_turn(*turn)))

    def _reserve(self, name: str, limit: Limit | None, *arguments: Number) -> Steps[Decision]:
        decision = yield from self._simple("TB.RESERVE", name, limit, *arguments)
        return replace(decision, retry_after_ms=0) if self._shadow else decision

    async def _wait(self, name: str, cost: Number, max_wait_ms: int, limit: Limit | None) -> Decision:
        reserved: Any = self.reserve(name, cost, max_wait_ms=max_wait_ms, limit=limit)
        decision: Decision = await done(reserved)
        if decision.allowed and decision.retry_after_ms:
            try:
                await done(self._sleep(decision.retry_after_ms / 1000))
            except BaseException:
                await done(self._run_once(self._give_up(decision, name, cost, limit)))
                raise
        return decision

    def _came_back(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self._denials.forget(part.name, part.limit)

    def _give(self, name: str, amount: Number, limit: Limit | None) -> Steps[Decision]:
        self._denials.forget(name, limit or self.limit)
        return (yield from self._simple("TB.GIVE", name, limit, amount, once=True))

    def _reset_name(self, name: str, limit: Limit | None) -> Steps[Decision]:
        self._denials.forget(name, limit or self.limit)
        self._batches.forget(name, limit or self.limit)
        return (yield from self._reset([self._key(name)], [limit or self.limit]))

    def _give_up(self, decision: Decision, name: str, cost: Number, limit: Limit | None) -> Steps[None]:
        """Gives back what a wait has reserved, and raises nothing: its caller hears why it has ended."""
        if decision.degraded:
            self.server._local.execute(*self._words(name, "TB.GIVE", limit or self.limit, cost))
        else:
            with suppress(TokenBucketError):
                yield from self._give(name, cost, limit)

    # Batches.

    def _take_batched(self, name: str, cost: int, limit: Limit) -> Steps[Decision]:
        began, batches = self._clock.monotonic(), self._batches
        batch, decision = batches.take(name, limit, cost)
        if decision is None:
            decision = self._denials.recall(name, limit, max(cost - batch.tokens, 1))
        if decision is None:
            # No call takes longer; if this one is interrupted, others fetch then.
            within_s = 2 * CONNECT_WITHIN_S + 4 * self.server.timeout_ms / 1000
            if until := batches.begin_fetch(batch, began, within_s):
                decision = yield from self._fetch(batch, cost, until)
            else:
                decision = yield from self._take_meanwhile(batch, cost)
        with suppress(IndexError):
            while True:  # what those had left that made room
                yield from self._give_back([batches.evicted.popleft()])
        return self._told(name, limit, decision, began)

    def _take_meanwhile(self, batch: Batch, cost: int) -> Steps[Decision]:
        """Takes for this call alone while another fetches, which may bring what the bucket lacks."""
        pause_s = 0.0
        for _ in range(_TRIES_WHILE_FETCHING):
            decision = yield from self._take_untold(batch.name, cost, batch.limit, pause_s)
            is_fetching = self._clock.monotonic() < batch.fetched_until
            if not decision.allowed and not decision.degraded:
                decision = self._batches.take(batch.name, batch.limit, cost)[1] or decision
            if decision.allowed or not is_fetching:
                break
            pause_s = self.server.timeout_ms / 1000 / _TRIES_WHILE_FETCHING
        return decision

    def _fetch(self, batch: Batch, cost: int, until: float) -> Steps[Decision]:
        batches, asked_at = self._batches, self._clock.monotonic()
        take = self._words(batch.name, "TB.TAKEUPTO", batch.limit, batches.size)
        short = None
        try:
            # Another fetch may have just ended.
            if (decision := batches.take(batch.name, batch.limit, cost)[1]) is not None:
                return decision
            taken = yield from self.server._ask(take)
            with batches.lock:
                batch.add(taken[0], taken[3], asked_at)
                batch.reply = Decision._read(taken)
                decision, lacking = batch.spend(cost), cost - batch.tokens
            if decision is None and taken[0] < batches.size:  # else others have spent it
                look = self._words(batch.name, "TB.PEEK", batch.limit, lacking)
                short = Decision._read((yield from self.server._ask(look)))
        except Unanswered as unanswered:
            words = self._words(batch.name, "TB.TAKE", batch.limit, cost)
            reply, lost = self._degraded(words, unanswered, False)
            return Decision._read(reply, True, lost)
        finally:
            if batch.fetched_until == until:
                batch.fetched_until = 0
        if decision is not None:
            return decision
        if short is None or short.allowed:
            return (yield from self._take_untold(batch.name, cost, batch.limit))
        self._denials.remember(batch.name, batch.limit, lacking, short, asked_at)
        return replace(short, remaining=short.remaining + cost - lacking)

    def _give_back(self, left: Iterable[tuple[Batch, int]]) -> Steps[None]:
        """Gives tokens of batches back, all at once; those that no server takes are lost."""
        yield from self.server._ask_each(
            [self._words(batch.name, "TB.GIVE", batch.limit, tokens) for batch, tokens in left]
        )
