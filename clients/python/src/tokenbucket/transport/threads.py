"""How threads ask: each call has a connection of the driver for itself while it lasts.

A caller may be interrupted wherever it is: by a signal, by Ctrl-C, by a greenlet's timeout. So nothing is
counted and no flag is set: what a caller leaves behind is found to be dead, and collected.
"""

from __future__ import annotations

import _thread
import contextlib
import queue
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import ref

from ..values.constants import IDLE_S, PULSE_S
from ..values.errors import TokenBucketError, Unanswered
from .call import PING, Attempt, Steps
from .circuit import Circuit
from .driver import is_drivers, is_one, packed, reply_of

T = TypeVar("T")

# Python runs one thread at a time and the server one command: more connections would not be faster.
MOST_CONNECTIONS = 128
# In how many turns a caller looks for what it waits for, and by how much a turn may end late.
_TURNS, _LATE_S = 4, 0.005


def run(steps: Steps[T]) -> T:
    """Sends what the steps ask for, until they are over."""
    try:
        attempt = next(steps)
        while True:
            try:
                reply = attempt.circuit.transport.exchange(attempt)
            except (Unanswered, TokenBucketError) as error:
                attempt = steps.throw(error)
            else:
                attempt = steps.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()  # of an interrupted call


def within(for_s: float, look: Callable[[float], T | None]) -> T | None:
    """Looks for `for_s` seconds, in a few turns, and returns the first result.

    A turn that ends late does not count, as this process was busy; at most as many are forgiven.
    """
    turn_s, left, late_left = for_s / _TURNS, _TURNS, _TURNS
    while left:
        began = time.monotonic()
        if found := look(turn_s):
            return found
        if time.monotonic() - began > 1.5 * turn_s + _LATE_S and late_left:
            late_left -= 1
        else:
            left -= 1
    return look(0)


class Mark:
    """Stands for work under way, or the right to a connection, for as long as a variable refers to it."""

    __slots__ = ("__weakref__",)


Answer = queue.SimpleQueue[Any]
"""By which a caller gets what another thread gives or makes."""


def _got(answer: Answer, within_s: float) -> Any:
    with contextlib.suppress(queue.Empty):
        return answer.get(timeout=within_s)


