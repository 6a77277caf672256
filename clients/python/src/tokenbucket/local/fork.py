"""What has to begin anew in a process that was forked: nothing is shared over a fork."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    def _begin_anew(self) -> None:
        """Forgets connections, locks, batches and whatever else belongs to the parent."""


_known: WeakSet[Forkable] = WeakSet()


def begins_anew_after_fork(one: Forkable) -> None:
    _known.add(one)


def _after_fork() -> None:
    for one in list(_known):
        one._begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
