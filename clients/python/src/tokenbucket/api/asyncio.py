"""Limiters for asyncio: those of `tokenbucket`, to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Protocol, Self, TypeVar

from ..transport.call import Steps, Terms
from ..transport.server import BaseServer
from ..transport.tasks import Transports, of_loop
from ..values.decision import Decision, Denied, JointDecision
from ..values.errors import BadArgument
from ..values.limit import Limit, Number
from .batches import Batch, Batches, Waiter
from .hold import HoldOperations, Used
from .joint import BaseJointLimiter
from .limiter import BaseLimiter
from .operations import Backend, Part

T = TypeVar("T")
Awaited = Coroutine[Any, Any, T]


class Client(Protocol):
    """`redis.asyncio.Redis`, `valkey.asyncio.Valkey`, their cluster clients, or the fake."""

    async def execute_command(self, *args: Any, **options: Any) -> Any: ...


class Server(BaseServer[Client]):
    __doc__ = BaseServer.__doc__

    is_asynchronous = True
    _of_transport = Transports

    def _set_up(self) -> None:
        self._detached: set[asyncio.Task[Any]] = set()

    async def run(self, steps: Steps[T]) -> T:
        """Sends what the steps ask for, until they are over."""
        try:
            call = next(steps)
        except StopIteration as end:
            # Decided here: callers who ask all the time still let the event loop hear the server.
            await asyncio.sleep(0)
            decided: T = end.value
            return decided
        try:
            while True:
                try:
                    if call.pause_s:
                        await asyncio.sleep(call.pause_s)
                    reply = await call.node.transport.here().exchange(call)
                except Exception as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result

    def spawn(self, steps: Steps[Any]) -> None:
        self.detach(self.run(steps))

    def detach(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs it to its end whatever becomes of the caller."""
        task = asyncio.get_running_loop().create_task(work)
        self._detached.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._detached.discard(task)
        if not task.cancelled():
            task.exception()  # those who wait get it

    async def aclose(self) -> None:
        """Closes the connections; the next call makes new ones. The client that was given stays open."""
        for node in self._nodes():
            await node.transport.close()

    close = aclose

    async def ping(self) -> bool:
        """Whether the server answers."""
        return await self.run(self.answers())


async def _to_the_end(task: asyncio.Task[T]) -> T:
    """Waits for it however often this is cancelled, as anyio does at every step, and is cancelled then."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


class _Closing(Backend):
    server: Server
    _of_server = Server

    def _run(self, steps: Steps[T]) -> Awaited[T]:
        return self.server.run(steps)

    async def _run_once(self, steps: Steps[T]) -> T:
        return await asyncio.shield(self.server.detach(self.server.run(steps)))

    async def aclose(self) -> None:
        """Closes connections that no other limiter uses."""
        if self._leave():
            await self.server.aclose()

    def close(self) -> Awaited[None]:
        return self.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Hold(HoldOperations):
    """Asked for when it is awaited, or else by `async with`; `allowed` says with what result.

    `async with` renews it as long as it lasts, and settles it with `used` at its end. It raises
    Denied if the hold was.
    """

    def __init__(self, limiter: _Closing, parts: list[Part], ttl_ms: int, terms: Terms) -> None:
        super().__init__(limiter, parts, ttl_ms, terms)
        self._limiter = limiter
        self._asked = False
        self._timer: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[JointDecision] | None = None

    def __await__(self) -> Generator[Any, None, Self]:
        return self._awaited().__await__()

    async def _awaited(self) -> Self:
        if not self._asked:
            await self.renew()
        return self

    async def renew(self) -> JointDecision:
        """Makes the hold last `ttl_ms` from now; one that has expired is taken anew, given room."""
        if self._is_inherited or self._settling is not None:
            return self.decision
        began = self._limiter._clock.monotonic()
        first, self._asked = not self._asked, True
        decision = await self._limiter._run(self._renew(first))
        self._limiter._tell_all(self._parts, decision, began)
        return decision

    async def settle(self, used: Used | None = None) -> JointDecision:
        """Ends the hold, with `used` as told or as it was set. The first call is final.

        What is not reported counts as used in a bucket that refills; slots of a pool come back. It is
        done to the end even if the caller is cancelled meanwhile, who is so only then.
        """
        if self._is_inherited:
            return self.decision
        return await self._end(self._amounts_used(self.used if used is None else used))

    async def _end(self, parts: list[Part]) -> JointDecision:
        if self._settling is not None:
            return await _to_the_end(self._settling)
        began = self._limiter._clock.monotonic()
        self.stop_renewing()
        self._settling = self._limiter.server.detach(self._settle_after_renewal(parts))
        settled = await _to_the_end(self._settling)
        self._limiter._tell_all(parts, settled, began)
        return settled

    async def _settle_after_renewal(self, parts: list[Part]) -> JointDecision:
        # Waited for, not cancelled: a renewal on its way could arrive after the settlement.
        if self._renewing is not None and not self._renewing.done():
            await asyncio.wait([self._renewing])
        return await self._limiter._run(self._settle(parts))

    async def __aenter__(self) -> Self:
        await self
        if not self.allowed:
            raise Denied(self.decision)
        self.keep_renewing()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        with self._masking_nothing(error):
            try:
                await self.settle()
            except BadArgument:  # of `used`: the hold ends all the same
                await self._end(self._amounts_used(None))
                raise

    def stop_renewing(self) -> None:
        """Leaves the hold to expire, if it is not settled before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def keep_renewing(self) -> None:
        """Renews it until it is settled, as `async with` does."""
        self._timer = asyncio.get_running_loop().call_later(self.renew_every_s, self._begin_renewing)

    def _begin_renewing(self) -> None:
        self.keep_renewing()
        if self._renewing is None or self._renewing.done():
            self._renewing = self._limiter.server.detach(self._renew_now())

    async def _renew_now(self) -> None:
        try:
            await self._limiter._run(self._renew())
        except Exception:
            self._limiter.server.log.exception("a hold was not renewed")


