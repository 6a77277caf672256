"""How threads ask: each call has a connection for itself while it lasts."""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from ..values.errors import ReplyError, Unanswered, is_callers_fault, why_not_connected
from .circuit import IDLE_S, TICKS, Node
from .driver import socket_of
from .resp import PING, Replies
from .server import LOG, Call, Steps

T = TypeVar("T")

# Python runs one thread at a time and the server one command: more connections would not be faster.
MOST_CONNECTIONS = 128
_MOST_CONNECTING = 8
# What a socket can be told to wait for.
_LONGEST_S = 86_400.0


def run(exchange: Callable[[Call], Any], steps: Steps[T]) -> T:
    """Sends what the steps ask for, until they are over."""
    try:
        call = next(steps)
        while True:
            try:
                reply = exchange(call)
            except Exception as error:
                call = steps.throw(error)
            else:
                call = steps.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result


class Connection:
    """A connection of the library, connected, and what was received on it."""

    def __init__(self, raw: Any, node: Node, generation: int) -> None:
        self.raw = raw
        self.node = node
        self.generation = generation
        self.socket = socket_of(raw)
        self.socket.settimeout(node.tick_s)
        # A server that nobody closed ends without a warning, as a pool of the library does.
        weakref.finalize(self, self.socket.close).atexit = False
        self.replies = Replies()
        self.heard_at = time.monotonic()
        self.owes = 0
        """How many replies are still to come to a call that waits its turn."""
        self.is_left = False

    def leave(self) -> None:
        """Ends the wait in the server, which takes this for the end of the connection.

        What it has granted before can still be read.
        """
        self.is_left = True
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_WR)  # of TLS as of any other

    def close(self) -> None:
        # The library would shut it down, which a process that was forked must not.
        with contextlib.suppress(OSError):
            self.socket.close()

    def is_readable(self) -> bool:
        """Whether something has come. Where nothing was asked, that is the end of the connection."""
        ready = select.poll()
        ready.register(self.socket, select.POLLIN)
        return bool(ready.poll(0))

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Unanswered(error, sent=True, broken=True) from error

    def receive(self) -> list[Any] | None:
        """The replies that came; None if a tick went by without a byte."""
        try:
            data = self.socket.recv(65_536)
        except TimeoutError:
            return None
        except OSError as error:
            raise Unanswered(error, sent=True, broken=True) from error
        if not data:
            raise Unanswered("the server closed the connection", sent=True, broken=True)
        self.heard_at = self.node.last_heard = time.monotonic()
        try:
            return self.replies.feed(data)
        except Exception as error:
            raise Unanswered(error, sent=True) from error

    def read_after(self, count: int, wait_s: float) -> list[Any]:
        """The same, and the server may be silent for `wait_s` before."""
        until, replies = time.monotonic() + wait_s, None
        try:
            while replies is None and (left_s := until - time.monotonic()) > 0:
                self.socket.settimeout(min(left_s, _LONGEST_S))
                replies = self.receive()
        finally:
            self.socket.settimeout(self.node.tick_s)
        got = replies or []
        return got if len(got) >= count else got + self.read(count - len(got))

    def read(self, count: int) -> list[Any]:
        """So many replies. Raises Unanswered when the server has been silent for the timeout."""
        node, silent, got = self.node, 0, []
        ticks_left = node.stall_s / node.tick_s
        while True:
            last_heard = node.last_heard
            replies = self.receive()
            if replies is not None:
                silent = 0
                got += replies
                if len(got) >= count:
                    return got
                continue
            silent = 0 if node.last_heard > last_heard else silent + 1
            if silent >= TICKS:
                raise _Silent(f"no reply within {node.timeout_s * 1000:g} ms", sent=True)
            ticks_left -= 1
            if ticks_left < 0:
                raise Unanswered("no reply, while others are answered", sent=True)


class _Silent(Unanswered):
    """Nothing came from the server, on any connection."""


