"""What limiters raise, and what the errors of a server mean."""

from __future__ import annotations


class TokenBucketError(Exception):
    """The base of every error of this package."""


class BadArgument(TokenBucketError, ValueError):
    """An argument of the call is wrong. The message says which."""


class ServerAway(TokenBucketError):
    """The server did not decide, and `on_error` is "raise"."""


class ReplyLost(ServerAway):
    """The command was sent and its reply lost: the server may or may not have executed it."""


class ModuleMissing(TokenBucketError):
    """The server has not loaded the tokenbucket module, which the call needs."""


class CrossSlot(TokenBucketError):
    """The buckets of one call are in several slots of a cluster: give their names a common hash tag."""


class ReplyError(Exception):
    """An error line of a server."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.word = line.split(" ", 1)[0]
        self.is_unserved = line.startswith("CLUSTERDOWN Hash slot not served")
        """The node knows of none that serves the slot. It decides what is in its own slots."""

    @property
    def is_away(self) -> bool:
        """Returns whether the server is up and cannot decide anything yet."""
        return self.word in AWAY and not self.is_unserved

    @property
    def is_refusing(self) -> bool:
        """Returns whether it refuses this write, which says nothing about the next."""
        return self.word in REFUSING or self.is_unserved


class Unanswered(Exception):
    """The server did not decide this call.

    `sent`: the command may have been executed. `broken`: the connection broke before the reply.
    """

    def __init__(self, reason: object, *, sent: bool = False, broken: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent
        self.broken = broken


AWAY = {"LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "UNKILLABLE"}
REFUSING = {"OOM", "READONLY", "MISCONF", "NOREPLICAS", "TRYAGAIN", "UNBLOCKED"}
