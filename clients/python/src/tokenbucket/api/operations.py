"""What all limiters do, for threads and asyncio alike: operations as steps, see `transport/server.py`.

What does more than ask the server is written once as well, as coroutines: those of threads await nothing
that is not over already.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from ..transport.call import Call, Steps
from ..transport.commands import Command, renewing
from ..transport.server import BaseServer
from ..values.constants import LEAST_WEIGHT, LONGEST_MS, MOST_SHARE_BYTES, MOST_WEIGHT
from ..values.decision import Decision
from ..values.errors import BadArgument, ReplyError, ReplyLost, ServerAway, Unanswered
from ..values.limit import Limit, Number, exactly

T = TypeVar("T")
ServerT = TypeVar("ServerT")
"""A server or a client."""
DecisionT = TypeVar("DecisionT")
"""A decision, or with asyncio what is awaited for one."""
HoldT = TypeVar("HoldT")
"""A hold."""
OnError = Literal["local", "open", "closed", "raise"]
OnDecision = Callable[[str, Limit, Decision, float], None]
"""Called with the name, the limit, the decision and how many seconds it took."""


class Part(NamedTuple):
    """One of the buckets that a command is about."""

    which: str
    """What the caller calls its limit; "" of a single one."""
    key: str
    name: str
    limit: Limit
    amount: Number

    @property
    def words(self) -> Command:
        return self.key, str(self.limit.capacity), str(self.limit.rate), str(self.amount)


Parts = Sequence[Part]

_by_url: dict[Any, Any] = {}
"""The servers that limiters have made of URLs. `setdefault` makes one for all threads."""


def shared_server(kind: Any, client: Any) -> Any:
    """Returns the server that was given, or the one that all limiters on this client or URL share."""
    if isinstance(client, kind):
        return client
    if isinstance(client, BaseServer):
        package = "tokenbucket.asyncio" if client._is_asynchronous else "tokenbucket"
        raise BadArgument(f"client: a {package}.Server is not for these limiters")
    if isinstance(client, str):
        return _by_url.get((kind, client)) or _by_url.setdefault((kind, client), kind(client))
    # Kept where its connections come from, so that it lives as long.
    place = getattr(client, "nodes_manager", None) or getattr(client, "connection_pool", None)
    if not hasattr(place, "__dict__"):  # as the node manager of asyncio
        place = client
    known = getattr(place, "tokenbucket_server", None)
    if known is None:
        made = kind(client)
        known = vars(place).setdefault("tokenbucket_server", made)
    if not isinstance(known, kind):
        kind(client)  # says why not
    return known


class Backend(Generic[ServerT, DecisionT, HoldT]):
    """One server, and what to do without it."""

    # What threads and asyncio do in ways of their own.
    _of_server: type[BaseServer[Any]]
    """What a limiter of this kind asks."""
    _of_hold: Callable[..., HoldT]
    _run: Callable[[Steps[Decision]], DecisionT]
    _run_once: Callable[[Steps[Any]], DecisionT]
    """Runs them to their end, even if the call is cancelled."""

    def __init__(
        self,
        server: ServerT | str,
        prefix: str,
        on_error: OnError,
        on_decision: OnDecision | None,
        shadow: bool,
    ) -> None:
        if on_error not in ("local", "open", "closed", "raise"):
            raise BadArgument(f"on_error: {on_error!r} is none of 'local', 'open', 'closed', 'raise'")
        if not isinstance(prefix, str):
            raise BadArgument(f"prefix: {prefix!r} is not a str")
        if not isinstance(shadow, bool):
            raise BadArgument(f"shadow: {shadow!r} is neither True nor False")
        self.prefix = prefix
        self.server: Any = shared_server(self._of_server, server)
        self._on_error = on_error
        self._on_decision = on_decision
        self._shadow = shadow
        self._clock = self.server._clock
        self._sleep = self._clock.sleep_async if self.server._is_asynchronous else self._clock.sleep
        self.server._users.add(self)

    def _leave(self) -> bool:
        """Returns whether no other limiter uses the server's connections."""
        self.server._users.discard(self)
        return not self.server._users

    def _came_back(self, parts: Parts) -> None:
        """Forgets what no longer holds now that tokens of these buckets came back."""

    def _decide(self, parts: Parts, words: Command, call: Call) -> Steps[Decision]:
        began = self._clock.monotonic()
        decision = yield from self._ask(parts, words, call)
        return self._reported(call.chosen(parts, decision.granted) or parts, decision, began, words)

    def _reported(
        self, parts: Parts, decision: Decision, began: float, words: Command = ("TB.TAKE",)
    ) -> Decision:
        """Reports the decision on a command, and returns it as the caller gets it."""
        if self._shadow:
            decision = decision._in_shadow_mode(_wanted(words))
        self._report(parts, decision, began)
        return decision

    def _report(self, parts: Parts, decision: Decision, began: float) -> None:
        if not self._on_decision:
            return
        seconds = self._clock.monotonic() - began
        for part in {part.key: part for part in parts}.values():
            try:
                self._on_decision(part.name, part.limit, decision.each.get(part.which, decision), seconds)
            except Exception:  # the call is decided all the same
                self.server.log.exception("on_decision has failed")

    def _ask(self, parts: Parts, words: Command, call: Call | None = None) -> Steps[Decision]:
        """Returns the decision of the server, or that of `on_error`."""
        call = call or Call()
        try:
            if call.max_wait_ms and not self._shadow:
                reply = yield from self.server._ask_in_turn(words, call)
            else:
                reply = yield from self.server._ask(renewing(words) if call.renews else words, call)
        except Unanswered as unanswered:
            return self._degraded(parts, words, unanswered, call)
        return decision_of(call.chosen(parts, reply[0]), reply)

    def _degraded(self, parts: Parts, words: Command, unanswered: Unanswered, call: Call) -> Decision:
        """Returns the decision of `on_error`: `lost` if the server may have executed what is sent once."""
        lost = call.once and unanswered.sent
        is_local, local = self._on_error == "local", self.server._local
        reply = local.execute(*words) if is_local else local.mistake_in(*words)
        if isinstance(reply, ReplyError):
            raise BadArgument(str(reply)) from reply
        if self._on_error == "raise":
            kind = ReplyLost if lost else ServerAway
            raise kind(f"{self.server.name} did not decide: {unanswered}") from unanswered
        self.server.degraded_count += 1  # Python goes on with another thread at calls alone
        if self._on_error == "open":
            reply = [_wanted(words), 0, 0, 0]
        elif self._on_error == "closed":
            reply = [0, 0, int(self.server.retry_every_ms) or 1, 0]
        return decision_of(call.chosen(parts, reply[0]), reply, True, lost)

    def _reset(self, parts: Parts) -> Steps[Decision]:
        """Allowed, with full buckets, unless a server that is away keeps what it has stored."""
        degraded = False
        for part in parts:
            try:
                yield from self.server._ask(("DEL", part.key))
            except Unanswered as unanswered:
                self._degraded([part], ("TB.PEEK", *part.words), unanswered, Call())
                degraded = True
            self.server._local.execute("DEL", part.key)
        if degraded:
            return Decision(False, degraded=True)
        return Decision(True, min(int(part.limit._capacity) for part in parts), granted=1)