class Lines:
    """The connections to one node."""

    def __init__(self, node: Node, late: Callable[[Call, Any], None]) -> None:
        self._node = node
        self._late = _LateReplies(late, self._take_back)
        self.begin_anew()

    def begin_anew(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._idle: list[Connection] = []
        self._generation = 0
        self._open = self._connecting = self._waiting = self._failures = 0
        self._failure: Exception | None = None

    def forget(self) -> None:
        """In a process that was forked. What the threads of the parent use stays open with it."""
        idle = self._idle
        self.begin_anew()
        self._late.begin_anew()
        for connection in idle:
            connection.close()

    def drop(self, generation: int | None = None) -> None:
        """Ends those that are no newer; one in use ends when its call does."""
        with self._changed:
            if generation is not None and generation < self._generation:
                return
            self._generation += 1
            idle, self._idle = self._idle, []
            self._open -= len(idle)
        for connection in idle:
            connection.close()

    def exchange(self, call: Call) -> Any:
        if call.pause_s:
            time.sleep(call.pause_s)
        if call.until is not None:
            return self._wait(call)
        connection = self._acquire()
        if call.once:
            connection = self._alive(connection)
        call.by = connection
        try:
            connection.send(call.data)
            replies = connection.read(call.replies)
        except _Silent as silence:
            self._node.circuit.failed(silence)
            self._give_away(connection)
            self._late.wait_for(connection, call)
            raise
        except Unanswered as unanswered:
            self._close(connection)
            if unanswered.broken:
                self.drop(connection.generation)
            raise
        except BaseException:  # such as KeyboardInterrupt: the caller is gone, the call is not
            call.undo = True
            self._give_away(connection)
            self._late.wait_for(connection, call)
            raise
        self._release(connection)
        self._heard(replies)
        return replies[0] if call.replies == 1 else replies

    def _wait(self, call: Call) -> Any:
        """Lets the call wait its turn in the server, on a connection that does not count meanwhile."""
        connection = self._acquire()
        self._give_away(connection)
        call.by = connection
        try:
            replies = self._replies_in_turn(connection, call)
        except Unanswered as unanswered:
            if isinstance(unanswered, _Silent):
                self._node.circuit.failed(unanswered)
            if unanswered.broken:
                connection.close()
                self.drop(connection.generation)
            else:
                self._leave(connection, call)
            raise
        except BaseException:  # such as KeyboardInterrupt: the caller is gone
            call.undo = True
            self._leave(connection, call)
            raise
        self._take_back(connection)
        return replies[0] if call.replies == 1 else replies

    def _replies_in_turn(self, connection: Connection, call: Call) -> list[Any]:
        """The PING before it tells a server that is away from one that lets the call wait."""
        data, wait_s = call.waiting_now()
        connection.owes = 1 + call.replies
        connection.send(PING + data)
        got = connection.read(1)
        self._heard(got)
        connection.owes -= len(got)
        if connection.owes:
            replies = connection.read_after(connection.owes, wait_s)
            self._heard(replies)
            got += replies
        connection.owes = 0
        return got[1:]

    def _leave(self, connection: Connection, call: Call) -> None:
        connection.leave()
        self._late.wait_for(connection, call)

    def _heard(self, replies: list[Any]) -> None:
        circuit = self._node.circuit
        for reply in replies:
            if circuit.is_away or type(reply) is ReplyError:
                circuit.heard(reply)

    def _alive(self, connection: Connection) -> Connection:
        """This connection if it answers, else another."""
        while time.monotonic() - connection.heard_at > IDLE_S or connection.is_readable():
            try:
                connection.send(PING)
                connection.read(1)
            except Unanswered as unanswered:
                self._close(connection)
                if not unanswered.broken:
                    if isinstance(unanswered, _Silent):
                        self._node.circuit.failed(unanswered)
                    raise Unanswered(unanswered) from unanswered
                self.drop(connection.generation)
                connection = self._acquire()
        return connection

    def _acquire(self) -> Connection:
        """An idle connection, or the first that is ready.

        Waits for a new one at most for the timeout, and longer for one that others use while the
        server answers them.
        """
        with self._changed:
            if self._idle:
                return self._idle.pop()
            self._waiting += 1
            try:
                return self._wait_for_one()
            finally:
                self._waiting -= 1

    def _wait_for_one(self) -> Connection:
        node, failures = self._node, self._failures
        asks_anyway = node.circuit.is_away
        while not self._idle:
            if node.circuit.is_away and not asks_anyway:
                raise Unanswered(f"{node.name} is away")
            if self._connecting < min(self._waiting, _MOST_CONNECTING, MOST_CONNECTIONS - self._open):
                self._begin_connecting()
            progress = (node.last_heard, self._open)
            # What woke too late lets those go first who have something to bring.
            if self._changed.wait(node.timeout_s) or self._changed.wait(node.tick_s):
                if self._failures != failures and not self._open:
                    assert self._failure is not None
                    raise why_not_connected(self._failure, node.name)
            elif progress == (node.last_heard, self._open) and not self._idle:
                raise Unanswered("no connection yet")
        return self._idle.pop()

    def _begin_connecting(self) -> None:
        self._connecting += 1
        threading.Thread(target=self._connect, args=(self._generation,), daemon=True).start()

    def _connect(self, generation: int) -> None:
        """On a thread of its own: connecting outlives the call that began it."""
        changed = self._changed
        try:
            raw = self._node.endpoint.new()
            raw.connect()
            connection = Connection(raw, self._node, generation)
        except Exception as error:
            with changed:
                self._connecting -= 1
                self._failures += 1
                self._failure = error
                if not self._open and not is_callers_fault(error):
                    self._node.circuit.failed(error)
                changed.notify_all()
            return
        self._node.connected()
        with changed:
            self._connecting -= 1
            self._open += 1
        self._release(connection)

    def _release(self, connection: Connection) -> None:
        with self._changed:
            if connection.generation == self._generation:
                self._idle.append(connection)
                self._changed.notify()
                return
        self._close(connection)

    def _take_back(self, connection: Connection) -> None:
        with self._changed:
            has_room = self._open < MOST_CONNECTIONS
            self._open += has_room
        if has_room:
            self._release(connection)
        else:
            connection.close()

    def _close(self, connection: Connection) -> None:
        self._give_away(connection)
        connection.close()

    def _give_away(self, connection: Connection) -> None:
        """It is none of these any more."""
        with self._changed:
            self._open -= 1
            self._changed.notify()


class _LateReplies:
    """Reads replies that nobody waits for any more: they say that the server is back, and what it took."""

    def __init__(self, late: Callable[[Call, Any], None], take_back: Callable[[Connection], None]) -> None:
        self._late = late
        self._take_back = take_back
        self.begin_anew()

    def begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[Connection, Call, float]] = []
        self._is_running = False

    def wait_for(self, connection: Connection, call: Call) -> None:
        with self._lock:
            self._waiting.append((connection, call, time.monotonic() + connection.node.stall_s))
            if self._is_running:
                return
            self._is_running = True
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                waiting = list(self._waiting)
                if not waiting:
                    self._is_running = False
                    return
            with selectors.DefaultSelector() as selector:
                for connection, _, _ in waiting:
                    selector.register(connection.socket, selectors.EVENT_READ, connection)
                ready = {key.data for key, _ in selector.select(0.02)}
            for one in waiting:
                connection, call, until = one
                if connection not in ready and time.monotonic() < until:
                    continue
                with self._lock:
                    self._waiting.remove(one)
                if connection not in ready or not self._read(connection, call):
                    connection.close()

    def _read(self, connection: Connection, call: Call) -> bool:
        """Whether the connection is of use again."""
        replies: list[Any] = [None]
        try:
            replies = connection.read(connection.owes or call.replies)[-call.replies :]
        except Unanswered:
            if not connection.is_left:
                return False
        else:
            circuit = connection.node.circuit
            for reply in replies:
                if circuit.is_away or type(reply) is ReplyError:
                    circuit.heard(reply)
            if not connection.is_left:
                self._take_back(connection)
        self._give_back(call, replies[0] if call.replies == 1 else replies)
        return not connection.is_left

    def _give_back(self, call: Call, reply: Any) -> None:
        try:
            self._late(call, reply)
        except Unanswered:
            pass  # as late as the call itself: sent, and perhaps done
        except Exception:
            LOG.exception("what a late call took was not given back")
