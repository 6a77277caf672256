"""What limiters do, for threads and asyncio alike: each operation as its steps, see `_server.py`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

from ._batches import Batch, Batches
from ._clock import clock_of
from ._command import Command, Word
from ._decision import Decision, JointDecision
from ._denials import Denials
from ._errors import ServerAway
from ._limit import Limit, Number
from ._server import Steps, join, leave

OnError = Literal["open", "closed", "raise"]
OnDecision = Callable[[str, Limit, Decision, float], None]
"""Called with the name, the limit, the decision and how many seconds it took."""

Used = Number | Mapping[str, Number]

MAX_HOLD_TTL_MS = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class Part:
    """One of several buckets that a command is about."""

    which: str
    """What the caller calls its limit."""
    name: str
    limit: Limit
    amount: Number


class Asker:
    """One server, and what to do without it."""

    def __init__(
        self,
        client: Any,
        *,
        prefix: str,
        on_error: OnError,
        timeout_ms: int,
        retry_every_ms: int,
        fallback: Literal["script"] | None,
        on_decision: OnDecision | None,
    ) -> None:
        if on_error not in ("open", "closed", "raise"):
            raise ValueError(f"on_error: {on_error!r} is neither 'open' nor 'closed' nor 'raise'")
        if timeout_ms <= 0:
            raise ValueError(f"timeout_ms: {timeout_ms!r} is not above 0")
        if retry_every_ms < 0:
            raise ValueError(f"retry_every_ms: {retry_every_ms!r} is less than 0")
        if fallback not in (None, "script"):
            raise ValueError(f"fallback: {fallback!r} is neither None nor 'script'")
        self.prefix = prefix
        self._on_error = on_error
        self._retry_every_ms = retry_every_ms
        self._script = fallback == "script"
        self._on_decision = on_decision
        self._given_client = client
        self._clock = clock_of(client)
        self._server = join(client, timeout_ms / 1000, retry_every_ms / 1000)
        self._left = False

    @property
    def _client(self) -> Any:
        return self._server.own_client or self._given_client

    def _leave(self) -> bool:
        """Whether the connections are to be closed."""
        if self._left:
            return False
        self._left = True
        return leave(self._server)

    def _ask(self, command: Command, *, always: bool = False, repeatable: bool = False) -> Steps[Any]:
        reply = yield from self._server.ask(
            self._client, command, script=self._script, always=always, repeatable=repeatable
        )
        if reply is None and self._on_error == "raise":
            raise ServerAway("the server cannot be asked")
        return reply

    @property
    def _by_policy(self) -> Decision:
        allowed = self._on_error == "open"
        return Decision(allowed, retry_after_ms=0 if allowed else self._retry_every_ms, degraded=True)

    def _tell(self, name: str, limit: Limit, decision: Decision, began: float) -> None:
        if self._on_decision:
            self._on_decision(name, limit, decision, self._clock.monotonic() - began)

    def _decide_all(
        self,
        parts: Sequence[Part],
        *command: Word,
        always: bool = False,
        repeatable: bool = False,
    ) -> Steps[JointDecision]:
        """The reply to `command`, followed by the arguments of each part."""
        began = self._clock.monotonic()
        arguments = (_command(self.prefix + part.name, part.limit, part.amount) for part in parts)
        words = (*command, *chain.from_iterable(arguments))
        reply = yield from self._ask(words, always=always, repeatable=repeatable)
        if reply is None:
            policy = self._by_policy
            decision = JointDecision(policy.allowed, retry_after_ms=policy.retry_after_ms, degraded=True)
        else:
            decision = JointDecision.read_each(reply, [part.which for part in parts])
        for part in parts:
            one = decision.each.get(part.which, decision)
            self._tell(part.name, part.limit, one, began)
        return decision


class Operations(Asker):
    """One limit for many names; each name has a bucket of its own."""

    def __init__(
        self,
        client: Any,
        limit: Limit,
        *,
        new_lock: type[Any],
        remember_denials: int,
        batch: int,
        **options: Any,
    ) -> None:
        super().__init__(client, **options)
        if remember_denials < 0:
            raise ValueError(f"remember_denials: {remember_denials!r} is less than 0")
        if batch < 0:
            raise ValueError(f"batch: {batch!r} is less than 0")
        self.limit = limit
        self._denials = Denials(remember_denials, self._clock) if remember_denials else None
        self._batches = Batches(batch, self._clock, new_lock) if batch > 1 else None

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

    def _decide(
        self,
        command: str,
        name: str,
        limit: Limit | None,
        *words: Number,
        if_open: Decision | None = None,
    ) -> Steps[Decision]:
        limit = limit or self.limit
        began = self._clock.monotonic()
        reply = yield from self._ask(_command(command, self.prefix + name, limit, *words))
        if reply is not None:
            decision = Decision.read(reply)
        elif if_open and self._on_error == "open":
            decision = if_open
        else:
            decision = self._by_policy
        self._tell(name, limit, decision, began)
        return decision

    def _take(self, name: str, cost: Number, limit: Limit | None) -> Steps[Decision]:
        if self._denials is None:
            return (yield from self._decide("TB.TAKE", name, limit, cost))
        limit = limit or self.limit
        began = self._clock.monotonic()
        if refusal := self._denials.recall(name, limit, cost):
            self._tell(name, limit, refusal, began)
            return refusal
        decision = yield from self._decide("TB.TAKE", name, limit, cost)
        self._denials.remember(name, limit, cost, decision, began)
        return decision

    def _batch_for(self, name: str, cost: Number, limit: Limit | None) -> Batch | None:
        """The batch from which a take of whole tokens is served; None for all others."""
        whole = isinstance(cost, int) and cost > 0
        if self._batches is None or not whole or int(cost) > self._batches.size:
            return None
        return self._batches.of(name, limit or self.limit)

    def _take_from(self, batch: Batch, cost: int) -> Steps[Decision]:
        """With the batch's lock held."""
        began = self._clock.monotonic()
        decision = yield from self._spend(batch, cost)
        self._tell(batch.name, batch.limit, decision, began)
        return decision

    def _spend(self, batch: Batch, cost: int) -> Steps[Decision]:
        assert self._batches
        key, limit, asked_at = self.prefix + batch.name, batch.limit, self._clock.monotonic()
        if batch.left() >= cost:
            return batch.spend(cost)
        if self._denials and (refusal := self._denials.recall(batch.name, limit, cost - batch.tokens)):
            return refusal
        reply = yield from self._ask(_command("TB.TAKEUPTO", key, limit, self._batches.size))
        if reply is None:
            return self._by_policy
        fetched = Decision.read(reply)
        batch.add(fetched, asked_at)
        if batch.left() >= cost:
            return batch.spend(cost)
        lacking = cost - batch.tokens
        if fetched.granted or lacking > 1:  # that reply was not about what is lacking
            reply = yield from self._ask(_command("TB.PEEK", key, limit, lacking))
            if reply is None:
                return self._by_policy
            fetched = Decision.read(reply)
        decision = replace(
            fetched,
            allowed=False,
            granted=0,
            remaining=fetched.remaining + batch.tokens,
            retry_after_ms=fetched.retry_after_ms or 1,
        )
        if self._denials:
            self._denials.remember(batch.name, limit, lacking, decision, asked_at)
        return decision

    def _peek(self, name: str, cost: Number, limit: Limit | None) -> Steps[Decision]:
        return self._decide("TB.PEEK", name, limit, cost)

    def _take_up_to(self, name: str, most: int, limit: Limit | None) -> Steps[Decision]:
        granted = Decision(True, degraded=True, granted=most)
        return self._decide("TB.TAKEUPTO", name, limit, most, if_open=granted)

    def _reserve(self, name: str, cost: Number, max_wait_ms: int, limit: Limit | None) -> Steps[Decision]:
        return self._decide("TB.RESERVE", name, limit, cost, max_wait_ms)

    def _charge(self, name: str, amount: Number, limit: Limit | None) -> Steps[Decision]:
        return self._decide("TB.CHARGE", name, limit, amount)

    def _give(self, name: str, amount: Number, limit: Limit | None) -> Steps[Decision]:
        if self._denials:
            self._denials.forget(name, limit or self.limit)
        return self._decide("TB.GIVE", name, limit, amount)

    def _give_batches_back(self) -> list[Steps[Decision]]:
        if self._batches is None:
            return []
        return [self._give(batch.name, left, batch.limit) for batch, left in self._batches.drain()]


