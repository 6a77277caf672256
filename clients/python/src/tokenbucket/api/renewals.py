"""One thread that renews the holds of a server."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from typing import Any
from weakref import ref


class Renewals:
    """Holds, and when each of them is to be renewed. Its thread ends with the last of them."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self.begin_anew()

    def begin_anew(self) -> None:
        """In a process that was forked: the holds are the parent's."""
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, ref[Any]]] = []
        self._count = itertools.count()
        self._is_running = False

    def add(self, hold: Any) -> None:
        with self._changed:
            self._plan(hold)
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, daemon=True).start()

    def _plan(self, hold: Any) -> None:
        due = time.monotonic() + hold.renew_every_s
        heapq.heappush(self._due, (due, next(self._count), ref(hold)))
        if self._due[0][0] == due:
            self._changed.notify()

    def _run(self) -> None:
        while (hold := self._next()) is not None:
            try:
                hold.renew_in_background()
            except Exception:
                self._log.exception("a hold was not renewed")
            del hold

    def _next(self) -> Any:
        """Waits for the next hold that is due; None when there is none left."""
        with self._changed:
            while self._due:
                wait_s = self._due[0][0] - time.monotonic()
                if wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                hold = heapq.heappop(self._due)[2]()
                if hold is not None and not hold.is_over:
                    self._plan(hold)
                    return hold
            self._is_running = False
            return None
