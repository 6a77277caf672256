"""What limiters do, for threads and asyncio alike: each operation as its steps, see `_server.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

from ..transport.call import Call, Steps
from ..transport.commands import Command, Word, command, keys_of_name
from ..transport.fork import begins_anew_after_fork
from ..transport.server import BaseServer
from ..values.decision import Decision, JointDecision
from ..values.errors import BadArgument, ReplyError, ReplyLost, ServerAway, Unanswered
from ..values.limit import Limit, Number
from .batches import Batch, Batches
from .denials import Denials

OnError = Literal["local", "open", "closed", "raise"]
OnDecision = Callable[[str, Limit, Decision, float], None]
"""Called with the name, the limit, the decision and how many seconds it took."""

MAX_WAIT_MS = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class Part:
    """One of several buckets that a command is about."""

    which: str
    """What the caller calls its limit."""
    key: str
    name: str
    limit: Limit
    amount: Number


class Backend:
    """One server, and what to do without it."""

    def __init__(
        self, server: BaseServer, *, prefix: str, on_error: OnError, on_decision: OnDecision | None
    ) -> None:
        if on_error not in ("local", "open", "closed", "raise"):
            raise BadArgument(f"on_error: {on_error!r} is none of 'local', 'open', 'closed', 'raise'")
        self.prefix = prefix
        self.server: Any = server
        self._on_error = on_error
        self._on_decision = on_decision
        self._clock = server.clock
        self._has_left = False
        server.joined()

    def _leave(self) -> bool:
        """Whether nobody else uses the server's connections."""
        if self._has_left:
            return False
        self._has_left = True
        return bool(self.server.left())

    def _tell(self, name: str, limit: Limit, decision: Decision, began: float) -> None:
        if self._on_decision:
            self._on_decision(name, limit, decision, self._clock.monotonic() - began)

    def _tell_all(self, parts: Sequence[Part], decision: JointDecision, began: float) -> None:
        for part in parts:
            self._tell(part.name, part.limit, decision.each.get(part.which, decision), began)

    def _key(self, name: str) -> str:
        if not isinstance(name, str):
            raise BadArgument(f"name: {name!r} is not a str")
        return self.prefix + name

    def _degraded(self, words: Command, unanswered: Unanswered, once: bool) -> tuple[Any, bool]:
        """What `on_error` replies in the server's place, and whether the server's reply was lost."""
        lost = once and unanswered.sent
        if self._on_error == "raise":
            kind = ReplyLost if lost else ServerAway
            raise kind(f"{self.server.name} did not decide: {unanswered}") from unanswered
        self.server.count_degraded()
        if self._on_error == "local":
            reply = self.server.local.execute(*words)
            if isinstance(reply, ReplyError):
                raise BadArgument(str(reply)) from reply
            return reply, lost
        if self._on_error == "open":
            return [int(words[4]) if words[0] == "TB.TAKEUPTO" else 1, 0, 0, 0], lost
        return [0, 0, int(self.server.retry_every_ms) or 1, 0], lost

    def _ask(
        self,
        words: Command,
        *,
        once: bool = False,
        always: bool = False,
        keep: bool = False,
        max_wait_ms: float = 0,
        calls: list[Call] | None = None,
    ) -> Steps[tuple[Any, bool, bool]]:
        """The reply, whether it is `on_error`'s, and whether the server's was lost.

        What a reply that comes too late has granted is given back if the caller is gone, or was denied
        meanwhile. `keep`: it is not.
        """
        calls = [] if calls is None else calls
        late = _keep if keep else None
        try:
            if max_wait_ms:
                reply = yield from self.server.ask_in_turn(words, max_wait_ms, late=late, calls=calls)
            else:
                reply = yield from self.server.ask(words, once=once, always=always, late=late, calls=calls)
            return reply, False, False
        except Unanswered as unanswered:
            stays = once  # the caller learns that nobody knows
            try:
                reply, lost = self._degraded(words, unanswered, once)
                stays = stays or bool(reply[0])
                return reply, True, lost
            finally:
                for call in () if stays else calls:
                    call.undo = True
                    self.server.leave(call)

    def _decide(
        self, name: str, limit: Limit, words: Command, once: bool = False, max_wait_ms: float = 0
    ) -> Steps[Decision]:
        began = self._clock.monotonic()
        decision = Decision.read(*(yield from self._ask(words, once=once, max_wait_ms=max_wait_ms)))
        self._tell(name, limit, decision, began)
        return decision

    def _decide_all(
        self,
        parts: Sequence[Part],
        *words: Word,
        once: bool = False,
        always: bool = False,
        keep: bool = False,
        max_wait_ms: float = 0,
        calls: list[Call] | None = None,
    ) -> Steps[JointDecision]:
        """The reply to a command that is followed by the arguments of each part."""
        arguments = (command(part.key, part.limit, part.amount) for part in parts)
        whole: Command = (*words, *chain.from_iterable(arguments))
        reply, degraded, lost = yield from self._ask(
            whole, once=once, always=always, keep=keep, max_wait_ms=max_wait_ms, calls=calls
        )
        if len(reply) == 4:
            reply = [*reply, []]
        which = [part.which for part in parts] if reply[4] else []
        return JointDecision.read_each(reply, which, degraded, lost)

    def _reset(self, keys: Sequence[str], limits: Iterable[Limit]) -> Steps[Decision]:
        """Allowed, with full buckets, unless a server that is away keeps what it has stored."""
        degraded = False
        for key in chain.from_iterable(map(self.server.keys_of_bucket, keys)):
            try:
                yield from self.server.ask(("DEL", key))
            except Unanswered as unanswered:
                self._degraded(("DEL", key), unanswered, False)
                degraded = True
        for key in keys:
            self.server.local.execute("DEL", key)
        if degraded:
            return Decision(False, degraded=True)
        return Decision(True, min(int(float(limit.capacity)) for limit in limits), granted=1)


