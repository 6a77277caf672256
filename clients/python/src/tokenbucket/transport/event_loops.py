"""How asyncio asks: all calls of an event loop share one connection to a node, and one write.

A call is sent at once behind those whose replies are still on their way, so no call waits for a
connection of a pool, and a caller who is cancelled breaks nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from ..values.errors import ReplyError, Unanswered, is_callers_fault, why_not_connected
from .circuit import IDLE_S, TICKS, Node
from .driver import CONNECT_WITHIN_S, transport_of
from .resp import Replies
from .server import Call

_PING = (("PING",),)


class Link(asyncio.Protocol):
    """One connection, and the calls whose replies are on their way."""

    def __init__(self, lane: Lane, raw: Any) -> None:
        self.lane = lane
        self.raw = raw
        self.sent: deque[Call] = deque()
        self.heard_at = lane.loop.time()
        self.heard_tick = lane.tick
        self.is_open = True
        self.is_dropped = False
        """Whether it leads to a server that is no longer the one to ask."""
        self._replies = Replies()
        self._got: list[Any] = []
        self.transport = transport_of(raw)
        self.transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        lane = self.lane
        self.heard_at = lane.loop.time()
        self.heard_tick = lane.heard()
        try:
            replies = self._replies.feed(data)
        except Exception as error:
            self.abort(Unanswered(error, sent=True))
            return
        circuit, sent = lane.node.circuit, self.sent
        for reply in replies:
            if circuit.is_away or type(reply) is ReplyError:
                circuit.heard(reply)
            if not sent:  # nobody asked, as when the server ends a connection with an error
                continue
            if sent[0].replies > 1:
                self._got.append(reply)
                if len(self._got) < sent[0].replies:
                    continue
                reply, self._got = self._got, []
            call = sent.popleft()
            if call.future is None or call.future.done():
                lane.too_late(call, reply)
            else:
                call.future.set_result(reply)
        if self is lane.link:
            lane.flush_held_back()
        else:
            lane.heard_by_retired(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(Unanswered(error or "the server closed the connection", sent=True, broken=True))

    def abort(self, why: Unanswered) -> None:
        self.transport.abort()
        self._end(why)

    def _end(self, why: Unanswered) -> None:
        if not self.is_open:
            return
        self.is_open = False
        release(self.raw)
        self.lane.ended(self)
        calls, self.sent = self.sent, deque()
        for call in calls:
            fail(call, why)


def fail(call: Call, error: Exception) -> None:
    if call.future is not None and not call.future.done():
        call.future.set_exception(error)
        # A caller who was cancelled meanwhile does not look at it.
        call.future.exception()


def release(raw: Any) -> None:
    """Closes a connection of the library, which would wait for a transport that is no longer its own."""
    writer = getattr(raw, "_writer", None)
    if writer is not None:
        writer.transport.abort()
        raw._reader = raw._writer = None


class Lane:
    """The connection of one event loop to one node: made when needed, made again when it ends."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, node: Node, too_late: Callable[[Call, Any], None]
    ) -> None:
        self.loop = loop
        self.node = node
        self.too_late = too_late
        self.link: Link | None = None
        self.retired: list[Link] = []
        self.tick = 0
        self._unsent: deque[Call] = deque()
        self._connecting: asyncio.Task[None] | None = None
        self._connecting_since = 0
        self._flushing = self._ticking = False
        self._is_too_late = False
        self._last_heard = 0.0
        self._heard_tick = 0

    async def exchange(self, call: Call) -> Any:
        if call.pause_s:
            await asyncio.sleep(call.pause_s)
        future = call.future = self.loop.create_future()
        call.tick = self.tick
        self._unsent.append(call)
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)
        try:
            return await future
        except asyncio.CancelledError:
            call.undo = True
            if not future.cancelled() and future.exception() is None:
                self.too_late(call, future.result())
            raise

    def heard(self) -> int:
        self.node.last_heard = self.loop.time()
        return self.tick

    def _flush(self) -> None:
        """Sends in one write what was asked for in one round of the event loop."""
        self._flushing = False
        unsent, link = self._unsent, self.link
        if unsent and not self._ticking:
            self._ticking = True
            self._heard_tick = self.tick
            for call in unsent:
                call.tick = self.tick
            self.loop.call_later(self.node.tick_s, self._on_tick)
        if link is None:
            if unsent and self._connecting is None:
                self._connecting_since = self.tick
                self._connecting = self.loop.create_task(self._connect())
            return
        data: list[bytes] = []
        while unsent:
            call = unsent[0]
            if call.future.done():  # its caller is gone, and nothing was sent
                unsent.popleft()
                continue
            if call.once and self.loop.time() - link.heard_at > IDLE_S:
                if not link.sent and not data:
                    self._try(link)
                # What is on its way will tell whether the connection lives.
                break
            unsent.popleft()
            call.tick, call.by = self.tick, link
            link.sent.append(call)
            data.append(call.data)
        if data:
            link.transport.write(data[0] if len(data) == 1 else b"".join(data))

    def flush_held_back(self) -> None:
        if self._unsent:
            self._flush()

    def _try(self, link: Link) -> None:
        ping = Call(self.node, _PING, _PING)
        ping.tick = self.tick
        link.sent.append(ping)
        link.transport.write(ping.data)

    async def _connect(self) -> None:
        """Detached: connecting outlives the call that began it."""
        self._is_too_late, raw = False, None
        await asyncio.sleep(0)  # where tasks begin at once, this one is not known yet
        try:
            raw = self.node.endpoint.new()
            await raw.connect()
            link = Link(self, raw)
        except asyncio.CancelledError:
            release(raw)
            self._connecting = None
            if not self._is_too_late:  # the event loop ends
                self._fail_unsent(Unanswered("the event loop ends"))
                raise
            self._not_connected(TimeoutError(f"no connection within {CONNECT_WITHIN_S:g} s"))
        except Exception as error:
            release(raw)
            self._not_connected(error)
        else:
            self._connecting = None
            self.node.connected()
            self.link = link
            self._flush()

    def _not_connected(self, error: Exception) -> None:
        self._connecting = None
        if not is_callers_fault(error):
            self.node.circuit.failed(error)
        self._fail_unsent(why_not_connected(error, self.node.name))

    def _fail_unsent(self, error: Exception) -> None:
        calls, self._unsent = self._unsent, deque()
        for call in calls:
            fail(call, error)

    def ended(self, link: Link) -> None:
        if link is self.link:
            self.link = None
            if self._unsent:
                self._flush()
        elif link in self.retired:
            self.retired.remove(link)

    def drop(self, link: Link | None) -> None:
        """No new calls go by it; it ends with the last reply that is on its way."""
        if link is None or link is not self.link:
            return
        self.link, link.is_dropped = None, True
        if link.sent:
            self.retired.append(link)
        else:
            link.abort(Unanswered("dropped"))

    def heard_by_retired(self, link: Link) -> None:
        """The server is back, or what was on its way has come."""
        if link.sent or not link.is_open:
            return
        is_needed = self.link is None and self._connecting is None and not self.node.circuit.is_away
        if is_needed and not link.is_dropped:
            self.retired.remove(link)
            self.link = link
        else:
            link.abort(Unanswered("dropped"))

    # The time of callers, counted in ticks.

    def _on_tick(self) -> None:
        self.tick += 1
        node = self.node
        if node.last_heard != self._last_heard:
            self._last_heard, self._heard_tick = node.last_heard, self.tick
        while self._unsent and self.tick - self._unsent[0].tick > TICKS:
            fail(self._unsent.popleft(), Unanswered("no connection yet"))
        if (
            self._connecting is not None
            and (self.tick - self._connecting_since) * node.tick_s > CONNECT_WITHIN_S
        ):
            self._is_too_late = True
            self._connecting.cancel()
        for link in [*self.retired, *([self.link] if self.link else [])]:
            self._look_at(link)
        if self._unsent or self._connecting is not None or self.retired or (self.link and self.link.sent):
            self.loop.call_later(node.tick_s, self._on_tick)
        else:
            self._ticking = False

    def _look_at(self, link: Link) -> None:
        if not link.sent:
            return
        node, oldest = self.node, link.sent[0].tick
        if (self.tick - max(link.heard_tick, oldest)) * node.tick_s > node.stall_s:
            link.abort(Unanswered("no reply, while others are answered", sent=True))
        elif link is self.link and self.tick - max(self._heard_tick, oldest) > TICKS:
            self._is_silent(link)

    def _is_silent(self, link: Link) -> None:
        """Nobody waits any longer, but what comes late is still read: it says that the server is back."""
        silence = Unanswered(f"no reply within {self.node.timeout_s * 1000:g} ms", sent=True)
        self.node.circuit.failed(silence)
        self.link = None
        self.retired.append(link)
        for call in link.sent:
            fail(call, silence)
        self._fail_unsent(Unanswered(silence))

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        for link in [*self.retired, *([self.link] if self.link else [])]:
            link.abort(Unanswered("the limiter was closed", sent=True))
        await asyncio.sleep(0)  # until the transport has closed its socket
