"""What is known of one server: until when it is away."""

from __future__ import annotations

import time
from typing import Any

from ..values.constants import CONNECT_WITHIN_S
from ..values.errors import ReplyError, Unanswered
from .driver import Endpoint, is_lack

_SECONDS_BETWEEN_REFUSALS_LOGGED = 60


class Circuit:
    """A server, or one node of a cluster. An outage is one number, so that nothing can get stuck."""

    def __init__(self, endpoint: Endpoint, server: Any, kind: str) -> None:
        self.name = endpoint.name
        self.endpoint = endpoint
        self._who, self._log = f"the {kind} {self.name}", server.log
        self.timeout_s: float = server.timeout_ms / 1000
        self.connect_within_s = max(CONNECT_WITHIN_S, self.timeout_s)
        self._retry_every_s = server.retry_every_ms / 1000
        self._next_refusal_logged = 0.0
        self._begin_anew()
        self.transport: Any = server._of_transport(self)
        """Its connections."""

    def _begin_anew(self) -> None:
        self.away_until = 0.0
        """0 unless the server is away; then no call asks before that moment.

        It is read and written without a call in between, where Python could go on with another thread:
        each outage has its two lines.
        """
        self.failed_at = self.last_heard = self._next_move = 0.0

    def admits(self) -> bool:
        """Returns whether to ask: while the server is away, the first call after that moment does."""
        now = time.monotonic()
        if now < self.away_until:
            return False
        if self.away_until:
            self.away_until = now + self._retry_every_s
        return True

    def let_ask(self) -> None:
        """Lets the next call ask, also a server that is away: no other may come to find out."""
        self.away_until = min(self.away_until, time.monotonic())

    def heard(self, reply: Any) -> None:
        """Notes what the server itself has said: nothing else is a sign of life."""
        self.last_heard = time.monotonic()
        if type(reply) is ReplyError and reply.is_away:
            self.failed(reply, self.last_heard)
        elif self.away_until:
            self.away_until = 0.0
            self._log.warning("%s is back, limiting again", self._who)

    def failed(self, error: Exception, since: float) -> None:
        """Begins an outage or lets it last, unless others were heard since or this process lacks a file."""
        if self.last_heard > since or is_lack(error):
            return
        self.failed_at = now = time.monotonic()
        begins, self.away_until = not self.away_until, now + self._retry_every_s
        if begins:
            self._log.warning("cannot ask %s, every limit does as its on_error says: %s", self._who, error)

    def silent(self, what: str, since: float, within_s: float, *, sent: bool = False) -> Unanswered:
        """Returns the error of a call without a reply. The server is away if no other call heard it."""
        silence = Unanswered(f"no {what} within {within_s * 1000:g} ms", sent=sent)
        self.failed(silence, since)
        return silence

    def refused(self, error: object) -> None:
        """Logs that the server is there, and did not decide this call."""
        now = time.monotonic()
        if now >= self._next_refusal_logged:
            self._next_refusal_logged = now + _SECONDS_BETWEEN_REFUSALS_LOGGED
            self._log.warning("%s refuses, on_error decides such calls: %s", self._who, error)

    def moves(self) -> bool:
        """Returns whether to look for the master behind the endpoint anew: not at every refusal."""
        now = time.monotonic()
        if now < self._next_move:
            return False
        self._next_move = now + self._retry_every_s
        return True

    def connected(self) -> None:
        """Notes that a connection works."""
        self.last_heard = time.monotonic()