def checked_wait(max_wait_ms: float) -> float:
    if not 0 <= max_wait_ms <= MAX_WAIT_MS:
        raise BadArgument(f"max_wait_ms: {max_wait_ms!r} is not from 0 to 30 days")
    return max_wait_ms


def _keep(_: Any) -> None:
    """Leaves what a late reply has granted as it is."""


class Operations(Backend):
    """One limit for many names; each name has a bucket of its own."""

    def __init__(
        self, server: BaseServer, limit: Limit, *, remember_denials: int, batch: int, **options: Any
    ) -> None:
        if not isinstance(limit, Limit):
            raise BadArgument(f"limit: {limit!r} is not a Limit")
        if remember_denials < 0:
            raise BadArgument(f"remember_denials: {remember_denials!r} is less than 0")
        if batch < 0:
            raise BadArgument(f"batch: {batch!r} is less than 0")
        super().__init__(server, **options)
        self.limit = limit
        self._remembers = remember_denials
        self._batch = batch if batch > 1 else 0
        self.begin_anew()
        begins_anew_after_fork(self)

    def begin_anew(self) -> None:
        self._denials = Denials(self._remembers, self._clock) if self._remembers else None
        self._batches_of: dict[Any, Batches] = {}

    def headers(
        self,
        decision: Decision,
        *,
        limit: Limit | None = None,
        name: str = "default",
        jitter: float = 0,
    ) -> dict[str, str]:
        """See `Decision.headers`."""
        return decision.headers(limit or self.limit, name, jitter)

    def _words(self, name: str, operation: str, limit: Limit, *arguments: Number) -> Command:
        return command(operation, self._key(name), limit, *arguments)

    def _simple(
        self, operation: str, name: str, limit: Limit | None, *arguments: Number, once: bool = False
    ) -> Steps[Decision]:
        limit = limit or self.limit
        return self._decide(name, limit, self._words(name, operation, limit, *arguments), once)

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
        self, name: str, cost: Number, limit: Limit | None, max_wait_ms: float
    ) -> Steps[Decision]:
        """Neither by a batch nor by what is remembered: the server alone knows who is next."""
        limit = limit or self.limit
        words = self._words(name, "TB.TAKE", limit, cost)
        return self._decide(name, limit, words, max_wait_ms=checked_wait(max_wait_ms))

    def _give(self, name: str, amount: Number, limit: Limit | None) -> Steps[Decision]:
        if self._denials:
            self._denials.forget(name, limit or self.limit)
        return self._simple("TB.GIVE", name, limit, amount, once=True)

    def _reset_name(self, name: str, limit: Limit | None) -> Steps[Decision]:
        if self._denials:
            self._denials.forget(name, limit or self.limit)
        for batches in self._batches_of.values():
            with batches.lock:
                batches.forget(name, limit or self.limit)
        return self._reset([self._key(name)], [limit or self.limit])

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

    def _batched(self, cost: Number) -> bool:
        """Whether a take is served from a batch: whole tokens, not more than one batch has."""
        return self._batch > 0 and isinstance(cost, int) and 0 < cost <= self._batch

    def _batches_for(self, place: Any) -> Batches:
        batches = self._batches_of.get(place)
        if batches is None:
            batches = self._batches_of.setdefault(place, Batches(self._batch, self._clock))
        return batches

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
            taken, looked = yield from self.server.ask(take, look, late=late)
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


