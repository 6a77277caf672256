"""What has to begin anew in a process that was forked: nothing is shared over a fork."""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

_known: WeakSet[Any] = WeakSet()


def begins_anew_after_fork(one: Any) -> None:
    """Calls its `_begin_anew` in a forked process, to forget connections, locks and batches of the parent."""
    _known.add(one)


def _after_fork() -> None:
    for one in list(_known):
        one._begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
