"""How asyncio waits its turn in a server: each such call has a connection for itself.

The connection that all other calls share would keep them behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..values.errors import ReplyError, Unanswered, is_callers_fault, why_not_connected
from .circuit import TICKS, Node
from .driver import CONNECT_WITHIN_S, transport_of
from .event_loops import release
from .resp import PING, Replies, pack
from .server import Call

_MOST_CONNECTING = 8
_UNBLOCK_EVERY_S = 0.02
IDLE_CLOSES_S = 5.0
"""When a connection is closed by which nobody waits."""


class _Silent(Unanswered):
    """Nothing came from the server, on any connection."""


class Line(asyncio.Protocol):
    """One connection, with one call at a time."""

    def __init__(self, raw: Any, node: Node, loop: asyncio.AbstractEventLoop) -> None:
        self.raw = raw
        self.node = node
        self.loop = loop
        self.got: list[Any] = []
        self.ended: Unanswered | None = None
        self.id: int | None = None
        """Its client id, if that may be asked."""
        self.closing: asyncio.TimerHandle | None = None
        self.after_leaving: Callable[[], None] | None = None
        """Told what comes after the caller has left."""
        self._replies = Replies()
        self._wakes: asyncio.Future[None] | None = None
        self.transport = transport_of(raw)
        self.transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        self.node.last_heard = self.loop.time()
        circuit = self.node.circuit
        try:
            replies = self._replies.feed(data)
        except Exception as error:
            self._end(Unanswered(error, sent=True))
            return
        for reply in replies:
            if circuit.is_away or type(reply) is ReplyError:
                circuit.heard(reply)
        self.got += replies
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(Unanswered(error or "the server closed the connection", sent=True, broken=True))

    def close(self) -> None:
        self.transport.abort()
        self._end(Unanswered("the limiter was closed", sent=True))

    async def something(self, within_s: float) -> bool:
        """Whether anything came within the time."""
        if self.ended is not None:
            raise self.ended
        self._wakes = self.loop.create_future()
        try:
            await asyncio.wait([self._wakes], timeout=within_s)
            came = self._wakes.done()
        finally:
            self._wakes = None
        if came and self.ended is not None:
            raise self.ended
        return came

    async def until(self, count: int, wait_s: float = 0.0) -> None:
        """Returns when so many replies came. For `wait_s`, the server's silence means nothing."""
        node, silent, ticks_left = self.node, 0, self.node.stall_s / self.node.tick_s
        ends_at = self.loop.time() + wait_s
        while len(self.got) < count:
            if (left_s := ends_at - self.loop.time()) > 0:
                await self.something(left_s)
                continue
            last_heard = node.last_heard
            if await self.something(node.tick_s):
                continue
            silent = 0 if node.last_heard > last_heard else silent + 1
            ticks_left -= 1
            if silent >= TICKS:
                raise _Silent(f"no reply within {node.timeout_s * 1000:g} ms", sent=True)
            if ticks_left < 0:
                raise Unanswered("no reply, while others are answered", sent=True)

    def _end(self, why: Unanswered) -> None:
        if self.ended is None:
            self.ended = why
            release(self.raw)
            self._wake()

    def _wake(self) -> None:
        if self._wakes is not None and not self._wakes.done():
            self._wakes.set_result(None)
        if self.after_leaving is not None:
            self.after_leaving()