class Limiter(_Closing, BaseLimiter[Server | Client, Awaited[Decision], Hold]):
    __doc__ = BaseLimiter.__doc__

    _of_hold = Hold

    def begin_anew(self) -> None:
        self._fetches: set[asyncio.Task[None]] = set()
        super().begin_anew()

    async def wait(
        self, name: str, cost: Number = 1, *, max_wait_ms: int, limit: Limit | None = None
    ) -> Decision:
        """Reserves and sleeps until it is this caller's turn; a wait that is cancelled gives back."""
        decision = await self.reserve(name, cost, max_wait_ms=max_wait_ms, limit=limit)
        if decision.allowed and decision.retry_after_ms:
            try:
                await self._clock.sleep_async(decision.retry_after_ms / 1000)
            except BaseException:
                self.server.detach(self.server.run(self._give(name, cost, limit)))
                raise
        return decision

    async def aclose(self) -> None:
        """Gives back what batches have left, and closes connections that no other limiter uses."""
        loop = asyncio.get_running_loop()
        if fetches := [task for task in self._fetches if task.get_loop() is loop]:
            await asyncio.wait(fetches)
        for giving in self._give_batches_back(loop):
            await self._run(giving)
        await super().aclose()

    async def _take_batched(self, name: str, cost: int, limit: Limit) -> Decision:
        began = self._clock.monotonic()
        loop = asyncio.get_running_loop()
        batches = of_loop(self._batches_of, self._new_batches)
        batch, decision = batches.take(name, limit, cost)
        if decision is None and self._denials:
            decision = self._denials.recall(name, limit, max(cost - batch.tokens, 1))
        if decision is None:
            decision = await self._wait_for_batch(batches, batch, cost, loop)
        for giving in self._give_evicted_back(batches):
            self.server.spawn(giving)
        self._tell(name, limit, decision, began)
        return decision

    async def _wait_for_batch(
        self, batches: Batches, batch: Batch, cost: int, loop: asyncio.AbstractEventLoop
    ) -> Decision:
        ready = loop.create_future()
        waiter = Waiter(cost, lambda: None if ready.done() else ready.set_result(None))
        batch.waiting.append(waiter)
        if batch.leader is None:
            batch.leader = self.server.detach(self._fetch_for_all(batches, batch))
            self._fetches.add(batch.leader)
            batch.leader.add_done_callback(self._fetches.discard)
        try:
            await ready
        except asyncio.CancelledError:
            batch.leave(waiter)
            raise
        return waiter.result()

    async def _fetch_for_all(self, batches: Batches, batch: Batch) -> None:
        """Detached: the fetched tokens are for all callers, not only for the one that began."""
        try:
            await asyncio.sleep(0)  # those that take in the same round of the loop share the fetch
            while batch.waiting:
                await self.server.run(self._fetch(batches, batch))
        finally:
            batch.leader = None


class JointLimiter(
    _Closing, BaseJointLimiter[Server | Client, Awaited[Decision], Awaited[JointDecision], Hold]
):
    __doc__ = BaseJointLimiter.__doc__

    _of_hold = Hold
