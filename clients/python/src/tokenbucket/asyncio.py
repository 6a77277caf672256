"""Limiters for asyncio: those of `tokenbucket`, to be awaited."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol, Self, TypeVar

from .api.hold import HoldOperations, Used
from .api.joint import BaseJointLimiter
from .api.limiter import BaseLimiter
from .api.operations import Backend, Part
from .api.unsettled import Unsettled
from .transport.call import Call, Steps
from .transport.server import BaseServer
from .transport.tasks import Tasks, Transports
from .values.decision import Decision, Denied
from .values.errors import ServerAway

T = TypeVar("T")
Awaited = Coroutine[Any, Any, T]


def _coroutine_functions(*names: str) -> Callable[[type[T]], type[T]]:
    """Makes these methods coroutine functions: all others are run in a thread by some frameworks, such as
    Starlette for its background tasks, and what they return is not awaited."""

    def of(kind: type[T]) -> type[T]:
        for name in names:
            setattr(kind, name, _coroutine_function(getattr(kind, name)))
        return kind

    return of


def _coroutine_function(call: Callable[..., Awaited[T]]) -> Callable[..., Awaited[T]]:
    @functools.wraps(call)
    async def called(*arguments: Any, **options: Any) -> T:
        return await call(*arguments, **options)

    return called


class Client(Protocol):
    """`redis.asyncio.Redis`, `valkey.asyncio.Valkey`, their cluster clients, or the fake."""

    async def execute_command(self, *args: Any, **options: Any) -> Any: ...


class Server(BaseServer[Client]):
    __doc__ = BaseServer.__doc__

    _is_asynchronous = True
    _of_transport = Transports

    def _set_up(self) -> None:
        self._unsettled = Unsettled()
        self._detached = Tasks()
        self._later: dict[Callable[[], None], asyncio.AbstractEventLoop] = {}
        """What begins tasks at a moment to come, or when the server is closed."""
        self._settles_on: asyncio.AbstractEventLoop | None = None
        """The event loop that has a timer for unsettled holds."""

    def _begin_anew(self) -> None:
        self._unsettled.drain()
        self._settles_on = None
        self._later.clear()
        super()._begin_anew()

    async def _run(self, steps: Steps[T]) -> T:
        """Sends what the steps ask for, until they are over."""
        if self._unsettled and (self._settles_on is None or self._settles_on.is_closed()):
            self._settle_in(0)
        attempt = None
        try:
            attempt = next(steps)
            while True:
                try:
                    reply = await attempt.circuit.transport.here().exchange(attempt)
                except Exception as error:
                    attempt = steps.throw(error)
                else:
                    attempt = steps.send(reply)
        except StopIteration as end:
            if attempt is None:  # decided here: a caller in a loop still lets the event loop read
                await asyncio.sleep(0)
            result: T = end.value
            return result
        finally:
            steps.close()  # of a cancelled call

    def _settle_in(self, delay_s: float) -> None:
        """Sets the timer of this event loop. It is no task, so that nothing cancels it."""
        with contextlib.suppress(RuntimeError):  # no event loop runs any more
            loop = asyncio.get_running_loop()
            if self._settles_on is not loop:
                self._settles_on = loop
                loop.call_later(delay_s, self._settle_now)

    def _settle_now(self) -> None:
        self._detach(self._run(self._unsettled.settle(self))).add_done_callback(self._have_settled)

    def _have_settled(self, task: asyncio.Task[float]) -> None:
        self._settles_on = None
        if self._unsettled:
            self._settle_in(1.0 if task.cancelled() or task.exception() else max(task.result(), 0))

    def _detach(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._detached.begin(work, asyncio.get_running_loop())

    def _detach_in(self, delay_s: float, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        loop = asyncio.get_running_loop()

        def begin() -> None:
            if self._later.pop(begin, None):
                self._detach(work())

        for later, its_loop in tuple(self._later.items()):
            if its_loop.is_closed():
                self._later.pop(later, None)
        self._later[begin] = loop
        loop.call_later(delay_s, begin)

    async def aclose(self) -> None:
        """Closes the connections; the next call makes new ones. The client that was given stays open.

        Holds in doubt are settled now, or else end by their ttl.
        """
        here = asyncio.get_running_loop()
        for begin, loop in tuple(self._later.items()):
            if loop is here:
                begin()
        await self._detached.end_here()
        await self._run(self._settle_last(self._unsettled.drain()))
        for circuit in self._circuits():
            await circuit.transport.close()


async def _to_the_end(task: asyncio.Task[Decision]) -> Decision:
    """Waits for it however often this is cancelled, as anyio does at every step, and is cancelled then."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return Decision(allowed=False, lost=True) if task.cancelled() else task.result()