class Turns:
    """The connections of one event loop to one node by which calls wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop, node: Node, server: Any) -> None:
        self.loop = loop
        self.node = node
        self.server = server
        self._all: set[Line] = set()
        self._idle: list[Line] = []
        self._connecting = asyncio.Semaphore(_MOST_CONNECTING)

    async def wait(self, call: Call) -> Any:
        if call.pause_s:
            await asyncio.sleep(call.pause_s)
        line = call.by = self._reused() or await self._connected()
        data, wait_s = call.waiting_now()
        line.got.clear()
        line.transport.write(PING + data)
        count = 1 + call.replies
        try:
            # The PING before it tells a server that is away from one that lets the call wait.
            await line.until(1)
            await line.until(count, wait_s)
        except Unanswered as unanswered:
            if isinstance(unanswered, _Silent):
                self.node.circuit.failed(unanswered)
            if line.ended is None:
                self._leave(line, call)
            else:
                self._close(line)
            if unanswered.broken:  # so are those that the server had before
                self.drop()
            raise
        except asyncio.CancelledError:
            call.undo = True
            self._leave(line, call)
            raise
        self._keep(line)
        return line.got[1] if call.replies == 1 else line.got[1:]

    async def close(self) -> None:
        for line in list(self._all):
            self._close(line)
        await asyncio.sleep(0)  # until the transports have closed their sockets

    def drop(self) -> None:
        """The endpoint has moved: new connections lead elsewhere."""
        for line in list(self._idle):
            self._close(line)

    def _reused(self) -> Line | None:
        while self._idle:
            line = self._idle.pop()
            assert line.closing is not None
            line.closing.cancel()
            if line.ended is None:
                return line
            self._all.discard(line)
        return None

    async def _connected(self) -> Line:
        """A new one. Who has the time to wait in the server has it for a connection."""
        raw, circuit = None, self.node.circuit
        asks_anyway = circuit.is_away
        try:
            async with self._connecting:
                if line := self._reused():
                    return line
                if circuit.is_away and not asks_anyway:
                    raise Unanswered(f"{self.node.name} is away")
                raw = self.node.endpoint.new()
                await self._connect(raw)
                line = Line(raw, self.node, self.loop)
                await self._ask_id(line)
        except asyncio.CancelledError:
            release(raw)
            raise
        except Exception as error:
            release(raw)
            if isinstance(error, _Silent):
                circuit.failed(error)
            if isinstance(error, Unanswered):
                raise
            if not is_callers_fault(error):
                circuit.failed(error)
            raise why_not_connected(error, self.node.name) from error
        self._all.add(line)
        return line

    @staticmethod
    async def _connect(raw: Any) -> None:
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                await raw.connect()
        except TimeoutError as error:
            raise TimeoutError(f"no connection within {CONNECT_WITHIN_S:g} s") from error

    @staticmethod
    async def _ask_id(line: Line) -> None:
        line.transport.write(pack(("CLIENT", "ID")))
        await line.until(1)
        if isinstance(line.got[0], int):
            line.id = line.got[0]

    def _keep(self, line: Line) -> None:
        self._idle.append(line)
        line.closing = self.loop.call_later(IDLE_CLOSES_S, self._close, line)

    def _close(self, line: Line) -> None:
        self._all.discard(line)
        if line in self._idle:
            self._idle.remove(line)
        if line.closing is not None:
            line.closing.cancel()
        line.close()

    def _leave(self, line: Line, call: Call) -> None:
        """The caller is gone, or has been denied by `on_error`: a grant that is on its way goes back."""
        count = 1 + call.replies
        line.closing = self.loop.call_later(self.node.stall_s, self._close, line)

        def hear() -> None:
            has_all = len(line.got) >= count
            if has_all or line.ended is not None:
                line.after_leaving = None
                reply = None if not has_all else line.got[1] if call.replies == 1 else line.got[1:count]
                self._close(line)
                self.server._too_late(call, reply)

        line.after_leaving = hear
        if line.ended is not None or len(line.got) >= count:
            hear()
        elif line.id is None:
            self._close(line)
        else:
            self.server.detach(self._unblock(line, line.id, call))

    async def _unblock(self, line: Line, id: int, call: Call) -> None:
        """Ends the wait as if its time were over: the reply says whether the call was granted before.

        Closing the connection would not tell. Done again, as it may overtake the call itself.
        """
        while line.after_leaving is not None:
            if not await self.server._unblock(self.node, id, call.words[-1]):
                self._close(line)
                return
            await asyncio.sleep(_UNBLOCK_EVERY_S)
