"""Holds whose settlement failed: they are settled by their ids once the server answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..transport.call import Steps
from ..transport.commands import Command
from ..values.constants import AGAIN_S, MOST_UNSETTLED

CameBack = Callable[[], None]


class Unsettled:
    """The commands that settle them: when each is due, until when it is of use, if it is the last, if the
    server has had the hold, and what to call when it is settled."""

    def __init__(self) -> None:
        self._waiting: dict[Command, tuple[float, float, bool, bool, CameBack]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, words: Command, for_s: float, in_s: float, is_known: bool, came_back: CameBack) -> None:
        """Those that the server has had go first: an outage makes many that it may never have seen."""
        now = time.monotonic()
        if len(self._waiting) >= MOST_UNSETTLED:
            waiting = tuple(self._waiting.items())
            doubtful = next((other for other, at in waiting if not at[3]), None)
            if doubtful is None and not is_known:
                return
            self._waiting.pop(doubtful or waiting[0][0], None)
        self._waiting[words] = now + in_s, now + for_s, False, is_known, came_back

    def drain(self) -> list[Command]:
        """Returns what settles all of them, and forgets them."""
        waiting, self._waiting = self._waiting, {}
        return list(waiting)

    def settle(self, server: Any) -> Steps[float]:
        """Settles those that are due, and returns in how many seconds others are."""
        now = time.monotonic()
        due = [(words, at) for words, at in tuple(self._waiting.items()) if at[0] <= now]
        replies = (yield from server._ask_each([words for words, _ in due])) if due else []
        for (words, (_, until, is_last, is_known, came_back)), reply in zip(due, replies, strict=True):
            now = time.monotonic()
            if self._waiting.pop(words, None) is None:  # the server was closed meanwhile
                continue
            if isinstance(reply, list):
                came_back()
            if isinstance(reply, list) and not is_last:
                self._waiting[_without_use(words)] = now + AGAIN_S, until, True, is_known, came_back
            elif reply is None and now < until:
                retry_at = now + max(server.retry_every_ms / 1000, 0.05)
                self._waiting[words] = retry_at, until, is_last, is_known, came_back
        return min((at[0] for at in tuple(self._waiting.values())), default=now) - now


def _without_use(words: Command) -> Command:
    """The use was charged: what a late hold has taken since comes back whole."""
    return tuple(0 if at > 3 and at % 4 == 2 else word for at, word in enumerate(words))
