"""How threads ask: each call has a connection for itself while it lasts.

A caller may be interrupted wherever it waits: by a signal, by Ctrl-C, by a greenlet's timeout. So nothing
that is shared is kept under a lock, and connections in use are counted by weak references: whatever a
caller leaves behind is collected. `_part` is the one place through which each call ends.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
import time
from collections import deque
from typing import Any, TypeVar
from weakref import ref

from ..values.errors import ReplyError, TokenBucketError, Unanswered
from .call import PING, Call, Steps
from .circuit import IDLE_S, TICKS, Node
from .commands import Command
from .driver import is_callers_fault, is_drivers, is_one, packed, reply_of, why_not_connected

T = TypeVar("T")

# Python runs one thread at a time and the server one command: more connections would not be faster.
MOST_CONNECTIONS = 128
_MOST_CONNECTING = 8
# What a socket can be told to wait for.
_LONGEST_S = 86_400.0


def run(steps: Steps[T]) -> T:
    """Sends what the steps ask for, until they are over."""
    call, is_delivered = None, False
    try:
        call = next(steps)
        while True:
            try:
                reply = call.node.transport.exchange(call)
            except (Unanswered, TokenBucketError) as error:
                call = steps.throw(error)
            else:
                is_delivered = True
                call = steps.send(reply)
            is_delivered = False
    except StopIteration as end:
        result: T = end.value
        return result
    except TokenBucketError:
        raise
    except BaseException:  # a signal, Ctrl-C, a greenlet's timeout, a hook: the caller gets no decision
        if call is not None:
            call.node.transport.interrupted(call, is_delivered)
        steps.close()
        raise


class Connection:
    """One of the driver's, with one call at a time."""

    def __init__(self, raw: Any, generation: int) -> None:
        self.raw = raw
        self.generation = generation
        self.heard_at = time.monotonic()
        self.is_broken = False
        self.is_apart = False
        """Its call waits in the server, or has no caller any more."""

    def end(self, _: object = None) -> None:
        self.is_broken = True
        with contextlib.suppress(Exception):
            self.raw.disconnect()