class JointOperations(Backend):
    """Several limits that are taken, or held, all together or not at all."""

    def __init__(self, server: BaseServer, limits: Mapping[str, Limit], **options: Any) -> None:
        super().__init__(server, **options)
        self.limits = dict(limits)
        for name, limit in self.limits.items():
            if not isinstance(limit, Limit):
                raise BadArgument(f"limits: {name!r} is {limit!r}, not a Limit")

    def headers(
        self,
        decision: JointDecision,
        *,
        limits: Mapping[str, Limit] | None = None,
        jitter: float = 0,
    ) -> dict[str, str]:
        """As `Decision.headers`, with an item for each limit."""
        headers: dict[str, str] = {}
        of = self.limits if limits is None else limits
        for which, one in decision.each.items():
            for name, item in one.headers(of[which], which).items():
                headers[name] = f"{headers[name]}, {item}" if name in headers else item
        headers.pop("Retry-After", None)
        return headers | decision.retry_after_header(jitter)

    def _parts(
        self,
        name: str | Mapping[str, str],
        amounts: Mapping[str, Number],
        limits: Mapping[str, Limit] | None,
    ) -> list[Part]:
        of = self.limits if limits is None else limits
        if unknown := [which for which in amounts if which not in of]:
            raise BadArgument(f"no limit is called {unknown[0]!r}, only {', '.join(of) or 'none'}")
        if isinstance(name, Mapping) and (missing := [which for which in amounts if which not in name]):
            raise BadArgument(f"name: {name!r} has none for the limit {missing[0]!r}")
        if not all(isinstance(one, str) for one in (name.values() if isinstance(name, Mapping) else [name])):
            raise BadArgument(f"name: {name!r} is neither a str nor one for each limit")
        return [
            Part(
                which,
                keys_of_name(self.prefix, name, which),
                name if isinstance(name, str) else name[which],
                of[which],
                amount,
            )
            for which, amount in amounts.items()
        ]

    def _take_all(
        self,
        name: str | Mapping[str, str],
        costs: Mapping[str, Number],
        limits: Mapping[str, Limit] | None,
        max_wait_ms: float,
    ) -> Steps[JointDecision]:
        began, parts = self._clock.monotonic(), self._parts(name, costs, limits)
        words = ("TB.MTAKE", len(costs))
        decision = yield from self._decide_all(parts, *words, max_wait_ms=checked_wait(max_wait_ms))
        self._tell_all(parts, decision, began)
        return decision

    def _reset_name(self, name: str | Mapping[str, str]) -> Steps[Decision]:
        keys = [keys_of_name(self.prefix, name, which) for which in self.limits]
        return self._reset(keys, self.limits.values())
