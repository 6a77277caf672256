"""A call: what is sent at once to one node."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, TypeVar

from .commands import Command, Commands, waiting

T = TypeVar("T")

PING: Commands = (("PING",),)


@dataclass(slots=True)
class Call:
    once: bool = False
    """Must not be sent a second time."""
    pause_s: float = 0.0
    """How long to wait before it is sent."""
    max_wait_ms: float = 0
    """How long it may wait its turn in the server."""
    share: Command = ()
    """The words that name its tenant and weight; none without a share."""
    renews: bool = False
    """The server renews its hold, and takes nothing; `on_error` decides on the hold."""
    each: int = 0
    """How many buckets an alternative has; 0 of a call without alternatives."""
    until: float | None = None
    """When its wait in the server ends; None if it does not wait there."""
    was_sent: bool = False
    """Is set when the server did not answer, and may have executed it."""

    def chosen(self, parts: Sequence[T], number: int) -> Sequence[T]:
        """Returns the parts of the alternative of this number; none of 0. All, without alternatives."""
        return parts[(number - 1) * self.each : number * self.each] if self.each else parts


@dataclass(slots=True, eq=False)
class Attempt:
    """One or more commands in one write. The reply is a list of theirs."""

    circuit: Any
    words: Commands
    call: Call = field(default_factory=Call)
    # Of asyncio.
    future: Any = None
    replies: list[Any] = field(default_factory=list)
    sent_in: int = 0
    """The turn of its connection."""

    def to_send(self) -> Commands:
        """Returns the commands to write: that of a call that waits says for how long."""
        if self.call.until is None:
            return self.words
        *before, last = self.words
        return (*before, waiting(last, max(ceil(self.left_s * 1000), 0), self.call.share))

    @property
    def left_s(self) -> float:
        """How long it waits in the server at most from now on; negative if that should be over."""
        return (self.call.until or 0.0) - time.monotonic()


Steps = Generator[Attempt, Any, T]
"""Yields calls, is sent their replies or has errors thrown in, and returns a T."""
