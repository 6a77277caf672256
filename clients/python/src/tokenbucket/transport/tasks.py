"""How asyncio asks: all calls of an event loop share one connection to a node, and one write a round.

A call is sent behind those whose replies are still on their way, so no call waits for a connection of a
pool, and a caller that is cancelled breaks nothing. Only a call that waits its turn in the server has a
connection for itself. All time is counted in ticks of the event loop: a loop that is busy is no outage.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from ..values.errors import Unanswered
from .call import PING, Call
from .circuit import IDLE_S, TICKS, Node
from .commands import Command
from .driver import CONNECT_WITHIN_S, is_callers_fault, packed, reply_of, why_it_failed

T = TypeVar("T")

_MOST_CONNECTING = 8
# No tick is needed while all calls wait in the server.
_LONGEST_NAP_S = 1.0
IDLE_CLOSES_S = 5.0
"""When a connection is closed by which no call waits."""


class Connection:
    """One of the driver's, and the calls whose replies are on their way, in order."""

    def __init__(self, transport: Transport, raw: Any, is_reusable: bool) -> None:
        self.transport = transport
        self.raw = raw
        self.is_reusable = is_reusable
        """Another call may wait by it when its own does no longer."""
        self.sent: deque[Call] = deque()
        self.heard_at = 0.0
        self.is_open = True
        self.is_silent = False
        """Its calls were given up, but what comes late is still read."""
        self._reading: asyncio.Task[None] | None = None

    def send(self, calls: list[Call]) -> None:
        words: list[Command] = []
        for call in calls:
            call.by, call.tick = self, self.transport.tick
            words += call.to_send()
        self.sent.extend(calls)
        data = packed(self.raw, words)
        if self._reading is None:
            self._reading = self.transport.detach(self._write_and_read(data))
        else:
            self.transport.detach(self._write(data))

    async def _write(self, data: Any) -> None:
        try:
            if self.is_open:  # a driver's connection that was closed would connect anew
                await self.raw.send_packed_command(data, check_health=False)
        except Exception as error:
            self.end(Unanswered(error, sent=True, broken=True))

    async def _write_and_read(self, data: Any) -> None:
        """Ends with the last reply that is on its way, so that no task is left to an idle event loop."""
        why = Unanswered("the connection was closed", sent=True)
        try:
            await self._write(data)
            while self.sent and self.is_open:
                try:
                    reply = await self.raw.read_response(disconnect_on_error=False)
                except Exception as error:
                    reply = reply_of(error)
                self._heard(reply)
        except Exception as error:
            why = Unanswered(error, sent=True, broken=True)
        finally:
            self._reading = None
            if self.sent:
                self.end(why)

    def _heard(self, reply: Any) -> None:
        transport, call = self.transport, self.sent[0]
        self.heard_at = transport.loop.time()
        transport.node.heard(reply, self.heard_at)
        call.replies.append(reply)
        if call.is_answered:
            self.sent.popleft()
            call.is_over = True
            if call.future.done():
                transport.server.leave(call)
            else:
                call.future.set_result(call.reply)
            transport.answered(self)
        if self.sent:
            self.sent[0].tick = transport.tick

    def end(self, why: Unanswered) -> None:
        """Closes it. Calls on their way get no reply any more."""
        if not self.is_open:
            return
        self.is_open = False
        self.transport.ended(self, why)
        calls, self.sent = self.sent, deque()
        for call in calls:
            fail(call, why)
            call.is_over = True
            self.transport.server.leave(call)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        with contextlib.suppress(Exception):
            await self.raw.disconnect(nowait=True)


def fail(call: Call, error: Exception) -> None:
    if not call.future.done():
        call.future.set_exception(error)
        # A caller who was cancelled meanwhile does not look at it.
        call.future.exception()


def of_loop(known: dict[Any, T], new: Callable[[asyncio.AbstractEventLoop], T]) -> T:
    """Returns what belongs to the event loop that runs, and forgets what belongs to closed ones."""
    loop = asyncio.get_running_loop()
    if loop not in known:
        for other in list(known):
            if other.is_closed():
                known.pop(other, None)
        known[loop] = new(loop)
    return known[loop]