class Transport:
    """The connections to one node."""

    def __init__(self, node: Node, server: Any) -> None:
        self._node = node
        self._server = server
        self.begin_anew()

    def begin_anew(self) -> None:
        self._idle: deque[Connection] = deque()
        self._all: set[ref[Connection]] = set()
        """No WeakSet: Python swallows what a signal raises in its callbacks."""
        self._waiters: deque[Any] = deque()
        self._connecting: list[None] = []
        self._generation = 0
        self._failure: Exception | None = None

    def forget(self) -> None:
        """In a process that was forked. What the threads of the parent use stays open with it."""
        idle = self._idle
        self.begin_anew()
        for connection in idle:
            connection.end()

    def drop(self, than: Connection | None = None) -> None:
        """Ends those that are no newer; one in use ends when its call does."""
        if than is not None and than.generation < self._generation:
            return
        self._generation += 1
        with contextlib.suppress(IndexError):
            while True:
                self._close(self._idle.popleft())

    def exchange(self, call: Call) -> Any:
        if call.pause_s:
            time.sleep(call.pause_s)
        try:
            call.by = self._acquire()
            if call.once:
                self._try(call)
            call.by.is_apart = call.until is not None
            self._write(call.by, call.to_send())
            self._read(call.by, call)
            return call.reply
        except Unanswered as unanswered:
            if unanswered.broken and call.by is not None:
                self.drop(call.by)
            raise
        finally:
            self._part(call)

    def interrupted(self, call: Call, is_delivered: bool) -> None:
        """Called when the caller is gone. `is_delivered`: its reply has been used."""
        self._part(call)
        if not (is_delivered and call.late):
            call.undo = True
            self._server.leave(call)

    def _part(self, call: Call) -> None:
        """Ends a call, however it went, without waiting for anything."""
        connection = call.by
        if connection is None or call.is_parted:
            return
        call.is_parted = True
        if call.is_answered or not call.sent or connection.is_broken:
            call.is_over = True
            self._release(connection)
        else:
            connection.is_apart = True
            # Not by threading.Thread, whose start waits.
            _thread.start_new_thread(self._finish, (connection, call))

    def _finish(self, connection: Connection, call: Call) -> None:
        """Reads a reply that no caller waits for: it says that the server is back, and what it took."""
        if call.until is not None:
            self._server.spawn(self._server.end_wait(call))
        try:
            self._read(connection, call, patient=True)
        except Exception:
            connection.end()
        call.is_over = True
        self._release(connection)
        self._server.leave(call)

    def _write(self, connection: Connection, words: tuple[Command, ...]) -> None:
        data = packed(connection.raw, words)
        connection.is_broken = True  # what is interrupted here, the driver closes
        try:
            connection.raw.send_packed_command(data, check_health=False)
        except Exception as error:
            raise self._broken(connection, error) from error
        connection.is_broken = False

    def _broken(self, connection: Connection, error: Exception) -> Exception:
        """Returns what to raise for an error inside the driver."""
        if not is_drivers(error):
            return error
        connection.is_broken = True
        if is_callers_fault(error):
            return why_not_connected(error, self._node.name)
        return Unanswered(error, sent=True, broken=True)

    def _can_read(self, connection: Connection, within_s: float) -> bool:
        try:
            return bool(connection.raw.can_read(timeout=within_s))
        except Exception as error:
            raise self._broken(connection, error) from error

    def _read_one(self, connection: Connection, call: Call) -> None:
        reply: Any
        try:
            reply = connection.raw.read_response(disconnect_on_error=False)
        except Exception as error:
            reply = reply_of(error)
            if reply is None:
                raise self._broken(connection, error) from error
            # The driver takes these for the end of a connection, and may read them twice.
            connection.is_broken = is_one(error, "ConnectionError")
        call.replies.append(reply)
        node = self._node
        node.last_heard = connection.heard_at = time.monotonic()
        if node.circuit.is_away or type(reply) is ReplyError:
            node.circuit.heard(reply)

    def _read(self, connection: Connection, call: Call, patient: bool = False) -> None:
        """Reads the replies. Raises Unanswered when the server has been silent for the timeout.

        Silence is counted in ticks: nothing came on any connection. `patient`: it is not asked for.
        """
        node, silent = self._node, 0
        ticks_left = node.stall_s / node.tick_s
        while not call.is_answered:
            last_heard = node.last_heard
            waits_s = min(call.left_s, _LONGEST_S) if call.is_waiting else 0.0
            if self._can_read(connection, waits_s or node.tick_s):
                self._read_one(connection, call)
                silent = 0
                continue
            if waits_s:
                continue
            silent = 0 if node.last_heard > last_heard else silent + 1
            ticks_left -= 1
            if silent >= TICKS and not patient:
                silence = Unanswered(f"no reply within {node.timeout_s * 1000:g} ms", sent=True)
                node.circuit.failed(silence)
                raise silence
            if ticks_left < 0:
                raise Unanswered("no reply, while others are answered", sent=True)

    def _try(self, call: Call) -> None:
        """Replaces a connection that was idle by one that answers."""
        while time.monotonic() - call.by.heard_at > IDLE_S:
            connection, call.by = call.by, None
            ping = Call(self._node, PING)
            try:
                self._write(connection, ping.to_send())
                self._read(connection, ping)
            except Unanswered as unanswered:
                if not unanswered.broken:
                    self._close(connection)
                    raise Unanswered(unanswered) from unanswered
                self.drop(connection)
            if connection.is_broken:
                self._close(connection)
                connection = self._acquire()
            call.by = connection

    # Connections.

    def _acquire(self) -> Connection:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        return self._wait_for_one()

    def _wait_for_one(self) -> Connection:
        """Waits for a connection that is idle or new, as long as the server answers anything.

        A wait that ends late tells nothing: this process was busy.
        """
        node, failure = self._node, self._failure
        asks_anyway, waiter = node.circuit.is_away, threading.Lock()
        waiter.acquire()
        is_silent = False
        self._waiters.append(waiter)
        try:
            while True:
                self._begin_connecting()
                last_heard, began = node.last_heard, time.monotonic()
                tick_s = node.tick_s if is_silent else node.timeout_s
                if waiter.acquire(timeout=tick_s):
                    self._waiters.append(waiter)
                with contextlib.suppress(IndexError):
                    return self._idle.pop()
                if self._failure is not failure and not self._count():
                    assert self._failure is not None
                    raise why_not_connected(self._failure, node.name)
                if node.circuit.is_away and not asks_anyway:
                    raise Unanswered(f"{node.name} is away")
                is_late = time.monotonic() - began > tick_s + node.tick_s
                was_silent, is_silent = is_silent, not is_late and node.last_heard == last_heard
                if was_silent and is_silent:
                    silence = Unanswered(f"no connection within {node.timeout_s * 1000:g} ms")
                    node.circuit.failed(silence)
                    raise silence
        finally:
            with contextlib.suppress(ValueError):
                while True:
                    self._waiters.remove(waiter)

    def _begin_connecting(self) -> None:
        room = MOST_CONNECTIONS - self._count()
        if len(self._connecting) < min(len(self._waiters), _MOST_CONNECTING, room):
            self._connecting.append(None)
            _thread.start_new_thread(self._connect, (self._generation,))

    def _connect(self, generation: int) -> None:
        """On a thread of its own: connecting outlives the call that began it."""
        node, raw = self._node, None
        try:
            raw = node.endpoint.new()
            raw.connect()
        except Exception as error:
            if raw is not None:
                raw.disconnect()
            self._failure = error
            if not self._count() and not is_callers_fault(error):
                node.circuit.failed(error)
            self._wake(len(self._waiters))
        else:
            connection = Connection(raw, generation)
            self._all.add(ref(connection))
            node.last_heard = connection.heard_at
            node.connected()
            self._release(connection)
        finally:
            self._connecting.pop()
            self._begin_connecting()  # for those that still wait

    def _release(self, connection: Connection) -> None:
        connection.is_apart = False
        is_old = connection.generation != self._generation
        if connection.is_broken or is_old or len(self._all) > MOST_CONNECTIONS < self._count():
            self._close(connection)
        else:
            self._idle.append(connection)
        self._wake(1)

    def _wake(self, count: int) -> None:
        for _ in range(count):
            with contextlib.suppress(IndexError):
                self._waiters.popleft().release()

    def _count(self) -> int:
        """Returns how many calls may use, without those that their callers left behind."""
        count = 0
        for one in tuple(self._all):
            if (connection := one()) is None:
                self._all.discard(one)
            else:
                count += not connection.is_apart
        return count

    def _close(self, connection: Connection) -> None:
        self._all.discard(ref(connection))
        connection.end()
