"""Asking a server: whether it is worth a try, what to send, and what an error means.

Nothing here waits or sends. `BaseServer._ask` is a generator that yields calls and is sent replies, so that
threads and asyncio share every decision and differ in how they wait, see `threads.py` and `tasks.py`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar
from weakref import WeakSet

from ..local.clock import REAL, Clock, unix_ms_now
from ..local.fork import begins_anew_after_fork
from ..local.limiter import LocalLimiter
from ..values.constants import MOST_REDIRECTIONS, RETRY_EVERY_MS, TIMEOUT_MS, TRIES_OF_A_SPLIT_SLOT
from ..values.errors import (
    BadArgument,
    CrossSlot,
    ModuleMissing,
    ReplyError,
    TokenBucketError,
    Unanswered,
)
from .call import Attempt, Call, Steps
from .circuit import Circuit
from .commands import NEED_THE_MODULE, Command, by_script, key_of, script
from .driver import client_of, endpoints_of
from .slots import Slots

LOG = logging.getLogger("tokenbucket")
MOST_LOCAL_NAMES = 10_000
# Nothing was done: the slot moves, and some of the keys have gone ahead, or the call waited at a node
# that no longer decides it.
_NOT_HERE_NOW = {"TRYAGAIN", "UNBLOCKED"}

Client = TypeVar("Client")


class _Log(logging.LoggerAdapter[logging.Logger]):
    """A logger whose handlers may fail, which changes no decision."""

    def log(self, *arguments: Any, **options: Any) -> None:
        with contextlib.suppress(Exception):
            super().log(*arguments, stacklevel=2, **options)


class BaseServer(Generic[Client]):
    """One server or cluster, shared by all limiters on it.

    `client` is a client of redis-py or valkey-py, or a URL; connections are made as it makes them, and
    are the server's own. The server is away when it has been silent for `timeout_ms`, on all
    connections; then one call every `retry_every_ms` asks it, and `on_error` of each limiter decides
    the others. `by="script"`: a Lua script decides in place of the module.

    >>> from tokenbucket import Limit, Limiter, Server
    >>> from tokenbucket.testing import FakeServer
    >>> server = Server(FakeServer(), timeout_ms=50)  # or "redis://localhost:6379", or redis.Redis()
    >>> searches = Limiter(server, Limit(10, "5/s"), "tb:search:")
    >>> logins = Limiter(server, Limit(5, "5/15m"), "tb:login:", on_error="closed")
    """

    _is_asynchronous: bool
    _of_transport: Any
    """What sends the calls to one node."""
    _settle_in: Callable[[float], None]
    """Settles holds in doubt by their ids after so many seconds, or once the server answers."""

    def __init__(
        self,
        client: Client | str,
        *,
        timeout_ms: float = TIMEOUT_MS,
        retry_every_ms: float = RETRY_EVERY_MS,
        by: Literal["module", "script"] = "module",
        log: logging.Logger = LOG,
    ) -> None:
        if not isinstance(timeout_ms, int | float) or not 0 < timeout_ms < math.inf:
            raise BadArgument(f"timeout_ms: {timeout_ms!r} is not a number above 0")
        if not isinstance(retry_every_ms, int | float) or not retry_every_ms >= 0:
            raise BadArgument(f"retry_every_ms: {retry_every_ms!r} is not a number of at least 0")
        if by not in ("module", "script"):
            raise BadArgument(f"by: {by!r} is neither 'module' nor 'script'")
        self.timeout_ms = timeout_ms
        self.retry_every_ms = retry_every_ms
        self.by = by
        self.log = _Log(log, {})
        self._set_up()
        self._local = LocalLimiter(unix_ms_now, MOST_LOCAL_NAMES)
        """The buckets of this process, which decide while the server does not."""
        self._users: WeakSet[Any] = WeakSet()
        """The limiters that are not closed."""
        self.degraded_count = 0
        """How many decisions `on_error` made in this process, because the server did not."""
        self._slots: Slots | None = None
        self._circuit: Circuit | None = None
        self._fake: Any = getattr(client, "_tokenbucket_fake", None)
        self._clock: Clock = self._fake or REAL
        given = client_of(client, self._is_asynchronous) if isinstance(client, str) else client
        if self._fake:
            self._of_transport = self._fake._transport_for(self._is_asynchronous)
            endpoints, manager = [self._fake], None
        else:
            endpoints, manager = endpoints_of(given, self._is_asynchronous)
        # Of Sentinel's pool a connection knows but a weak reference.
        self._keeps = manager or getattr(given, "connection_pool", None)
        if manager is not None:
            self._slots = Slots(endpoints, manager, lambda endpoint: Circuit(endpoint, self, "node"))
        else:
            self._circuit = Circuit(endpoints[0], self, "server")
        begins_anew_after_fork(self)

    @property
    def name(self) -> str:
        """Returns its address, of a cluster those of its nodes, for logs and errors."""
        return ", ".join(circuit.name for circuit in self._circuits())

    def _set_up(self) -> None:
        """Makes what only threads, or only asyncio, need."""

    def _begin_anew(self) -> None:
        self._local._begin_anew()
        for circuit in self._circuits():
            circuit._begin_anew()
            circuit.transport._begin_anew()

    def _circuits(self) -> list[Circuit]:
        circuits = list(self._slots.circuits.values()) if self._slots else []
        return [self._circuit] if self._circuit else circuits

    # The steps.

    def _ask(self, command: Command, call: Call | None = None) -> Steps[Any]:
        """Returns the reply. Raises Unanswered if the server does not decide."""
        call = call or Call()
        words = self._form(command, call)
        circuit = self._circuit or (yield from self._circuit_of(key_of(words)))
        return (yield from self._route(circuit, words, call))

    def _form(self, command: Command, call: Call | None = None) -> Command:
        """Returns what is sent: the command, or its form for the script."""
        if self.by == "module":
            return command
        if command[0] in NEED_THE_MODULE or (call and call.share):
            raise ModuleMissing(
                "holds, shares and alternatives need the module, and this Server decides by='script'"
            )
        return command if self._fake else by_script(command)

    def _settle_last(self, holds: list[Command]) -> Steps[list[Any]]:
        for circuit in self._circuits():
            circuit.let_ask()
        return self._ask_each(holds)

    def _ask_each(self, commands: list[Command]) -> Steps[list[Any]]:
        """Returns the reply to each or its error, None for no answer, by one write to each node."""
        replies: list[Any] = [None] * len(commands)
        groups: dict[Circuit | None, list[int]] = {}
        words = [self._form(one) for one in commands]
        for at, one in enumerate(words):
            circuit = self._slots.circuit_of(key_of(one)) if self._slots else self._circuit
            groups.setdefault(circuit, []).append(at)
        for circuit, places in groups.items():
            if circuit is not None and circuit.admits():
                with contextlib.suppress(Unanswered, TokenBucketError):
                    heard = yield Attempt(circuit, tuple(words[at] for at in places))
                    for at, one in zip(places, heard, strict=True):
                        replies[at] = one
        for at, reply in enumerate(replies):
            if isinstance(reply, ReplyError):  # as of a slot that has moved, or without the module
                try:
                    replies[at] = yield from self._ask(commands[at], Call(once=True))
                except Unanswered:
                    replies[at] = None
                except TokenBucketError as error:
                    replies[at] = error
        return replies

    def _ask_in_turn(self, command: Command, call: Call) -> Steps[Any]:
        """Returns the reply to a command that waits its turn in the server, at most `max_wait_ms`.

        It asks without waiting first, so that only a call that has to wait takes a connection for itself.
        By the script, and in a fake, no call can wait there: the command is sent again when it may be
        granted.
        """
        until = self._clock.monotonic() + call.max_wait_ms / 1000
        while True:
            reply = yield from self._ask(command, call)
            allowed, _, retry_after_ms, *_ = reply
            pause_s = max(retry_after_ms, 1) / 1000
            if allowed or retry_after_ms < 0:
                return reply
            if self.by == "module" and self._fake is None:
                call.until = until
                return (yield from self._ask(command, call))
            if self._clock.monotonic() + pause_s > until:
                return reply
            call.pause_s = pause_s

    def _circuit_of(self, key: str) -> Steps[Circuit]:
        """Returns the node of the bucket. While it is away, asks another where its slots are now."""
        assert self._slots is not None
        circuit = self._slots.circuit_of(key)
        if circuit is None or (circuit.away_until and circuit.admits()):
            circuit = yield from self._look_for(key, self._slots)
            if circuit is None:
                raise Unanswered(f"no node has the slot of {key!r}")
            now = time.monotonic()
            if circuit.away_until > now:  # it is this call that asks
                circuit.away_until = now
        return circuit

    def _look_for(self, key: str, slots: Slots, besides: Circuit | None = None) -> Steps[Circuit | None]:
        """Asks a node which one has the key, and the next if that refuses the connection.

        A node that is silent has used the time of the call: the next call asks another.
        """
        until, circuit = time.monotonic() + self.timeout_ms / 1000, None
        for _ in range(len(slots.circuits)):
            asked = slots.whom_to_ask(besides)
            with contextlib.suppress(Unanswered):
                slots.learn((yield from self._route(asked, ("CLUSTER", "SLOTS"), Call())), asked)
            circuit = slots.circuit_of(key)
            if circuit or not asked.away_until or time.monotonic() > until:
                break
        return circuit

    def _route(self, circuit: Circuit, command: Command, call: Call) -> Steps[Any]:
        """Sends it, follows redirections, sends again where nothing was done, and judges errors."""
        repeated = sure = asking = False
        first, tries = circuit, 0
        for _ in range(MOST_REDIRECTIONS + 2 * TRIES_OF_A_SPLIT_SLOT):
            if circuit.away_until and not (sure or circuit.admits()):
                raise Unanswered(f"{circuit.name} is away", sent=call.was_sent)
            attempt = Attempt(circuit, (("ASKING",), command) if asking else (command,), call)
            try:
                *_, reply = yield attempt
            except Unanswered as unanswered:
                call.was_sent = unanswered.sent = call.was_sent or unanswered.sent
                # Sent again on another connection: the server may have been restarted meanwhile.
                if repeated or not unanswered.broken or (call.once and unanswered.sent):
                    raise
                repeated = True
                continue
            asking = False
            if type(reply) is not ReplyError:
                return reply
            if reply.word in ("MOVED", "ASK") and self._slots is not None:
                circuit, asking = self._slots.redirected(str(reply), circuit), reply.word == "ASK"
            elif reply.word in _NOT_HERE_NOW and tries < TRIES_OF_A_SPLIT_SLOT:
                circuit, tries = first, tries + 1
                call.pause_s = circuit.timeout_s / TRIES_OF_A_SPLIT_SLOT
            elif reply.word == "READONLY" and not sure:
                if circuit.moves():
                    circuit.transport.drop()  # the endpoint has moved, and the master is behind it again
                sure = True
            elif reply.is_unserved and self._slots is not None and circuit.moves():
                # A node that has left says so of every slot: another may know who has this one.
                circuit = (yield from self._look_for(key_of(command), self._slots, circuit)) or circuit
            elif reply.word == "NOSCRIPT":
                yield from self._route(circuit, ("SCRIPT", "LOAD", script()[0]), Call())
            else:
                self._error(circuit, reply)
        raise Unanswered(f"{circuit.name} redirects in circles")

    def _error(self, circuit: Circuit, error: ReplyError) -> None:
        if error.is_refusing:
            circuit.refused(error)
        if error.is_away or error.is_refusing:
            raise Unanswered(error)
        if error.word == "MOVED":
            raise BadArgument(f"client: {circuit.name} is a node of a cluster: use the cluster client")
        if error.word == "CROSSSLOT":
            advice = "the names of one call have to share a hash tag, as in '{ada}:requests'"
            raise CrossSlot(f"name: in a cluster, {advice}") from error
        if "unknown command" in str(error) and self.by == "module":
            advice = (
                "load it, or make a Server with by='script'; the script has no holds, shares or alternatives"
            )
            raise ModuleMissing(f"{circuit.name} has no tokenbucket module: {advice}") from error
        kind = BadArgument if error.word == "ERR" else TokenBucketError
        raise kind(f"{error} ({circuit.name})") from error
