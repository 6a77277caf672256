"""A call: what is sent at once to one node, and what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from .circuit import Node
from .commands import Command, Commands, owed, waiting

T = TypeVar("T")

PING: Commands = (("PING",),)
_ID: Command = ("CLIENT", "ID")


@dataclass(slots=True)
class Terms:
    """How a question is asked."""

    once: bool = False
    """Must not be sent a second time: a connection that was idle is tried before."""
    always: bool = False
    """Asks even while the server is thought to be away."""
    late: Callable[[Any], None] | None = None
    """Gets the reply if it comes when no caller waits for it any more."""
    calls: list[Call] | None = None
    """Is given the calls that are made, so that their late replies can be judged."""
    pause_s: float = 0.0
    """How long to wait before it is sent."""
    max_wait_ms: float = 0
    """How long it may wait its turn in the server."""
    share: Command = ()
    """The words that say of whose share of the waiting calls it is; none if of nobody's."""
    until: float | None = None
    """When its wait in the server ends; None if it does not wait there."""


PLAIN = Terms()


class Call:
    """One or more commands in one write, and what becomes of a reply that comes too late."""

    def __init__(
        self, node: Node, commands: Commands, words: Commands | None = None, terms: Terms = PLAIN
    ) -> None:
        self.node = node
        self.commands = commands
        """As for the module: a late grant is given back by them."""
        self.words = words or commands
        self.once, self.late, self.until, self.share = terms.once, terms.late, terms.until, terms.share
        self.pause_s = terms.pause_s
        self.undo = False
        """What it took goes back: its caller has gone, or was denied in the meantime."""
        self.is_over = False
        """Nothing comes for it any more."""
        self.is_parted = False
        """Of threads: its connection has been given back, or is read by another."""
        self.claim = iter([True])
        """Taken by what gives back, so that it is done once."""
        self.by: Any = None
        """The connection by which it was sent."""
        self.sent: Commands = ()
        """What was written, and what the replies are to."""
        self.replies: list[Any] = []
        self.tick = 0
        self.future: Any = None

    def to_send(self) -> Commands:
        """Returns the commands to write. A call that waits asks first who it is to the server.

        The reply to that tells a server that is away from one that lets the call wait, and by the id
        another connection can end the wait.
        """
        if self.until is None:
            self.sent = self.words
        else:
            *before, last = self.words
            max_wait_ms = int(-(-self.left_s * 1000 // 1))
            self.sent = (_ID, *before, waiting(last, max_wait_ms, self.share))
        self.replies = []
        return self.sent

    @property
    def left_s(self) -> float:
        """How long it waits in the server at most from now on."""
        return 0.0 if self.until is None else max(self.until - time.monotonic(), 0.0)

    @property
    def is_answered(self) -> bool:
        return bool(self.sent) and len(self.replies) == len(self.sent)

    @property
    def quiet_s(self) -> float:
        """How long silence means nothing: the server has replied that it lets the call wait."""
        return self.left_s if len(self.replies) == len(self.sent) - 1 else 0.0

    @property
    def reply(self) -> Any:
        replies = self.replies[len(self.sent) - len(self.words) :]
        return replies[0] if len(replies) == 1 else replies

    def owed(self) -> list[Command]:
        """Returns, once, what gives back what a call took that no caller waits for.

        Asked when the caller has gone, and when nothing comes any more: the later of them gets it.
        """
        if not self.is_over or not (self.undo or self.late) or not next(self.claim, False):
            return []
        reply = self.reply if self.is_answered else None
        if self.late is None:
            return owed(self.commands[0], reply)
        if reply is not None:
            self.late(reply)
        return []


Steps = Generator[Call, Any, T]
"""Yields calls, is sent their replies or has errors thrown in, and returns a T."""
