"""What all limiters do, for threads and asyncio alike: operations as steps, see `transport/server.py`.

What does more than ask the server is written once as well, as coroutines: those of threads await nothing
that is not over already.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

from ..local.fork import begins_anew_after_fork
from ..transport.call import Steps, Terms
from ..transport.commands import Command, Word, command, renewing, script_key
from ..transport.server import BaseServer
from ..values.decision import Decision, JointDecision
from ..values.errors import BadArgument, ReplyError, ReplyLost, ServerAway, Unanswered
from ..values.limit import Limit, Number

T = TypeVar("T")
OnError = Literal["local", "open", "closed", "raise"]
OnDecision = Callable[[str, Limit, Decision, float], None]
"""Called with the name, the limit, the decision and how many seconds it took."""

MAX_WAIT_MS = 30 * 86_400_000
MOST_SHARE_BYTES = 128
LEAST_WEIGHT, MOST_WEIGHT = Decimal("0.001"), Decimal(1000)


@dataclass(frozen=True, slots=True)
class Part:
    """One of several buckets that a command is about."""

    which: str
    """What the caller calls its limit."""
    key: str
    name: str
    limit: Limit
    amount: Number


class _Shared:
    """The servers that limiters have made, by their URLs."""

    def __init__(self) -> None:
        self.by_url: WeakValueDictionary[tuple[Any, str], BaseServer[Any]] = WeakValueDictionary()
        self._begin_anew()
        begins_anew_after_fork(self)

    def _begin_anew(self) -> None:
        self.lock = threading.RLock()


_shared = _Shared()


def shared_server(kind: Any, client: Any) -> Any:
    """Returns the server that was given, or the one that all limiters on this client share."""
    if isinstance(client, kind):
        return client
    if isinstance(client, BaseServer):
        package = "tokenbucket.asyncio" if client._is_asynchronous else "tokenbucket"
        raise BadArgument(f"client: a {package}.Server is not for these limiters")
    if isinstance(client, str):
        with _shared.lock:
            return _shared.by_url.get((kind, client)) or _shared.by_url.setdefault(
                (kind, client), kind(client)
            )
    # Kept where its connections come from, so that it lives as long.
    place = getattr(client, "nodes_manager", None) or getattr(client, "connection_pool", None)
    if not hasattr(place, "__dict__"):  # as the node manager of asyncio
        place = client
    known = getattr(place, "tokenbucket_server", None)
    if known is None:
        made = kind(client)
        known = vars(place).setdefault("tokenbucket_server", made)  # one for all threads
    if not isinstance(known, kind):
        kind(client)  # says why not
    return known


class Backend:
    """One server, and what to do without it."""

    _of_server: type[BaseServer[Any]]
    """What a limiter of this kind asks."""

    def __init__(
        self, server: Any, prefix: str, on_error: OnError, on_decision: OnDecision | None, shadow: bool
    ) -> None:
        if on_error not in ("local", "open", "closed", "raise"):
            raise BadArgument(f"on_error: {on_error!r} is none of 'local', 'open', 'closed', 'raise'")
        if not isinstance(shadow, bool):
            raise BadArgument(f"shadow: {shadow!r} is neither True nor False")
        server = shared_server(self._of_server, server)
        self.prefix = prefix
        self.server: Any = server
        self._on_error = on_error
        self._on_decision = on_decision
        self._shadow = shadow
        self._clock = server._clock
        self._sleep = self._clock.sleep_async if server._is_asynchronous else self._clock.sleep
        server._users.add(self)

    def _leave(self) -> bool:
        """Returns whether no other limiter uses the server's connections."""
        self.server._users.discard(self)
        return not self.server._users

    def _told(
        self, name: str, limit: Limit, decision: Decision, began: float, words: Command = ("TB.TAKE",)
    ) -> Decision:
        """Reports the decision on a command, and returns it as the caller gets it."""
        if self._shadow:
            decision = decision._in_shadow_mode(_wanted(words))
        self._tell(name, limit, decision, began)
        return decision

    def _tell(self, name: str, limit: Limit, decision: Decision, began: float) -> None:
        if self._on_decision:
            try:
                self._on_decision(name, limit, decision, self._clock.monotonic() - began)
            except Exception:  # the call is decided all the same
                self.server.log.exception("on_decision has failed")

    def _tell_all(self, parts: Sequence[Part], decision: JointDecision, began: float) -> None:
        for part in parts:
            self._tell(part.name, part.limit, decision.each.get(part.which, decision), began)

    def _came_back(self, parts: Sequence[Part]) -> None:
        """Forgets what no longer holds now that a hold of these buckets is settled."""

    def _key(self, name: str) -> str:
        if not isinstance(name, str):
            raise BadArgument(f"name: {name!r} is not a str")
        return self.prefix + name

    def _degraded(self, words: Command, unanswered: Unanswered, once: bool) -> tuple[Any, bool]:
        """Returns the reply of `on_error`, and whether the server's was lost."""
        lost = once and unanswered.sent
        is_local, local = self._on_error == "local", self.server._local
        reply = local.execute(*words) if is_local else local.mistake_in(*words)
        if isinstance(reply, ReplyError):
            raise BadArgument(str(reply)) from reply
        if self._on_error == "raise":
            kind = ReplyLost if lost else ServerAway
            raise kind(f"{self.server.name} did not decide: {unanswered}") from unanswered
        self.server.degraded_count += 1  # Python goes on with another thread at calls alone
        if is_local:
            return reply, lost
        if self._on_error == "open":
            return [_wanted(words), 0, 0, 0], lost
        return [0, 0, int(self.server.retry_every_ms) or 1, 0], lost

    def _ask(self, words: Command, terms: Terms | None = None) -> Steps[tuple[Any, bool, bool]]:
        """Returns the reply, whether it is `on_error`'s, and whether the server's was lost."""
        terms = terms or Terms()
        try:
            if terms.max_wait_ms and not self._shadow:
                reply = yield from self.server._ask_in_turn(words, terms)
            else:
                reply = yield from self.server._ask(renewing(words) if terms.renews else words, terms)
            return reply, False, False
        except Unanswered as unanswered:
            reply, lost = self._degraded(words, unanswered, terms.once)
            return reply, True, lost

    def _decide(self, name: str, limit: Limit, words: Command, terms: Terms) -> Steps[Decision]:
        began = self._clock.monotonic()
        decision = Decision._read(*(yield from self._ask(words, terms)))
        return self._told(name, limit, decision, began, words)

    def _decide_all(
        self, parts: Sequence[Part], *words: Word, terms: Terms | None = None
    ) -> Steps[JointDecision]:
        """The reply to a command that is followed by the arguments of each part."""
        reply, degraded, lost = yield from self._ask((*words, *words_of(parts)), terms)
        if len(reply) == 4:  # by `on_error`, or by a hold with a share, which is of one bucket
            reply = [*reply, [] if degraded else [reply]]
        which = [part.which for part in parts] if reply[4] else []
        return JointDecision._read_each(reply, which, degraded, lost)

    def _reset(self, keys: Sequence[str], limits: Iterable[Limit]) -> Steps[Decision]:
        """Allowed, with full buckets, unless a server that is away keeps what it has stored."""
        degraded = False
        both = keys if self.server.fallback is None else [*keys, *map(script_key, keys)]
        for key in both:
            try:
                yield from self.server._ask(("DEL", key))
            except Unanswered as unanswered:
                self._degraded(("DEL", key), unanswered, False)
                degraded = True
        for key in keys:
            self.server._local.execute("DEL", key)
        if degraded:
            return Decision(False, degraded=True)
        return Decision(True, min(int(limit._capacity) for limit in limits), granted=1)


