"""How asyncio asks: all calls of an event loop share one connection to a node, and one write a round.

Calls are pipelined, so none waits for a connection of a pool. Only a call that waits its turn in the
server has a connection for itself. Any task may be cancelled
at any time, even all of them at once: a task that ends early ends its connection, and the next call makes
another.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..values.constants import IDLE_S, PULSE_S
from ..values.errors import Unanswered
from .call import PING, Attempt
from .circuit import Circuit
from .driver import packed, reply_of

T = TypeVar("T")

# Silence is counted in turns of the event loop, so many in the time a call waits: a busy loop takes few.
_TURNS = 5
# How many times longer a call may last while others are answered.
_OLD = 3
# How many times longer than a call waits for it a connection may take that is kept.
_CONNECTS_WITHIN = 5
# More at once than the backlog of a server has room for would be late.
_MOST_CONNECTING = 64


class Tasks(set[asyncio.Task[Any]]):
    """Tasks that run to their end, whatever becomes of their callers."""

    def begin(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> asyncio.Task[T]:
        task = loop.create_task(work)
        self.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.discard(task)
        if not task.cancelled():
            task.exception()  # its waiters get it

    async def end_here(self) -> None:
        """Waits for those of the event loop that runs."""
        loop = asyncio.get_running_loop()
        if here := [task for task in tuple(self) if task.get_loop() is loop]:
            await asyncio.wait(here)


class Connection:
    """A connection of the driver, and the calls that await replies, in order."""

    def __init__(self, transport: Transport) -> None:
        self._transport, self.circuit, self._loop = transport, transport.circuit, transport.loop
        self._raw: Any = None
        self.is_open, self._is_connected = True, False
        self._sent: deque[Attempt] = deque()
        self._unsent: list[Attempt] = []
        self._began = self._heard_at = time.monotonic()
        self._looking: asyncio.TimerHandle | None = None
        self._turn = self._heard_in = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.connecting = self._task(self._connect())
        transport.connections.add(self)

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._transport.tasks.begin(work, self._loop)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        """Called for each task: one that is cancelled before its first step runs no line of its own."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if not self.is_open or (error is None and not task.cancelled()):
            return
        if not isinstance(error, Exception):
            self.end(Unanswered("its task was cancelled", sent=True, broken=True))
            return
        error = self.circuit.endpoint.without_secrets(error)
        why = self.circuit.endpoint.why_it_failed(error, sent=self._is_connected)
        if not self._is_connected and isinstance(why, Unanswered):
            self.circuit.failed(error, self._began)
        self.end(why)

    async def _connect(self) -> None:
        self._raw = self.circuit.endpoint.new(None, self.circuit.timeout_s)  # the looks bound the time in all
        await self._raw.connect()
        self._is_connected = True
        self.circuit.connected()
        self._look_in(self._turn_s)  # sooner than for a connection
        self._flush()

    # Calls.

    @property
    def has_calls(self) -> bool:
        return bool(self._sent or self._unsent)

    def send(self, attempt: Attempt) -> asyncio.Future[Any]:
        """Sends it with all that is asked for in this round of the event loop."""
        attempt.future, attempt.replies, attempt.sent_in = self._loop.create_future(), [], self._turn
        if self._is_connected and not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(attempt)
        if self._looking is None:
            self._look_in(self._turn_s)
        return attempt.future  # type: ignore[no-any-return]

    def _flush(self) -> None:
        if self._unsent and self.is_open:
            self._task(self._write_and_read())

    async def _write_and_read(self) -> None:
        """Ends with the last reply that is on its way, so that no task is left to an idle event loop."""
        if not self._sent and time.monotonic() - self._heard_at > IDLE_S and await _has_ended(self._raw):
            self.end(Unanswered("the server has closed the connection", broken=True))
            return
        calls, self._unsent = self._unsent, []
        # A cancelled call is left out.
        calls = [attempt for attempt in calls if not attempt.future.done()]
        if not calls or not self.is_open:
            return
        is_reading = bool(self._sent)
        for attempt in calls:  # silence begins with the write
            attempt.sent_in = self._turn
        self._sent.extend(calls)
        words = [words for attempt in calls for words in attempt.to_send()]
        await self._raw.send_packed_command(packed(self._raw, words), check_health=False)
        while not is_reading and self._sent and self.is_open:
            try:
                reply = await self._raw.read_response(disconnect_on_error=False)
            except Exception as error:
                reply = reply_of(error)
            if self.is_open:
                self._heard(reply)

    def _heard(self, reply: Any) -> None:
        attempt = self._sent[0]
        self.circuit.heard(reply)
        self._heard_at, self._heard_in = time.monotonic(), self._turn
        attempt.replies.append(reply)
        if len(attempt.replies) == len(attempt.words):
            self._sent.popleft()
            if not attempt.future.done():
                attempt.future.set_result(attempt.replies)

    def end(self, why: Exception) -> None:
        """Closes it: its calls get no reply any more."""
        if not self.is_open:
            return
        self.is_open = False
        unsent = Unanswered(why, broken=why.broken) if isinstance(why, Unanswered) else why
        for attempt in self._sent:
            _fail(attempt, why)
        for attempt in self._unsent:
            _fail(attempt, unsent)
        self._sent.clear()
        self._unsent.clear()
        if self._looking is not None:
            self._looking.cancel()
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        self._transport.connections.discard(self)
        if self._raw is not None and not self._loop.is_closed():
            self._transport.tasks.begin(_disconnect(self._raw), self._loop)

    # Silence.

    @property
    def _patience_s(self) -> float:
        return self.circuit.timeout_s if self._is_connected else self.circuit.connect_within_s

    @property
    def _turn_s(self) -> float:
        return self._patience_s / _TURNS

    def _look_in(self, delay_s: float) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self._looking = self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        """Judges whether the server is silent: one that goes on to answer may leave a call too old."""
        self._looking = None
        first = next(iter(self._sent or self._unsent), None)
        if first is None or not self.is_open:
            return
        if first.call.until is not None and self._sent:
            self._look_at_wait(first)
            return
        self._turn += 1
        if self._turn - max(first.sent_in, self._heard_in) > _TURNS:
            self._is_silent(self._patience_s)
        elif self._turn - first.sent_in > _OLD * _TURNS:
            self._is_silent(0)
        else:
            self._look_in(self._turn_s)

    def _is_silent(self, for_s: float) -> None:
        circuit, now = self.circuit, time.monotonic()
        if self._is_connected:
            self.end(circuit.silent("reply", now - for_s, self._patience_s, sent=True))
            return
        why = circuit.silent("connection", now - for_s, self._patience_s)
        if now - self._began > _CONNECTS_WITHIN * self._patience_s:
            self.end(why)
        else:  # it may still come, as from the second of two sentinels
            calls, self._unsent = self._unsent, []
            for attempt in calls:
                _fail(attempt, why)

    def _look_at_wait(self, attempt: Attempt) -> None:
        """Makes sure that the server answers others."""
        circuit = self.circuit
        left_s = attempt.left_s + 2 * circuit.timeout_s
        if circuit.failed_at > self._began or left_s < 0:
            self.end(Unanswered(f"{circuit.name} is away, or does not end a wait", sent=True))
            return
        if time.monotonic() - circuit.last_heard > min(PULSE_S, circuit.timeout_s):
            self._transport.shared().send(Attempt(circuit, PING))
        self._look_in(min(PULSE_S, left_s))