class TaskBackend(Backend["Server | Client", Awaited[Decision], "Hold"]):
    server: Server
    _of_server = Server

    def _run(self, steps: Steps[T]) -> Awaited[T]:
        return self.server._run(steps)

    async def _run_once(self, steps: Steps[T]) -> T:
        return await asyncio.shield(self.server._detach(self.server._run(steps)))

    async def aclose(self) -> None:
        """Closes connections that no other limiter uses."""
        if self._leave():
            await self.server.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


@_coroutine_functions("settle")
class Hold(HoldOperations[Awaited[Decision]]):
    """Tokens that are held for a piece of work. `await` or `async with` asks; `allowed` is the decision.

    `async with` renews it as long as it lasts, and settles it with `used` at its end. It raises
    Denied if the hold was denied. `used`, `lost`, `on_lost` and `remaining` are those of `tokenbucket.Hold`.
    """

    _backend: TaskBackend

    def __init__(self, limiter: TaskBackend, parts: list[Part], ttl_ms: int, call: Call) -> None:
        super().__init__(limiter, parts, ttl_ms, call)
        self._asked = False
        self._timer: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[Decision] | None = None

    def __await__(self) -> Generator[Any, None, Self]:
        return self._awaited().__await__()

    async def _awaited(self) -> Self:
        if not self._asked and self._settling is None:
            self._asked, began = True, self._backend._clock.monotonic()
            await self._backend._run(self._renew(first=True))
            self._backend._report(self._parts, self.decision, began)
        return self

    async def _end(self, used: Used | None) -> Decision:
        if self._is_inert:
            return self.decision
        parts = self._amounts_used(used)
        if self._settling is not None:
            return await _to_the_end(self._settling)
        self._stop_renewing()

        def settle_if_cancelled(task: asyncio.Task[Decision]) -> None:
            # As all tasks are, perhaps before its first step.
            if task.cancelled() and self._is_sent and parts:
                self._settle_later(parts)

        self._settling = self._backend.server._detach(self._settle_after_renewal(parts))
        self._settling.add_done_callback(settle_if_cancelled)
        return await _to_the_end(self._settling)

    async def _settle_after_renewal(self, parts: list[Part]) -> Decision:
        # Waited for, not cancelled: a renewal on its way could arrive after the settlement.
        if self._renewing is not None and not self._renewing.done():
            await asyncio.wait([self._renewing])
        return await self._backend._run(self._settle(parts))

    async def __aenter__(self) -> Self:
        await self
        if not self.allowed:
            raise Denied(self.decision)
        self.keep_renewing()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        await self._leave(error)

    def _stop_renewing(self) -> None:
        """Leaves the hold to expire, unless it is settled before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def keep_renewing(self) -> None:
        """Renews the hold until it is settled, as `async with` does."""
        self._timer = asyncio.get_running_loop().call_later(self._renew_every_s, self._begin_renewing)

    def _begin_renewing(self) -> None:
        if not self._is_renewed:
            return
        self.keep_renewing()
        if self._renewing is None or self._renewing.done():
            self._renewing = self._backend.server._detach(self._renew_now())

    async def _renew_now(self) -> None:
        if not self._is_renewed:
            return
        try:
            await self._backend._run(self._renew())
        except ServerAway:  # an outage has a line of its own
            return
        except Exception:
            self._backend.server.log.exception("a hold was not renewed")


@_coroutine_functions("take", "peek", "take_up_to", "reserve", "wait", "charge", "give", "reset")
class Limiter(TaskBackend, BaseLimiter[Server | Client, Awaited[Decision], Hold]):
    """One limit for many names, to be awaited. Options and calls are those of `tokenbucket.Limiter`.

    >>> import asyncio
    >>> from tokenbucket import Limit
    >>> from tokenbucket.asyncio import Limiter
    >>> from tokenbucket.testing import FakeServer
    >>> async def main():
    ...     limiter = Limiter(FakeServer().asyncio, Limit(10, "5/s"))  # or a URL, or a client
    ...     if await limiter.take("user:42"):
    ...         print("go on")
    ...     async with limiter.hold("user:42", 5) as hold:  # the most that the work may cost
    ...         hold.used = 2  # what it did cost
    ...     print((await limiter.peek("user:42", 0)).remaining)
    >>> asyncio.run(main())
    go on
    7
    """

    _of_hold = Hold

    def _finish(self, work: Awaited[Decision]) -> Awaited[Decision]:
        return work

    async def aclose(self) -> None:
        """Gives back what batches have left, and closes connections that no other limiter uses."""
        self._batches.drain()
        await self._run(self._give_back())
        await super().aclose()


@_coroutine_functions("take_all", "take_any", "reset")
class JointLimiter(TaskBackend, BaseJointLimiter[Server | Client, Awaited[Decision], Hold]):
    __doc__ = BaseJointLimiter.__doc__

    _of_hold = Hold
