"""Limiters for threads."""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol, Self, TypeVar

from ..transport.call import Call, Steps
from ..transport.server import BaseServer
from ..transport.threads import Transport, run
from ..values.constants import AGAIN_S
from ..values.decision import Decision, Denied
from ..values.errors import TokenBucketError
from .hold import HoldOperations, Used
from .joint import BaseJointLimiter
from .limiter import BaseLimiter
from .operations import Backend, Part, at_once
from .renewals import NO_WORK, Renewals
from .unsettled import Unsettled

T = TypeVar("T")


class Client(Protocol):
    """`redis.Redis`, `valkey.Valkey`, their cluster clients, or the fake."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...


class Server(BaseServer[Client]):
    __doc__ = BaseServer.__doc__

    _is_asynchronous = False
    _of_transport = Transport

    def _set_up(self) -> None:
        self._unsettled = Unsettled()
        self._renewals = Renewals(self)

    def _begin_anew(self) -> None:
        self._unsettled.drain()
        self._renewals._begin_anew()
        super()._begin_anew()

    def _run(self, steps: Steps[T]) -> T:
        if self._renewals.is_stalled:
            self._renewals.wake()
        return run(steps)

    def _settle_in(self, _: float) -> None:
        self._renewals.wake()

    def close(self) -> None:
        """Closes the connections; the next call makes new ones. The client that was given stays open.

        Holds in doubt are settled now, or else end by their ttl.
        """
        run(self._settle_last(self._unsettled.drain()))
        for circuit in self._circuits():
            circuit.transport.drop()


class ThreadBackend(Backend["Server | Client", Decision, "Hold"]):
    server: Server
    _of_server = Server

    def _run(self, steps: Steps[T]) -> T:
        return self.server._run(steps)

    _run_once = _run

    def close(self) -> None:
        """Closes connections that no other limiter uses."""
        if self._leave():
            self.server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Hold(HoldOperations[Decision]):
    """Tokens that are held for a piece of work. `Limiter.hold` makes it; `allowed` is the server's decision.

    `with` renews it as long as it lasts, and settles it with `used` at its end. It raises Denied if
    the hold was denied.

    `used` is what the work used, of several limits a dict. `lost` becomes true, and `on_lost` is called,
    when the server no longer has the hold. `remaining` is what each limit had left at the last reply.

    >>> from tokenbucket import Limit, Limiter
    >>> from tokenbucket.testing import FakeServer
    >>> limiter = Limiter(FakeServer(), Limit(1000, "1000/m"))
    >>> with limiter.hold("alice", 500) as hold:  # the most that the work may cost
    ...     hold.used = 120  # what it did cost
    >>> limiter.peek("alice", 0).remaining
    880
    >>> hold = limiter.hold("alice", 500)  # as for work that ends elsewhere
    >>> hold.keep_renewing()
    >>> hold.settle(120).remaining
    760
    """

    _backend: ThreadBackend

    def __init__(self, limiter: ThreadBackend, parts: list[Part], ttl_ms: int, call: Call) -> None:
        super().__init__(limiter, parts, ttl_ms, call)
        self._is_over = False
        # A renewal on its way could arrive after the settlement.
        self._one_at_a_time = threading.RLock()
        self._renewing = NO_WORK
        self._settled: Decision | Exception | None = None
        began = limiter._clock.monotonic()
        try:
            limiter._run(self._renew(first=True))
            limiter._report(self._parts, self.decision, began)
        except BaseException:
            if self.decision.allowed:  # interrupted: no work runs under it
                self._abandon()
            raise

    def _renew_now(self) -> None:
        with self._one_at_a_time:
            if self._is_renewed and not self._is_over:
                self._backend._run(self._renew())

    def _end(self, used: Used | None) -> Decision:
        if self._is_inert:
            return self.decision
        parts = self._amounts_used(used)
        if self._settled is None:
            self._stop_renewing()
            self._await_renewal()
            with self._one_at_a_time:
                if self._settled is None:
                    self._settled = self._settle_once(parts)
        if isinstance(self._settled, Exception):
            raise self._settled
        return self._settled

    def _await_renewal(self) -> None:
        """Waits for one that is on its way. What arrives after the settlement all the same is ended again."""
        ends_at = time.monotonic() + self._backend.server.timeout_ms / 1000
        while self._renewing() is not None:
            if time.monotonic() > ends_at:
                self._abandon(in_s=AGAIN_S)
                return
            time.sleep(0.001)

    def _settle_once(self, parts: list[Part]) -> Decision | Exception:
        try:
            return self._backend._run(self._settle(parts))
        except TokenBucketError as error:
            return error
        except BaseException:  # interrupted
            self._settled = Decision(allowed=False, lost=True)
            raise

    def __enter__(self) -> Self:
        if not self.allowed:
            raise Denied(self.decision)
        self.keep_renewing()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._stop_renewing()  # first: if this is interrupted, the hold ends by its ttl
        at_once(self._leave(error))

    def keep_renewing(self) -> None:
        """Renews the hold until it is settled, as `with` does."""
        self._backend.server._renewals.add(self)

    def _stop_renewing(self) -> None:
        """Leaves the hold to expire, unless it is settled before."""
        self._is_over = True


class Limiter(ThreadBackend, BaseLimiter[Server | Client, Decision, Hold]):
    __doc__ = BaseLimiter.__doc__

    _of_hold = Hold
    _finish = staticmethod(at_once)

    def close(self) -> None:
        """Gives back what batches have left, and closes connections that no other limiter uses."""
        self._batches.drain()
        self._run(self._give_back())
        super().close()


class JointLimiter(ThreadBackend, BaseJointLimiter[Server | Client, Decision, Hold]):
    __doc__ = BaseJointLimiter.__doc__

    _of_hold = Hold