def _fail(attempt: Attempt, error: Exception) -> None:
    if not attempt.future.done():
        attempt.future.set_exception(error)
        # A cancelled caller, or a PING, does not retrieve it.
        attempt.future.exception()


async def _has_ended(raw: Any) -> bool:
    """Returns whether the server has closed a connection that is idle."""
    can_read = getattr(raw, "can_read", None) or raw.can_read_destructive
    return bool(await can_read())


async def _disconnect(raw: Any) -> None:
    with contextlib.suppress(Exception):
        await raw.disconnect(nowait=True)


class Transports:
    """The connections to one node: each event loop has its own."""

    def __init__(self, circuit: Circuit) -> None:
        self._circuit = circuit
        self._of: dict[asyncio.AbstractEventLoop, Transport] = {}
        self._left_behind: list[Any] = []

    def here(self) -> Transport:
        """Returns those of the event loop that runs, and forgets those of closed ones."""
        loop = asyncio.get_running_loop()
        if loop not in self._of:
            for other in [one for one in list(self._of) if one.is_closed()]:
                self._of.pop(other, None)
            self._of[loop] = Transport(loop, self._circuit)
        return self._of[loop]

    @property
    def is_in_use(self) -> bool:
        return any(
            one.has_calls for transport in tuple(self._of.values()) for one in tuple(transport.connections)
        )

    def drop(self) -> None:
        self.here().drop()

    def _begin_anew(self) -> None:
        """In a process that was forked: kept, not closed, since the event loop is the parent's too."""
        self._left_behind.append(self._of)
        self._of = {}

    async def close(self) -> None:
        if transport := self._of.pop(asyncio.get_running_loop(), None):
            await transport.close()


class Transport:
    """The connections of one event loop to one node."""

    def __init__(self, loop: asyncio.AbstractEventLoop, circuit: Circuit) -> None:
        self.loop, self.circuit = loop, circuit
        self._shared: Connection | None = None
        self.connections: set[Connection] = set()
        self._turns_to_connect = asyncio.Semaphore(_MOST_CONNECTING)
        self.tasks = Tasks()

    def shared(self) -> Connection:
        """Returns that by which all calls are sent that do not wait in the server."""
        if self._shared is None or not self._shared.is_open:
            self._shared = Connection(self)
        return self._shared

    async def exchange(self, attempt: Attempt) -> Any:
        if attempt.call.pause_s:
            await asyncio.sleep(attempt.call.pause_s)
            attempt.call.pause_s = 0.0
        if attempt.call.until is None:
            return await self.shared().send(attempt)
        connection: Connection | None = None
        began = time.monotonic()
        try:
            async with self._turns_to_connect:
                if self.circuit.failed_at > began:
                    raise Unanswered(f"{self.circuit.name} is away")
                connection = Connection(self)
                reply = connection.send(attempt)
                await asyncio.wait([connection.connecting, reply], return_when=asyncio.FIRST_COMPLETED)
            return await reply
        finally:  # a cancelled call leaves the queue with its connection
            if connection is not None:
                connection.end(Unanswered("its caller has left", sent=True))

    def drop(self) -> None:
        """Closes the connection of all, since the endpoint has moved: its calls are sent again elsewhere."""
        if self._shared is not None:
            self._shared.end(Unanswered("the endpoint has moved", sent=True, broken=True))

    async def close(self) -> None:
        for connection in list(self.connections):
            connection.end(Unanswered("the limiter was closed", sent=True))
        await self.tasks.end_here()