class Transports:
    """The connections to one node: each event loop has its own."""

    def __init__(self, node: Node, server: Any) -> None:
        self._new = lambda loop: Transport(loop, node, server)
        self._of: dict[asyncio.AbstractEventLoop, Transport] = {}
        self._left_behind: list[Any] = []

    def here(self) -> Transport:
        return of_loop(self._of, self._new)

    def drop(self, connection: Connection) -> None:
        self.here().drop(connection)

    def forget(self) -> None:
        """In a process that was forked: kept, not closed, since the event loop is the parent's too."""
        self._left_behind.append(self._of)
        self._of = {}

    async def close(self) -> None:
        if transport := self._of.pop(asyncio.get_running_loop(), None):
            await transport.close()


class Transport:
    """The connections of one event loop to one node."""

    def __init__(self, loop: asyncio.AbstractEventLoop, node: Node, server: Any) -> None:
        self.loop = loop
        self.node = node
        self.server = server
        self.detach = server.detach
        self.tick = 0
        self._connect_within_s = max(CONNECT_WITHIN_S, node.timeout_s)
        self._shared: Connection | None = None
        """By which all calls are sent that do not wait in the server."""
        self._all: set[Connection] = set()
        self._idle: list[Connection] = []
        """By which calls have waited."""
        self._unsent: list[Call] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._connecting: dict[asyncio.Task[Any], int] = {}
        self._turns_to_connect = asyncio.Semaphore(_MOST_CONNECTING)
        self._is_connecting_shared = self._is_closed = False
        self._ticking: asyncio.TimerHandle | None = None
        self._last_heard = 0.0
        self._heard_tick = 0

    async def exchange(self, call: Call) -> Any:
        if call.once and self._shared and self.loop.time() - self._shared.heard_at > IDLE_S:
            # A connection that was idle is replaced by one that answers.
            try:
                await self.exchange(Call(self.node, PING))
            except Unanswered as unanswered:
                if not unanswered.broken:
                    raise Unanswered(unanswered) from unanswered
        future = call.future = self.loop.create_future()
        if call.until is None:
            call.tick = self.tick
            if not self._unsent:
                self.loop.call_soon(self._flush)
            self._unsent.append(call)
        else:
            connection = self._idle.pop() if self._idle else await self._connected(for_waits=True)
            connection.send([call])
            self._begin_ticking()
        try:
            return await future
        except asyncio.CancelledError:
            call.undo = True
            self.server.leave(call)
            if call.until is not None and not call.is_over:
                self.server.spawn(self.server.end_wait(call))
            raise

    # Calls that do not wait in the server.

    def _flush(self) -> None:
        """Sends in one write what was asked for in one round of the event loop."""
        if not self._unsent:
            return
        self._begin_ticking()
        if self._shared is not None:
            # A call is left out whose caller has gone.
            calls = [call for call in self._unsent if not call.future.done()]
            self._unsent.clear()
            if calls:
                self._shared.send(calls)
        elif not self._is_connecting_shared:
            self._is_connecting_shared = True
            self.detach(self._connect_shared())

    async def _connect_shared(self) -> None:
        """Detached: connecting outlives the call that began it."""
        why: Exception = Unanswered("the event loop ends")
        try:
            self._shared = await self._connected(for_waits=False)
        except Exception as error:
            why = error
        finally:
            self._is_connecting_shared = False
            if self._shared is None:
                self._fail_unsent(why)
        self._flush()

    def _fail_unsent(self, error: Exception) -> None:
        calls, self._unsent = self._unsent, []
        for call in calls:
            fail(call, error)

    # Connections.

    async def _connected(self, for_waits: bool) -> Connection:
        """Makes a connection. The time for it is counted in ticks, see `_on_tick`."""
        node, circuit = self.node, self.node.circuit
        asks_anyway = circuit.is_away
        async with self._turns_to_connect:
            if circuit.is_away and not asks_anyway:
                raise Unanswered(f"{node.name} is away")
            connection = Connection(self, node.endpoint.new(), is_reusable=for_waits)
            connecting = self.detach(connection.raw.connect())
            self._connecting[connecting] = self.tick
            self._begin_ticking()
            try:
                await asyncio.wait([connecting])
                connecting.result()
            except BaseException as error:
                connecting.cancel()
                self.detach(connection.close())
                if isinstance(error, asyncio.CancelledError) and connecting.cancelled():
                    error = TimeoutError(f"no connection within {self._connect_within_s:g} s")
                if not isinstance(error, Exception):
                    raise
                if not is_callers_fault(error):
                    circuit.failed(error)
                raise why_it_failed(error, node.name) from error
            finally:
                del self._connecting[connecting]
        self._all.add(connection)
        if self._is_closed:  # meanwhile
            why = Unanswered("the limiter was closed")
            connection.end(why)
            raise why
        node.last_heard = connection.heard_at = self.loop.time()
        node.connected()
        return connection

    def answered(self, connection: Connection) -> None:
        """Called with each connection that has brought a reply."""
        if connection is self._shared or connection.sent:
            return
        if connection.is_reusable:
            self._idle.append(connection)
            self.loop.call_later(IDLE_CLOSES_S, self._end_idle, connection, connection.heard_at)
        else:  # one that was silent, or leads to a server that is no longer the one to ask
            connection.end(Unanswered("replaced"))

    def _end_idle(self, connection: Connection, since: float) -> None:
        if connection in self._idle and connection.heard_at == since:
            connection.end(Unanswered("no longer needed"))

    def ended(self, connection: Connection, why: Unanswered) -> None:
        self._all.discard(connection)
        closing = self.detach(connection.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        if connection in self._idle:
            self._idle.remove(connection)
        if connection is self._shared:
            self._shared = None
        elif why.broken:  # so are those that the server had before
            self._drop_idle()

    def drop(self, connection: Connection) -> None:
        """The endpoint has moved: no new calls go by these connections."""
        self._drop_idle()
        connection.is_reusable = False
        if connection is self._shared:
            self._shared = None
        if not connection.sent:
            connection.end(Unanswered("dropped"))

    def _drop_idle(self) -> None:
        for connection in list(self._idle):
            connection.end(Unanswered("dropped"))

    async def close(self) -> None:
        self._is_closed = True
        self._fail_unsent(Unanswered("the limiter was closed"))
        for connecting in self._connecting:
            connecting.cancel()
        for connection in list(self._all):
            connection.end(Unanswered("the limiter was closed", sent=True))
        if self._closing:
            await asyncio.wait(set(self._closing))

    # The time of calls, counted in ticks.

    def _begin_ticking(self) -> None:
        if self._ticking is None:
            self._heard_tick = self.tick
            self._ticking = self.loop.call_later(self.node.tick_s, self._on_tick)

    def _on_tick(self) -> None:
        """A tick that comes late counts once: when this process lags, the server is not taken for silent."""
        self.tick += 1
        self._ticking = None
        node = self.node
        if node.last_heard != self._last_heard:
            self._last_heard, self._heard_tick = node.last_heard, self.tick
        if self._unsent and self._is_silent_since(self._unsent[0].tick):
            self._fail_unsent(node.silence("connection"))
        for connecting, since in self._connecting.items():
            if (self.tick - since - 1) * node.tick_s >= self._connect_within_s:
                connecting.cancel()
        for connection in list(self._all):
            self._look_at(connection)
        quiet_s = [one.sent[0].quiet_s for one in self._all if one.sent]
        if self._unsent or self._connecting or 0 in quiet_s:
            self._ticking = self.loop.call_later(node.tick_s, self._on_tick)
        elif quiet_s:
            self.loop.call_later(min(*quiet_s, _LONGEST_NAP_S), self._begin_ticking)

    def _is_silent_since(self, tick: int) -> bool:
        return self.tick - max(self._heard_tick, tick) > TICKS

    def _look_at(self, connection: Connection) -> None:
        if not connection.sent:
            return
        node, first = self.node, connection.sent[0]
        if first.quiet_s:
            first.tick = self.tick
        elif (self.tick - first.tick) * node.tick_s > node.stall_s:
            connection.end(Unanswered("no reply, while others are answered", sent=True))
        elif not connection.is_silent and self._is_silent_since(first.tick):
            self._is_silent(connection)

    def _is_silent(self, connection: Connection) -> None:
        """No caller waits any longer, but what comes late is still read: it says that the server is back."""
        connection.is_silent = True
        silence = self.node.silence("reply", sent=True)
        for call in connection.sent:
            fail(call, silence)
            if call.until is not None:
                self.server.spawn(self.server.end_wait(call))
        if connection is self._shared:
            self._shared = None
            self._fail_unsent(Unanswered(silence))
