"""Limiters of one limit, for threads and asyncio alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Generic, TypeVar

from ..local.fork import begins_anew_after_fork
from ..transport.call import Steps, Terms
from ..transport.commands import Command, command
from ..values.decision import Decision
from ..values.errors import BadArgument, ReplyError, Unanswered
from ..values.limit import Limit, Number
from .batches import Batch, Batches
from .denials import Denials
from .operations import Backend, OnDecision, OnError, Part, in_turn

Where = TypeVar("Where")
"""A server or a client."""
Decided = TypeVar("Decided")
"""A decision, or with asyncio what is awaited for one."""
Holding = TypeVar("Holding")
"""A hold."""


class BaseLimiter(Backend, Generic[Where, Decided, Holding]):
    """One limit for many names; each name has a bucket of its own, under `prefix` + name.

    `on_error` decides while the server is away: "local" enforces the same limit in the memory of this
    process, "open" lets everybody through, "closed" nobody, "raise" raises ServerAway. What is the
    caller's mistake is raised under each of them.

    `remember_denials`: so many denied names are refused here until their time has come. `batch`: so
    many tokens are fetched at a time and spent here. `on_decision` is called with every decision.

    A limit given to a call is for that call alone.
    """

    # What threads and asyncio do in ways of their own.
    _of_hold: Any
    _run: Callable[[Steps[Decision]], Decided]
    _run_once: Callable[[Steps[Decision]], Decided]
    """Runs them to their end, even if the caller leaves."""
    _take_batched: Callable[[str, int, Limit], Decided]

    def __init__(
        self,
        server: Where | str,
        limit: Limit,
        prefix: str = "tb:",
        *,
        on_error: OnError = "local",
        remember_denials: int = 0,
        batch: int = 0,
        on_decision: OnDecision | None = None,
    ) -> None:
        if not isinstance(limit, Limit):
            raise BadArgument(f"limit: {limit!r} is not a Limit")
        if remember_denials < 0:
            raise BadArgument(f"remember_denials: {remember_denials!r} is less than 0")
        if batch < 0:
            raise BadArgument(f"batch: {batch!r} is less than 0")
        super().__init__(server, prefix, on_error, on_decision)
        self.limit = limit
        self._remembers = remember_denials
        self._batch = batch if batch > 1 else 0
        self.begin_anew()
        begins_anew_after_fork(self)

    def begin_anew(self) -> None:
        self._denials = Denials(self._remembers, self._clock) if self._remembers else None
        self._batches_of: dict[Any, Batches] = {}

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
    ) -> Decided:
        """Takes `cost` tokens if the bucket holds them, else nothing.

        `max_wait_ms`: the call waits its turn in the server for at most so many milliseconds (30 days),
        behind those that wait already.

        `share`: the tenant, of 1 to 128 bytes, of whom the call is. Tenants that wait for one bucket get
        tokens in proportion to `weight`, however many calls each has waiting; a weight is 0.001 to 1000,
        kept to millionths. Calls without a share are one tenant of weight 1. A call that does
        not wait needs no share. Raises BadArgument for other values.
        """
        if max_wait_ms or share is not None or weight != 1:
            return self._run(self._take_in_turn(name, cost, limit, (max_wait_ms, share, weight)))
        # A batch has whole tokens, and serves no more than it has when it is new.
        if self._batch and isinstance(cost, int) and 0 < cost <= self._batch:
            return self._take_batched(name, int(cost), limit or self.limit)
        return self._run(self._take(name, cost, limit))

    def peek(self, name: str, cost: Number = 1, *, limit: Limit | None = None) -> Decided:
        """What `take` would decide; `remaining` is as after it. With cost 0, what there is."""
        return self._run(self._simple("TB.PEEK", name, limit, cost))

    def take_up_to(self, name: str, most: int, *, limit: Limit | None = None) -> Decided:
        """Takes as many whole tokens as there are, at most `most`: see `granted`."""
        return self._run(self._simple("TB.TAKEUPTO", name, limit, most))

    def reserve(
        self, name: str, cost: Number = 1, *, max_wait_ms: int, limit: Limit | None = None
    ) -> Decided:
        """Books a place in the queue: sleep `retry_after_ms`, then act.

        Denied, without a token taken, if the wait would be longer than `max_wait_ms`.
        """
        return self._run(self._simple("TB.RESERVE", name, limit, cost, max_wait_ms))

    def charge(self, name: str, amount: Number, *, limit: Limit | None = None) -> Decided:
        """Takes `amount` in any case, into debt if need be."""
        return self._run_once(self._simple("TB.CHARGE", name, limit, amount, once=True))

    def give(self, name: str, amount: Number, *, limit: Limit | None = None) -> Decided:
        """Puts `amount` back, never above the capacity."""
        return self._run_once(self._give(name, amount, limit))

    def reset(self, name: str, *, limit: Limit | None = None) -> Decided:
        """Makes the bucket full, and forgets its holds."""
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
    ) -> Holding:
        """Takes `amount` until the end of `with` (`async with`), or for `ttl_ms` if its holder is gone.

        `max_wait_ms`, `share` and `weight` as for `take`; `ttl_ms` begins with the grant.
        """
        part = Part("", self._key(name), name, limit or self.limit, amount)
        hold: Holding = self._of_hold(self, [part], ttl_ms, in_turn(max_wait_ms, share, weight))
        return hold

    def headers(
        self, decision: Decision, *, limit: Limit | None = None, name: str = "default", jitter: float = 0
    ) -> dict[str, str]:
        """See `Decision.headers`."""
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

    def _take(self, name: str, cost: Number, limit: Limit | None) -> Steps[Decision]:
        limit = limit or self.limit
        words = self._words(name, "TB.TAKE", limit, cost)
        if self._denials is None:
            return (yield from self._decide(name, limit, words))
        began = self._clock.monotonic()
        if refusal := self._denials.recall(name, limit, cost):
            self._tell(name, limit, refusal, began)
            return refusal
        decision = yield from self._decide(name, limit, words)
        self._denials.remember(name, limit, cost, decision, began)
        return decision

    def _take_in_turn(
        self, name: str, cost: Number, limit: Limit | None, turn: tuple[float, str | None, Number]
    ) -> Steps[Decision]:
        """Neither by a batch nor by what is remembered: the server alone knows who is next."""
        limit = limit or self.limit
        words = self._words(name, "TB.TAKE", limit, cost)
        return (yield from self._decide(name, limit, words, in_turn(*turn)))

    def _give(self, name: str, amount: Number, limit: Limit | None) -> Steps[Decision]:
        if self._denials:
            self._denials.forget(name, limit or self.limit)
        return (yield from self._simple("TB.GIVE", name, limit, amount, once=True))

    def _reset_name(self, name: str, limit: Limit | None) -> Steps[Decision]:
        if self._denials:
            self._denials.forget(name, limit or self.limit)
        for batches in self._batches_of.values():
            with batches.lock:
                batches.forget(name, limit or self.limit)
        return (yield from self._reset([self._key(name)], [limit or self.limit]))

    def _book_here(self, name: str, cost: Number, max_wait_ms: float) -> Decision | None:
        """Books a place in the bucket of this process; None if that does not decide."""
        if self._on_error != "local":
            return None
        reply = self.server.local.execute(
            *self._words(name, "TB.RESERVE", self.limit, cost, int(max_wait_ms))
        )
        return None if isinstance(reply, ReplyError) else Decision.read(reply, True)

    def _give_here(self, name: str, amount: Number) -> None:
        self.server.local.execute(*self._words(name, "TB.GIVE", self.limit, amount))

    # Batches. Those of asyncio belong to an event loop, since callers wait for one another.

    def _new_batches(self, _: object = None) -> Batches:
        return Batches(self._batch, self._clock)

    def _fetch(self, batches: Batches, batch: Batch) -> Steps[None]:
        """Fetches for all callers that wait, and wakes those whose decision is made."""
        with batches.lock:
            wanted = batch.wanted(batches.size)
        asked_at = self._clock.monotonic()

        def late(replies: Any) -> None:
            if isinstance(replies[0], list):
                with batches.lock:
                    batch.add(replies[0][0], replies[0][3], asked_at)

        take = self._words(batch.name, "TB.TAKEUPTO", batch.limit, wanted)
        look = self._words(batch.name, "TB.PEEK", batch.limit, 1)
        try:
            taken, looked = yield from self.server.ask(take, look, terms=Terms(late=late))
        except Exception as error:
            with batches.lock:
                waiting, batch.waiting = batch.waiting, []
            for waiter in waiting:
                self._decide_without(batch, waiter, error)
                waiter.wake()
            return
        with batches.lock:
            batch.add(taken[0], taken[3], asked_at)
            batch.reply = Decision.read(taken)
            # That the bucket had less is what its reply to the look is about.
            short = None if taken[0] >= wanted or isinstance(looked, ReplyError) else Decision.read(looked)
            batch.serve(short)
            if self._denials and short is not None and batch.tokens == 0:
                denied = replace(short, allowed=False, granted=0, retry_after_ms=max(short.retry_after_ms, 1))
                self._denials.remember(batch.name, batch.limit, 1, denied, asked_at)

    def _decide_without(self, batch: Batch, waiter: Any, error: Exception) -> None:
        """The server did not decide: `on_error` does, for each of those who wait."""
        try:
            if not isinstance(error, Unanswered):
                raise error
            words = self._words(batch.name, "TB.TAKE", batch.limit, waiter.cost)
            reply, lost = self._degraded(words, error, False)
            waiter.decision = Decision.read(reply, True, lost)
        except Exception as raised:
            waiter.error = raised

    def _give_batches_back(self, place: Any) -> list[Steps[Decision]]:
        batches = self._batches_of.pop(place, None)
        if batches is None:
            return []
        return [self._give(batch.name, left, batch.limit) for batch, left in batches.drain()]

    def _give_evicted_back(self, batches: Batches) -> Iterator[Steps[None]]:
        """What the batches had left that made room for others."""
        while batches.evicted:
            batch, left = batches.evicted.popleft()
            words = self._words(batch.name, "TB.GIVE", batch.limit, left)
            yield self.server.give_back(words, always=False)