class Transport:
    """The connections to one node."""

    is_in_use = False
    """Is of no matter, as `drop` closes none that is in use."""

    def __init__(self, circuit: Circuit) -> None:
        self._circuit = circuit
        self._begin_anew()

    def _begin_anew(self) -> None:
        """In a process that was forked. What the threads of the parent use stays open with it."""
        self._idle: deque[tuple[Any, float]] = deque()
        """Those that belong to an earlier one are not used again."""
        self._taken: set[ref[Mark]] = set()
        self._waiters: deque[Answer] = deque()

    def drop(self) -> None:
        """Closes those that are idle; one in use is closed when its call ends."""
        old, self._idle = self._idle, deque()
        with contextlib.suppress(IndexError):
            while True:  # one by one, as a call may have begun to take one
                _close(old.pop()[0])

    def exchange(self, attempt: Attempt) -> Any:
        if attempt.call.pause_s:
            time.sleep(attempt.call.pause_s)
            attempt.call.pause_s = 0.0
        idle, place = self._idle, self._place()
        try:
            raw = self._idle_one() or self._connected()
            if attempt.call.until is None:
                return self._ask(attempt, raw, idle)
        finally:
            self._give_back(place)
        return self._ask(attempt, raw, idle)

    # The right to use a connection.

    def _place(self) -> Mark:
        """Waits for one, in the order in which callers come, for no longer than connecting may take."""
        if not self._waiters and (place := self._free_place()):
            return place
        circuit, began = self._circuit, time.monotonic()
        mine: Answer = queue.SimpleQueue()

        def look(for_s: float) -> Any:
            if circuit.failed_at > began:
                raise Unanswered(f"{circuit.name} is away")
            return self._free_place() or _got(mine, for_s)

        self._waiters.append(mine)
        try:
            found: Mark | None = within(circuit.connect_within_s, look)
        finally:
            with contextlib.suppress(ValueError):
                self._waiters.remove(mine)
        if found is None:
            raise Unanswered(f"all {MOST_CONNECTIONS} connections are in use")
        return found

    def _free_place(self) -> Mark | None:
        if len(self._taken) >= MOST_CONNECTIONS:
            self._taken -= {one for one in tuple(self._taken) if one() is None}
            if len(self._taken) >= MOST_CONNECTIONS:
                return None
        place = Mark()
        self._taken.add(ref(place))
        return place

    def _give_back(self, place: Mark) -> None:
        with contextlib.suppress(IndexError):
            if self._waiters:
                self._waiters.popleft().put(place)
                return
        self._taken.discard(ref(place))

    # Calls.

    def _ask(self, attempt: Attempt, raw: Any, idle: Any) -> Any:
        circuit = self._circuit
        try:
            asked_at = time.monotonic()
            raw.send_packed_command(packed(raw, attempt.to_send()), check_health=False)
            if attempt.call.until is not None:
                self._wait(raw, attempt, asked_at)
            elif not within(circuit.timeout_s, lambda for_s: raw.can_read(timeout=for_s)):
                silence = circuit.silent("reply", asked_at, circuit.timeout_s, sent=True)
                if circuit.failed_at >= asked_at:  # those that are idle may lead nowhere as well
                    self.drop()
                raise silence
            replies, is_whole = _read(
                raw, len(attempt.words), circuit.endpoint.reads_within(circuit.timeout_s)
            )
        except BaseException as error:
            _close(raw)
            if not isinstance(error, Exception) or not is_drivers(error):
                raise
            self.drop()  # so are those that the server had before
            if is_one(error, "TimeoutError"):  # of a reply that came in part
                raise circuit.silent("reply", asked_at, circuit.timeout_s, sent=True) from error
            raise circuit.endpoint.why_it_failed(error, sent=True) from error
        circuit.heard(replies[0])
        self._keep(raw, idle if is_whole else None)
        return replies

    def _wait(self, raw: Any, attempt: Attempt, asked_at: float) -> None:
        """Waits until there is a reply, as long as the server answers others."""
        circuit, look_s = self._circuit, self._circuit.timeout_s
        while not raw.can_read(timeout=look_s):
            if time.monotonic() - circuit.last_heard > look_s:
                with contextlib.suppress(Unanswered, TokenBucketError):
                    self.exchange(Attempt(circuit, PING))
            left_s = attempt.left_s + 2 * circuit.timeout_s
            if circuit.failed_at > asked_at or left_s < 0:
                raise Unanswered(f"{circuit.name} is away, or does not end a wait", sent=True)
            look_s = min(PULSE_S, left_s)

    # Connections.

    def _idle_one(self) -> Any:
        while True:
            try:
                raw, since = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() - since < IDLE_S:
                return raw
            with contextlib.suppress(Exception):
                if not raw.can_read(timeout=0):  # else the server has closed it
                    return raw
            _close(raw)

    def _keep(self, raw: Any, idle: Any) -> None:
        if idle is self._idle and len(idle) < MOST_CONNECTIONS:
            idle.append((raw, time.monotonic()))
        else:
            _close(raw)

    def _connected(self) -> Any:
        """Connects, on a thread of its own: no name takes longer to resolve than connecting may take."""
        circuit, began = self._circuit, time.monotonic()
        made: Answer = queue.SimpleQueue()
        arguments = (ref(made), self._idle)
        try:
            _thread.start_new_thread(self._connect, arguments)
        except RuntimeError:  # no thread can start
            self._connect(*arguments)
        outcome = within(circuit.connect_within_s, lambda for_s: _got(made, for_s))
        if outcome is None:
            raise circuit.silent("connection", began, circuit.connect_within_s)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _connect(self, made: ref[Answer], idle: Any) -> None:
        """Makes a connection, which is kept if its caller has gone meanwhile."""
        circuit, raw, began = self._circuit, None, time.monotonic()
        outcome: Any
        try:
            # Its caller gives up before.
            outcome = raw = circuit.endpoint.new(2 * circuit.connect_within_s, circuit.timeout_s)
            raw.connect()
            circuit.connected()
        except Exception as raised:
            _close(raw)
            error = circuit.endpoint.without_secrets(raised)
            outcome = circuit.endpoint.why_it_failed(error)
            if isinstance(outcome, Unanswered):
                circuit.failed(error, began)
        except BaseException:  # a signal, where no thread could start
            _close(raw)
            raise
        if (caller := made()) is not None:
            caller.put(outcome)
        elif not isinstance(outcome, Exception):
            self._keep(raw, idle)


def _read(raw: Any, count: int, within: dict[str, Any]) -> tuple[list[Any], bool]:
    """Returns so many replies, and whether the driver still takes the connection for one."""
    replies: list[Any] = []
    is_whole = True
    for _ in range(count):
        try:
            replies.append(raw.read_response(disconnect_on_error=False, **within))
        except Exception as error:
            replies.append(reply_of(error))
            is_whole = is_whole and not is_one(error, "ConnectionError")  # such as LOADING
    return replies, is_whole


def _close(raw: Any) -> None:
    with contextlib.suppress(Exception):
        raw.disconnect()
