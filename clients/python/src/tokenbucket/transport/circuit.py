"""What is known of one server: whether it is away, and whether a script has to decide there."""

from __future__ import annotations

import threading
import time
from typing import Any

from ..values.errors import Fault, ReplyError, Unanswered, fault_of
from .driver import Endpoint

_SECONDS_BETWEEN_REFUSALS_LOGGED = 60
# A server that answers a moment too late is away and back all the time.
_SECONDS_BETWEEN_OUTAGES_LOGGED = 1
_SECONDS_BETWEEN_LOOKS_FOR_THE_MODULE = 60
# A caller's wait for the server is counted in so many ticks, see `Node.tick_s`.
TICKS = 4

# A connection that was idle for longer is tried before a call is sent that must not happen twice.
IDLE_S = 0.1
# How often a waiting call is ended that its caller has left.
UNBLOCK_EVERY_S = 0.02


class Circuit:
    """Keeps calls from waiting for a server that is away; one at a time finds out whether it is back."""

    def __init__(self, who: str, server: Any) -> None:
        self._who, self._log = who, server.log
        self._timeout_s, self._retry_every_s = server.timeout_ms / 1000, server.retry_every_ms / 1000
        self._next_refusal_logged = self._next_outage_logged = 0.0
        self._is_logged = False
        self.begin_anew()

    def begin_anew(self) -> None:
        self._lock = threading.Lock()
        self.is_away = False
        self._probing_until = 0.0
        self.next_probe = 0.0

    def admits(self) -> bool:
        if not self.is_away:
            return True
        with self._lock:
            now = time.monotonic()
            if now < self.next_probe or now < self._probing_until:
                return False
            self._probing_until = now + self._timeout_s
            return True

    def let_through(self) -> None:
        """The call that was admitted is about to ask."""
        self._probing_until = 0.0

    def heard(self, reply: Any) -> None:
        """Called for a reply while the server is thought to be away, and for every error."""
        if isinstance(reply, ReplyError) and fault_of(reply) is Fault.AWAY:
            self.failed(reply)
            return
        with self._lock:
            was_away, self.is_away, self._probing_until = self.is_away, False, 0.0
        if was_away and self._is_logged:
            self._is_logged = False
            self._log.warning("%s is back, limiting again", self._who)

    def failed(self, error: object) -> None:
        with self._lock:
            was_away, self.is_away, self._probing_until = self.is_away, True, 0.0
            now = time.monotonic()
            self.next_probe = now + self._retry_every_s
            logs = not was_away and now >= self._next_outage_logged
            if logs:
                self._next_outage_logged = now + _SECONDS_BETWEEN_OUTAGES_LOGGED
                self._is_logged = True
        if logs:
            self._log.warning("cannot ask %s, every limit does as its on_error says: %s", self._who, error)

    def refused(self, error: object) -> None:
        """The server is there, and did not decide this call."""
        with self._lock:
            now = time.monotonic()
            if now < self._next_refusal_logged:
                return
            self._next_refusal_logged = now + _SECONDS_BETWEEN_REFUSALS_LOGGED
        self._log.warning("%s refuses, on_error decides such calls: %s", self._who, error)


class Node:
    """A server, or one node of a cluster."""

    def __init__(self, endpoint: Endpoint, server: Any, kind: str) -> None:
        self.name = endpoint.name
        self.endpoint = endpoint
        self._who, self._log = f"the {kind} {self.name}", server.log
        self.circuit = Circuit(self._who, server)
        self.needs_script = False
        """The server has no module, and a script decides instead."""
        self._script_until = 0.0
        self.timeout_s = server.timeout_ms / 1000
        self.tick_s = self.timeout_s / TICKS
        """Waits are counted in ticks, and a tick that comes late counts once: when this process lags,
        the server is not taken for silent."""
        self.stall_s = max(10 * self.timeout_s, 1.0)
        """A connection is given up that tells nothing for so long while others do."""
        self.last_heard = 0.0
        """When anything came from the server, on any connection."""
        self.transport: Any = server._of_transport(self, server)
        """Its connections."""

    def heard(self, reply: Any, now: float) -> None:
        """Called for each reply, whatever connection has brought it."""
        self.last_heard = now
        if self.circuit.is_away or type(reply) is ReplyError:
            self.circuit.heard(reply)

    def silence(self, of: str, *, sent: bool = False) -> Unanswered:
        """Returns what callers get after nothing came from the server for the timeout: it is away."""
        silence = Unanswered(f"no {of} within {self.timeout_s * 1000:g} ms", sent=sent)
        self.circuit.failed(silence)
        return silence

    def connected(self) -> None:
        """Lets the next call ask, and look for the module: the server may be another."""
        self.circuit.next_probe = self._script_until = 0.0

    @property
    def uses_script(self) -> bool:
        return self.needs_script and time.monotonic() < self._script_until

    def begin_script(self) -> None:
        self._script_until = time.monotonic() + _SECONDS_BETWEEN_LOOKS_FOR_THE_MODULE
        if not self.needs_script:
            self._log.warning("%s has no tokenbucket module: the script decides until it has", self._who)
        self.needs_script = True

    def end_script(self) -> None:
        self.needs_script = False
        self._log.warning("%s has the tokenbucket module: the script decides no longer", self._who)
