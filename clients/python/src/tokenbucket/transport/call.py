"""A call: what is sent at once to one node."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from .commands import Command, Commands, waiting

T = TypeVar("T")

PING: Commands = (("PING",),)


@dataclass(slots=True)
class Terms:
    """How a command is sent."""

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
    until: float | None = None
    """When its wait in the server ends; None if it does not wait there."""
    was_sent: bool = False
    """Is set when the server did not answer, and may have executed it."""


class Call:
    """One or more commands in one write."""

    __slots__ = ("future", "node", "pause_s", "replies", "sent_at", "share", "until", "words")

    def __init__(self, node: Any, words: Commands, terms: Terms | None = None, pause_s: float = 0.0) -> None:
        self.node, self.words, self.pause_s = node, words, pause_s
        self.until = terms.until if terms else None
        self.share = terms.share if terms else ()
        # Of asyncio.
        self.future: Any = None
        self.replies: list[Any] = []
        self.sent_at = 0.0

    def to_send(self) -> Commands:
        """Returns the commands to write: that of a call that waits says for how long."""
        if self.until is None:
            return self.words
        *before, last = self.words
        return (*before, waiting(last, max(int(-(-self.left_s * 1000 // 1)), 0), self.share))

    @property
    def left_s(self) -> float:
        """How long it waits in the server at most from now on; negative if that should be over."""
        return 0.0 if self.until is None else self.until - time.monotonic()

    def reply_of(self, replies: list[Any]) -> Any:
        return replies[0] if len(self.words) == 1 else replies


Steps = Generator[Call, Any, T]
"""Yields calls, is sent their replies or has errors thrown in, and returns a T."""