def decision_of(parts: Parts, reply: Sequence[Any], degraded: bool = False, lost: bool = False) -> Decision:
    """Reads a reply; the fifth element of some has the replies of all parts."""
    granted, remaining, retry_after_ms, reset_after_ms, *replies = reply
    each = {}
    if replies and parts and (parts[0].which or len(parts) > 1):
        for part, one in zip(parts, replies[0], strict=True):
            each[part.which] = decision_of([], one, degraded, lost)
    return Decision(
        bool(granted), remaining, retry_after_ms, reset_after_ms, degraded, granted, lost, each=each
    )


def words_of(parts: Parts) -> Command:
    return tuple(chain.from_iterable(part.words for part in parts))


def _wanted(words: Command) -> int:
    """Returns what the command grants at most."""
    return int(words[4]) if words[0] == "TB.TAKEUPTO" else 1


async def done(result: T | Awaitable[T]) -> T:
    """Returns what a call of a limiter has decided: at once with threads, awaited with asyncio."""
    return await result if inspect.isawaitable(result) else result


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine of threads, which never has to wait for an event loop."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a coroutine of threads has awaited something")


def checked_ms(what: str, ms: float, least: int = 0) -> float:
    if not isinstance(ms, int | float) or not least <= ms <= LONGEST_MS:
        raise BadArgument(f"{what}: {ms!r} is not from {least} to 30 days")
    return ms


def in_turn(max_wait_ms: float, share: str | None = None, weight: Number = 1) -> Call:
    """Returns the terms of a call that may wait. Raises BadArgument before anything is sent."""
    call = Call(max_wait_ms=checked_ms("max_wait_ms", max_wait_ms))
    if share is None:
        if weight != 1:
            raise BadArgument(f"weight: {weight!r} is of no share: set share= as well")
        return call
    if not isinstance(share, str) or not 0 < len(share.encode("utf-8", "surrogatepass")) <= MOST_SHARE_BYTES:
        raise BadArgument(f"share: {share!r} is not a str of 1 to {MOST_SHARE_BYTES} bytes")
    exact = exactly(weight)
    if exact is None or not LEAST_WEIGHT <= exact <= MOST_WEIGHT:
        raise BadArgument(f"weight: {weight!r} is not from 0.001 to 1000")
    call.share = ("SHARE", share, "WEIGHT", f"{Decimal(str(weight)):f}")
    return call
