"""Limiters for threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

from . import _core
from ._connections import routed
from ._core import HoldOperations, JointOperations, OnDecision, OnError, Operations, Part, Used
from ._decision import Decision, Denied, JointDecision
from ._limit import Limit, Number
from ._server import Steps, log

T = TypeVar("T")


class Client(Protocol):
    """`redis.Redis`, `valkey.Valkey`, their cluster clients, or the fake."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...


def run(client: Client, steps: Steps[T]) -> T:
    """Sends what the steps ask for, until they are over."""
    try:
        command = next(steps)
        while True:
            try:
                reply = client.execute_command(*command, **routed(client, command))
            except Exception as error:
                command = steps.throw(error)
            else:
                command = steps.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


class _Closing(_core.Asker):
    def _run(self, steps: Steps[T]) -> T:
        return run(self._client, steps)

    def close(self) -> None:
        """Closes connections that no other limiter uses. The client that was given stays open."""
        client = self._client
        if self._leave():
            client.close()
            client.connection_pool.disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Limiter(_Closing, Operations):
    """One limit for many names; each name has a bucket of its own, under `prefix` + name.

    `on_error` decides when the server does not answer within `timeout_ms`: "open" lets everybody
    through, "closed" nobody, "raise" raises ServerAway. While it is away one call every
    `retry_every_ms` asks, the others are decided at once. What is the caller's mistake is raised
    under each of them.

    `fallback="script"`: a Lua script decides where the server lacks the module. `remember_denials`:
    so many denied names are refused here until their time has come. `batch`: so many tokens are
    fetched at a time and spent here. `on_decision` is told of every decision.

    A limit given to a call is for that call alone.
    """

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
            new_lock=threading.Lock,
        )

    def take(self, name: str, cost: Number = 1, *, limit: Limit | None = None) -> Decision:
        """Takes `cost` tokens if the bucket holds them, else nothing."""
        batch = self._batch_for(name, cost, limit)
        if batch is None:
            return self._run(self._take(name, cost, limit))
        with batch.lock:
            return self._run(self._take_from(batch, int(cost)))

    def peek(self, name: str, cost: Number = 1, *, limit: Limit | None = None) -> Decision:
        """What `take` would decide; `remaining` is as after it. Of cost 0, what there is."""
        return self._run(self._peek(name, cost, limit))

    def take_up_to(self, name: str, most: int, *, limit: Limit | None = None) -> Decision:
        """Takes as many whole tokens as there are, at most `most`: see `granted`."""
        return self._run(self._take_up_to(name, most, limit))

    def reserve(
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
        `sleep=False` the caller waits for `retry_after_ms` itself. A wait that is broken off gives
        the tokens back.
        """
        decision = self._run(self._reserve(name, cost, max_wait_ms, limit))
        if sleep and decision.allowed and decision.retry_after_ms:
            try:
                self._clock.sleep(decision.retry_after_ms / 1000)
            except BaseException:
                self.give(name, cost, limit=limit)
                raise
        return decision

    def charge(self, name: str, amount: Number, *, limit: Limit | None = None) -> Decision:
        """Takes `amount` in any case, into debt if need be."""
        return self._run(self._charge(name, amount, limit))

    def give(self, name: str, amount: Number, *, limit: Limit | None = None) -> Decision:
        """Puts `amount` back, never above the capacity."""
        return self._run(self._give(name, amount, limit))

    def hold(self, name: str, amount: Number, *, ttl_ms: int = 30_000, limit: Limit | None = None) -> Hold:
        """Takes `amount` until `with` is over, or for `ttl_ms` if its holder is gone."""
        return Hold(self, [Part("", name, limit or self.limit, amount)], ttl_ms)

    def close(self) -> None:
        """Gives back what batches have left, and closes connections that no other limiter uses."""
        for giving in self._give_batches_back():
            self._run(giving)
        super().close()


class JointLimiter(_Closing, JointOperations):
    """Several limits, each under a name of its own, that are taken all together or not at all.

    The bucket of limit `which` is `prefix` + "{name}:" + which. The options are those of `Limiter`.
    Instead of one name, calls take a mapping with one for each limit; in a cluster these have to
    contain the same hash tag.
    """

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

    def take_all(
        self,
        name: str | Mapping[str, str],
        costs: Mapping[str, Number],
        *,
        limits: Mapping[str, Limit] | None = None,
    ) -> JointDecision:
        """Takes every cost or none."""
        return self._run(self._take_all(name, costs, limits))

    def hold(
        self,
        name: str | Mapping[str, str],
        amounts: Mapping[str, Number],
        *,
        ttl_ms: int = 30_000,
        limits: Mapping[str, Limit] | None = None,
    ) -> Hold:
        """Holds every amount or none, until `with` is over, or for `ttl_ms` if its holder is gone."""
        return Hold(self, self._parts(name, amounts, limits), ttl_ms)


class Hold(HoldOperations):
    """Asked for when it is made; `allowed` says with what result.

    `with` renews it as long as it lasts, and settles it with `used` at its end. It raises Denied if
    the hold was.
    """

    def __init__(self, limiter: _Closing, parts: list[Part], ttl_ms: int) -> None:
        super().__init__(limiter, parts, ttl_ms)
        self._limiter = limiter
        self._over = threading.Event()
        self.renew()

    def renew(self) -> JointDecision:
        """Makes the hold last `ttl_ms` from now; one that has expired is taken anew, given room."""
        return self._limiter._run(self._renew())

    def settle(self, used: Used | None = None) -> None:
        """Ends the hold; what `with` does at its end, with `used` as told or as it was set."""
        self._limiter._run(self._settle(self.used if used is None else used))

    def __enter__(self) -> Self:
        if not self.allowed:
            raise Denied(self.decision)
        self._renewing = threading.Thread(target=self._renew_until_over, daemon=True)
        self._renewing.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Waited for: a renewal on its way could arrive after the settlement.
        self.stop_renewing()
        self._renewing.join()
        self.settle()

    def stop_renewing(self) -> None:
        """Leaves the hold to expire, if it is not settled before."""
        self._over.set()

    def _renew_until_over(self) -> None:
        while not self._over.wait(self._renew_every_s):
            try:
                self.renew()
            except Exception:
                log.exception("a hold was not renewed")
