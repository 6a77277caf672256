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

from ..values.errors import TokenBucketError, Unanswered
from .call import PING, Call, Steps
from .circuit import IDLE_S, TICKS, Node
from .driver import is_callers_fault, is_drivers, is_one, packed, reply_of, why_it_failed

T = TypeVar("T")

# Python runs one thread at a time and the server one command: more connections would not be faster.
MOST_CONNECTIONS = 128
_MOST_CONNECTING = 8
# What a socket can be told to wait for.
_LONGEST_S = 86_400.0


def run(steps: Steps[T]) -> T:
    """Sends what the steps ask for, until they are over."""
    call = None
    try:
        call = next(steps)
        while True:
            try:
                reply = call.node.transport.exchange(call)
            except (Unanswered, TokenBucketError) as error:
                call = steps.throw(error)
            else:
                if call.late:  # not late any more
                    next(call.claim, None)
                call = steps.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result
    except TokenBucketError:
        raise
    except BaseException:  # a signal, Ctrl-C, a greenlet's timeout, a hook: the caller gets no decision
        if call is not None:
            call.node.transport.interrupted(call)
        steps.close()
        raise


class Connection:
    """One of the driver's, with one call at a time."""

    def __init__(self, raw: Any, pool: deque[Connection]) -> None:
        self.raw = raw
        self.pool = pool
        """Where it is while it is idle."""
        self.heard_at = time.monotonic()
        self.is_broken = False

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
        """Those that belong to an earlier one are not used again."""
        self._all: set[ref[Connection]] = set()
        """No WeakSet: Python swallows what a signal raises in its callbacks."""
        self._waiters: deque[Any] = deque()
        self._connecting: list[None] = []
        self._failure: Any = None

    def forget(self) -> None:
        """In a process that was forked. What the threads of the parent use stays open with it."""
        self.drop()
        self.begin_anew()

    def drop(self, than: Connection | None = None) -> None:
        """Ends those that are no newer; one in use ends when its call does."""
        if than is not None and than.pool is not self._idle:
            return
        old, self._idle = self._idle, deque()
        with contextlib.suppress(IndexError):
            while True:
                self._close(old.popleft())

    def exchange(self, call: Call) -> Any:
        if call.pause_s:
            time.sleep(call.pause_s)
        try:
            connection = call.by = self._acquire_tried() if call.once else self._acquire()
            if call.until is not None:
                self._all.discard(ref(connection))
            data = packed(connection.raw, call.to_send())
            connection.is_broken = True  # what is interrupted here, the driver closes
            connection.raw.send_packed_command(data, check_health=False)
            connection.is_broken = False
            self._read(call)
            return call.reply
        except Exception as error:
            if call.by is None or not is_drivers(error):
                raise
            call.by.is_broken = True
            self.drop(call.by)
            raise why_it_failed(error, self._node.name, sent=True) from error
        finally:
            self._part(call)

    def interrupted(self, call: Call) -> None:
        """Called when the caller is gone."""
        self._part(call)
        call.undo = True
        self._server.leave(call)

    def _part(self, call: Call) -> None:
        """Ends a call, however it went, without waiting for anything."""
        if call.by is None or call.is_parted:
            return
        call.is_parted = True
        if call.is_answered or not call.sent or call.by.is_broken:
            call.is_over = True
            self._release(call.by)
        else:
            self._all.discard(ref(call.by))
            # Not by threading.Thread, whose start waits.
            _thread.start_new_thread(self._finish, (call,))

    def _finish(self, call: Call) -> None:
        """Reads a reply that no caller waits for: it says that the server is back, and what it took."""
        if call.until is not None:
            self._server.spawn(self._server.end_wait(call))
        try:
            self._read(call, patient=True)
        except Exception:
            call.by.end()
        call.is_over = True
        self._release(call.by)
        self._server.leave(call)

    def _read(self, call: Call, patient: bool = False) -> None:
        """Reads the replies. Raises Unanswered when the server has been silent for the timeout.

        Silence is counted in ticks: nothing came on any connection. `patient`: it is not asked for.
        """
        node, connection, silent = self._node, call.by, 0
        ticks_left = node.stall_s / node.tick_s
        while not call.is_answered:
            last_heard = node.last_heard
            quiet_s = min(call.quiet_s, _LONGEST_S)
            if connection.raw.can_read(timeout=quiet_s or node.tick_s):
                reply: Any
                try:
                    reply = connection.raw.read_response(disconnect_on_error=False)
                except Exception as error:
                    reply = reply_of(error)
                    # The driver takes these for the end of a connection, and may read them twice.
                    connection.is_broken = is_one(error, "ConnectionError")
                call.replies.append(reply)
                connection.heard_at = time.monotonic()
                node.heard(reply, connection.heard_at)
                silent = 0
            elif not quiet_s:
                silent = 0 if node.last_heard > last_heard else silent + 1
                ticks_left -= 1
                if silent >= TICKS and not patient:
                    raise node.silence("reply", sent=True)
                if ticks_left < 0:
                    raise Unanswered("no reply, while others are answered", sent=True)

    # Connections.

    def _acquire_tried(self) -> Connection:
        """Replaces a connection that was idle by one that answers."""
        while time.monotonic() - (connection := self._acquire()).heard_at > IDLE_S:
            self._release(connection)  # from where the next call takes it
            try:
                self.exchange(Call(self._node, PING))
            except Unanswered as unanswered:
                if not unanswered.broken:
                    raise Unanswered(unanswered) from unanswered
        return connection

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
                    raise why_it_failed(self._failure, node.name)
                if node.circuit.is_away and not asks_anyway:
                    raise Unanswered(f"{node.name} is away")
                is_late = time.monotonic() - began > tick_s + node.tick_s
                was_silent, is_silent = is_silent, not is_late and node.last_heard == last_heard
                if was_silent and is_silent:
                    raise node.silence("connection")
        finally:
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)

    def _begin_connecting(self) -> None:
        room = MOST_CONNECTIONS - self._count()
        if len(self._connecting) < min(len(self._waiters), _MOST_CONNECTING, room):
            self._connecting.append(None)
            _thread.start_new_thread(self._connect, (self._idle,))

    def _connect(self, pool: deque[Connection]) -> None:
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
            connection = Connection(raw, pool)
            node.last_heard = connection.heard_at
            node.connected()
            self._release(connection)
        finally:
            self._connecting.pop()
            self._begin_connecting()  # for those that still wait

    def _release(self, connection: Connection) -> None:
        self._all.add(ref(connection))
        is_old = connection.pool is not self._idle
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
        for one in tuple(self._all):
            if one() is None:
                self._all.discard(one)
        return len(self._all)

    def _close(self, connection: Connection) -> None:
        self._all.discard(ref(connection))
        connection.end()