class JointOperations(Asker):
    """Several limits that are taken, or held, all together or not at all."""

    def __init__(self, client: Any, limits: Mapping[str, Limit], **options: Any) -> None:
        super().__init__(client, **options)
        self.limits = dict(limits)

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
        """One name's buckets share a hash tag, hence a slot; with several, the caller sees to that."""
        of = self.limits if limits is None else limits
        names = dict.fromkeys(amounts, f"{{{name}}}") if isinstance(name, str) else name
        return [
            Part(which, f"{names[which]}:{which}", of[which], amount) for which, amount in amounts.items()
        ]

    def _take_all(
        self,
        name: str | Mapping[str, str],
        costs: Mapping[str, Number],
        limits: Mapping[str, Limit] | None,
    ) -> Steps[JointDecision]:
        return self._decide_all(self._parts(name, costs, limits), "TB.MTAKE", len(costs))


class HoldOperations:
    """What is held for one piece of work until it is settled, or its holder is gone.

    Work that was let through because the server was away has one too, which the first renewal after
    its return takes, if there is room, and the settlement charges in any case.
    """

    def __init__(self, asker: Asker, parts: Sequence[Part], ttl_ms: int) -> None:
        if not 0 < ttl_ms <= MAX_HOLD_TTL_MS:
            raise ValueError(f"ttl_ms: {ttl_ms!r} is not from 1 to 30 days")
        self._asker = asker
        self._parts = parts
        self._ttl_ms = ttl_ms
        self.id = uuid.uuid4().hex
        self.amounts = {part.which: part.amount for part in parts}
        """What is held of each limit; of a single limit, under the name \"\"."""
        self.used: Used = 0
        """What the work used, for the end of `with`: of several limits, by their names."""
        self.decision = JointDecision(allowed=False)
        """The first decision, then that of the last renewal."""
        self.remaining: dict[str, int] = {}
        """What each limit had left at the last reply."""

    @property
    def allowed(self) -> bool:
        return self.decision.allowed

    @property
    def _renew_every_s(self) -> float:
        """Three times a ttl, so that one renewal may fail and the next still comes in time."""
        return self._ttl_ms / 3000

    def _renew(self) -> Steps[JointDecision]:
        self.decision = yield from self._asker._decide_all(
            self._parts, "TB.MHOLD", len(self._parts), self._ttl_ms, self.id, repeatable=True
        )
        self._note(self.decision)
        return self.decision

    def _settle(self, used: Used) -> Steps[None]:
        """What was not used comes back, what was used beyond the hold is charged.

        A hold that is not there (it expired, or the server was away when the work began) is charged
        what was used. Asked also while the server is thought to be away: what a settlement does not
        tell is lost.
        """
        of = used if isinstance(used, Mapping) else dict.fromkeys(self.amounts, used)
        if of is not used and used != 0 and len(self._parts) > 1:
            raise ValueError(f"used: {used!r} does not say of which of {list(self.amounts)}")
        parts = [replace(part, amount=of.get(part.which, 0)) for part in self._parts]
        # Sent once: a second "not there" could mean that the first has settled.
        settled = yield from self._asker._decide_all(parts, "TB.MSETTLE", len(parts), self.id, always=True)
        self._note(settled)
        for part in parts:
            if part.which in settled.each and not settled.each[part.which].allowed and float(part.amount) > 0:
                key = self._asker.prefix + part.name
                reply = yield from self._asker._ask(
                    _command("TB.CHARGE", key, part.limit, part.amount), always=True
                )
                if reply is not None:
                    self.remaining[part.which] = Decision.read(reply).remaining

    def _note(self, decision: JointDecision) -> None:
        self.remaining |= {which: one.remaining for which, one in decision.each.items()}


def _command(*before: str | Limit | Number) -> Command:
    """The words of a command: a limit is two of them."""
    words: list[Word] = []
    for one in before:
        words += (str(one.capacity), str(one.rate)) if isinstance(one, Limit) else (str(one),)
    return tuple(words)
