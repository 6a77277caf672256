"""Limiters for asyncio: those of `tokenbucket`, to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

from . import _core
from ._command import Command
from ._connections import is_cluster, routed
from ._core import HoldOperations, JointOperations, OnDecision, OnError, Operations, Part, Used
from ._decision import Decision, Denied, JointDecision
from ._limit import Limit, Number
from ._server import Steps, log

__all__ = ["Client", "Hold", "JointLimiter", "Limiter"]

T = TypeVar("T")


class Client(Protocol):
    """`redis.asyncio.Redis`, `valkey.asyncio.Valkey`, their cluster clients, or the fake."""

    async def execute_command(self, *args: Any, **options: Any) -> Any: ...


class _Closing(_core.Asker):
    async def _run(self, steps: Steps[T]) -> T:
        """Sends what the steps ask for, until they are over."""
        try:
            command = next(steps)
            while True:
                try:
                    async with asyncio.timeout(self._server.timeout_s):
                        reply = await self._send(command)
                except Exception as error:
                    command = steps.throw(error)
                else:
                    command = steps.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    async def _send(self, command: Command) -> Any:
        client = self._client
        if is_cluster(client):
            await client.initialize()  # once, and after a failure
        return await client.execute_command(*command, **routed(client, command))

    async def aclose(self) -> None:
        """Closes connections that no other limiter uses. The client that was given stays open."""
        client = self._client
        if self._leave():
            await client.aclose()
            await client.connection_pool.disconnect()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Limiter(_Closing, Operations):
    """`tokenbucket.Limiter`, which says what the options mean, for asyncio."""

    def __init__(
        self,
        client: Client,
        limit: Limit,
        prefix: str = "tb:",
        *,
        on_error: OnError = "open",
        timeout_ms: int = 100,
        retry_every_ms: int = 500,
        fallback: Literal["script"] | None = None,
        remember_denials: int = 0,
        batch: int = 0,
        on_decision: OnDecision | None = None,
    ) -> None:
        super().__init__(
            client,
            limit,
            prefix=prefix,
            on_error=on_error,
            timeout_ms=timeout_ms,
            retry_every_ms=retry_every_ms,
            fallback=fallback,
            remember_denials=remember_denials,
            batch=batch,
            on_decision=on_decision,
            new_lock=asyncio.Lock,
        )

    async def take(self, name: str, cost: Number = 1, *, limit: Limit | None = None) -> Decision:
        """Takes `cost` tokens if the bucket holds them, else nothing."""
        batch = self._batch_for(name, cost, limit)
        if batch is None:
            return await self._run(self._take(name, cost, limit))
        async with batch.lock:
            return await self._run(self._take_from(batch, int(cost)))

    async def peek(self, name: str, cost: Number = 1, *, limit: Limit | None = None) -> Decision:
        """What `take` would decide; `remaining` is as after it. Of cost 0, what there is."""
        return await self._run(self._peek(name, cost, limit))

    async def take_up_to(self, name: str, most: int, *, limit: Limit | None = None) -> Decision:
        """Takes as many whole tokens as there are, at most `most`: see `granted`."""
        return await self._run(self._take_up_to(name, most, limit))

    async def reserve(
        self,
        name: str,
        cost: Number = 1,
        *,
        max_wait_ms: int,
        sleep: bool = True,
        limit: Limit | None = None,
    ) -> Decision:
        """Takes `cost`, into debt if need be, and sleeps until it is this caller's turn.

        Denied, at once and without a token taken, if that would be longer than `max_wait_ms`. With
        `sleep=False` the caller waits for `retry_after_ms` itself. A wait that is cancelled gives
        the tokens back.
        """
        decision = await self._run(self._reserve(name, cost, max_wait_ms, limit))
        if sleep and decision.allowed and decision.retry_after_ms:
            try:
                await self._clock.sleep_async(decision.retry_after_ms / 1000)
            except BaseException:
                await self.give(name, cost, limit=limit)
                raise
        return decision

    async def charge(self, name: str, amount: Number, *, limit: Limit | None = None) -> Decision:
        """Takes `amount` in any case, into debt if need be."""
        return await self._run(self._charge(name, amount, limit))

    async def give(self, name: str, amount: Number, *, limit: Limit | None = None) -> Decision:
        """Puts `amount` back, never above the capacity."""
        return await self._run(self._give(name, amount, limit))

    def hold(self, name: str, amount: Number, *, ttl_ms: int = 30_000, limit: Limit | None = None) -> Hold:
        """Takes `amount` until `async with` is over, or for `ttl_ms` if its holder is gone."""
        return Hold(self, [Part("", name, limit or self.limit, amount)], ttl_ms)

    async def aclose(self) -> None:
        """Gives back what batches have left, and closes connections that no other limiter uses."""
        for giving in self._give_batches_back():
            await self._run(giving)
        await super().aclose()


class JointLimiter(_Closing, JointOperations):
    """`tokenbucket.JointLimiter`, which says more, for asyncio."""

    def __init__(
        self,
        client: Client,
        limits: Mapping[str, Limit],
        prefix: str = "tb:",
        *,
        on_error: OnError = "open",
        timeout_ms: int = 100,
        retry_every_ms: int = 500,
        fallback: Literal["script"] | None = None,
        on_decision: OnDecision | None = None,
    ) -> None:
        super().__init__(
            client,
            limits,
            prefix=prefix,
            on_error=on_error,
            timeout_ms=timeout_ms,
            retry_every_ms=retry_every_ms,
            fallback=fallback,
            on_decision=on_decision,
        )

    async def take_all(
        self,
        name: str | Mapping[str, str],
        costs: Mapping[str, Number],
        *,
        limits: Mapping[str, Limit] | None = None,
    ) -> JointDecision:
        """Takes every cost or none."""
        return await self._run(self._take_all(name, costs, limits))

    def hold(
        self,
        name: str | Mapping[str, str],
        amounts: Mapping[str, Number],
        *,
        ttl_ms: int = 30_000,
        limits: Mapping[str, Limit] | None = None,
    ) -> Hold:
        """Holds every amount or none, until `async with` is over, or for `ttl_ms` if its holder is gone."""
        return Hold(self, self._parts(name, amounts, limits), ttl_ms)


class Hold(HoldOperations):
    """Asked for when it is awaited, or else by `async with`; `allowed` says with what result.

    `async with` renews it as long as it lasts, and settles it with `used` at its end. It raises
    Denied if the hold was.
    """

    def __init__(self, limiter: _Closing, parts: list[Part], ttl_ms: int) -> None:
        super().__init__(limiter, parts, ttl_ms)
        self._limiter = limiter
        self._asked = False
        self._over = asyncio.Event()

    def __await__(self) -> Generator[Any, None, Self]:
        return self._awaited().__await__()

    async def _awaited(self) -> Self:
        if not self._asked:
            await self.renew()
        return self

    async def renew(self) -> JointDecision:
        """Makes the hold last `ttl_ms` from now; one that has expired is taken anew, given room."""
        self._asked = True
        return await self._limiter._run(self._renew())

    async def settle(self, used: Used | None = None) -> None:
        """Ends the hold; what `async with` does at its end, with `used` as told or as it was set."""
        await self._limiter._run(self._settle(self.used if used is None else used))

    async def __aenter__(self) -> Self:
        await self
        if not self.allowed:
            raise Denied(self.decision)
        self._renewing = asyncio.create_task(self._renew_until_over())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Waited for, not cancelled: a renewal on its way could arrive after the settlement.
        self.stop_renewing()
        try:
            await self._renewing
        finally:
            await self.settle()

    def stop_renewing(self) -> None:
        """Leaves the hold to expire, if it is not settled before."""
        self._over.set()

    async def _renew_until_over(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._renew_every_s):
                    await self._over.wait()
                return
            except TimeoutError:
                pass
            try:
                await self.renew()
            except Exception:
                log.exception("a hold was not renewed")