def words_of(parts: Sequence[Part]) -> Command:
    return tuple(chain.from_iterable(command(part.key, part.limit, part.amount) for part in parts))


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


def checked_wait(max_wait_ms: float) -> float:
    if not 0 <= max_wait_ms <= MAX_WAIT_MS:
        raise BadArgument(f"max_wait_ms: {max_wait_ms!r} is not from 0 to 30 days")
    return max_wait_ms


def in_turn(max_wait_ms: float, share: str | None = None, weight: Number = 1) -> Terms:
    """Returns the terms of a call that may wait. Raises BadArgument before anything is sent."""
    terms = Terms(max_wait_ms=checked_wait(max_wait_ms))
    if share is None:
        if weight != 1:
            raise BadArgument(f"weight: {weight!r} is of no share: set share= as well")
        return terms
    if not isinstance(share, str) or not 0 < len(share.encode("utf-8", "surrogatepass")) <= MOST_SHARE_BYTES:
        raise BadArgument(f"share: {share!r} is not a str of 1 to {MOST_SHARE_BYTES} bytes")
    try:
        exact = Decimal(str(weight))
        is_weight = LEAST_WEIGHT <= exact <= MOST_WEIGHT
    except InvalidOperation:
        is_weight = False
    if not is_weight:
        raise BadArgument(f"weight: {weight!r} is not from 0.001 to 1000")
    terms.share = ("SHARE", share, "WEIGHT", f"{exact:f}")
    return terms
