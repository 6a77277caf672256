"""A thread that renews the holds of a server that are open, and settles those that could not be settled."""

from __future__ import annotations

import _thread
import contextlib
import heapq
import itertools
import queue
import time
from typing import Any
from weakref import ref

from ..transport.threads import Mark
from ..values.errors import ServerAway
from .operations import decision_of
from .unsettled import Unsettled

# What is due so soon is renewed together with what is due.
_TOGETHER_S = 0.02
_MOST_AT_ONCE = 500


NO_WORK = ref(Mark())


class Renewals:
    """Holds, and when each of them is to be renewed. The thread ends when nothing is left to do.

    A call that finds no thread running starts another.
    """

    def __init__(self, server: Any) -> None:
        self._server = ref(server)
        self._unsettled: Unsettled = server._unsettled
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._due: list[tuple[float, int, ref[Any]]] = []
        self._count = itertools.count()
        self._running = NO_WORK

    def add(self, hold: Any) -> None:
        self._plan(hold)
        self.wake()

    def _plan(self, hold: Any) -> None:
        heapq.heappush(self._due, (time.monotonic() + hold._renew_every_s, next(self._count), ref(hold)))

    @property
    def is_stalled(self) -> bool:
        """Returns whether there is something to do, and no thread that does it."""
        return self._running() is None and bool(self._due or self._unsettled)

    def wake(self) -> None:
        if self._running() is not None:
            self._changed.put(None)
            return
        running = Mark()
        # Not made before: gevent may have patched it since, and the old one would stop all greenlets.
        self._changed: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._running = ref(running)
        try:
            _thread.start_new_thread(self._run, (running,))
        except RuntimeError:  # no thread can start
            if self._due and self._due[0][0] < time.monotonic():
                self._renew_due()

    def _run(self, running: Mark) -> None:
        while self._running() is running and (server := self._server()):
            due_s = [server._run(self._unsettled.settle(server))] if self._unsettled else []
            self._renew_due()
            del server
            due_s += [self._due[0][0] - time.monotonic()] if self._due else []
            if not due_s:
                self._running = NO_WORK
                if not self.is_stalled:
                    return
                self._running = ref(running)  # something came in this very moment
                continue
            with contextlib.suppress(queue.Empty):
                self._changed.get(timeout=max(min(due_s), 0))

    def _renew_due(self) -> None:
        server, running = self._server(), Mark()
        holds: list[Any] = []
        until = time.monotonic() + _TOGETHER_S
        while self._due and self._due[0][0] <= until and len(holds) < _MOST_AT_ONCE:
            hold = heapq.heappop(self._due)[2]()
            if hold is not None:
                hold._renewing = ref(running)
                holds += [hold] if hold._is_renewed and not hold._is_over else []
        for hold in holds:
            self._plan(hold)
        if server is None or not holds:
            return
        replies = server._run(server._ask_each([hold._renewal() for hold in holds]))
        for hold, reply in zip(holds, replies, strict=True):
            if reply is None and not hold._is_known:  # it may be on its way
                hold._late = hold._late or hold._held
            if hold._is_over:  # it was settled meanwhile, so the reply may be that it is gone
                continue
            try:
                if isinstance(reply, list):
                    hold._renewed(decision_of(hold._held, reply))
                else:
                    hold._renew_now()
            except ServerAway:  # an outage has a line of its own
                continue
            except (Exception, SystemExit):  # as of an on_lost, which ends no renewals of others
                server.log.exception("a hold was not renewed")
