"""Limiters for threads."""

from __future__ import annotations

import _thread
import importlib
import logging
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar
from weakref import WeakValueDictionary

from ..transport.call import Call, Steps
from ..transport.circuit import Node
from ..transport.fork import begins_anew_after_fork
from ..transport.server import LOG, BaseServer
from ..transport.threads import Transport, run
from ..values.decision import Decision, Denied, JointDecision
from ..values.errors import BadArgument, TokenBucketError
from ..values.limit import Limit, Number
from .batches import Batch, Batches, Waiter
from .hold import HoldOperations, Used
from .operations import Backend, JointOperations, OnDecision, OnError, Operations, Part
from .renewals import Renewals

T = TypeVar("T")


class Client(Protocol):
    """`redis.Redis`, `valkey.Valkey`, their cluster clients, or the fake."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...


class Server(BaseServer):
    """One server or cluster, with what all limiters on it share.

    `client` is a client of redis-py or valkey-py, or a URL; connections are made as it makes them, and
    are the server's own. The server is away when it has been silent for `timeout_ms`, on all
    connections; then one call every `retry_every_ms` asks it, and `on_error` of each limiter decides
    the others. `fallback="script"`: a Lua script decides where the server lacks the module.
    """

    def __init__(
        self,
        client: Client | str,
        *,
        timeout_ms: float = 100,
        retry_every_ms: float = 500,
        fallback: Literal["script"] | None = None,
        log: logging.Logger = LOG,
    ) -> None:
        self.renewals = Renewals(log)
        super().__init__(
            client, timeout_ms=timeout_ms, retry_every_ms=retry_every_ms, fallback=fallback, log=log
        )

    def begin_anew(self) -> None:
        self.renewals.begin_anew()
        super().begin_anew()

    def run(self, steps: Steps[T]) -> T:
        return run(steps)

    def spawn(self, steps: Steps[Any]) -> None:
        # Not by threading.Thread, whose start waits: a greenlet's timeout could end it there.
        _thread.start_new_thread(self._run_in_background, (steps,))

    def _run_in_background(self, steps: Steps[Any]) -> None:
        try:
            self.run(steps)
        except TokenBucketError:
            self.log.exception("what a late call took was not given back")

    def close(self) -> None:
        """Closes the connections; the next call makes new ones. The client that was given stays open."""
        for node in self._nodes():
            node.transport.drop()

    def ping(self) -> bool:
        """Whether the server answers."""
        return self.run(self.answers())

    def _client_of(self, url: str) -> Any:
        return client_of(url, "")

    def _new_transport(self, node: Node) -> Any:
        return Transport(node, self.leave)

    def _forget_connections(self, node: Node) -> None:
        node.transport.forget()

    def _drop_connections(self, call: Call) -> None:
        call.node.transport.drop(call.by.generation)


class _Shared:
    """The servers that limiters have made, by their URLs."""

    def __init__(self) -> None:
        self.by_url: WeakValueDictionary[tuple[Any, str], BaseServer] = WeakValueDictionary()
        self.begin_anew()
        begins_anew_after_fork(self)

    def begin_anew(self) -> None:
        self.lock = threading.Lock()


_shared = _Shared()


def server_of(kind: Any, client: Any) -> Any:
    """The server that was given, or the one that all limiters on this client share."""
    if isinstance(client, kind):
        return client
    if isinstance(client, BaseServer):
        package = "tokenbucket.asyncio" if client.is_asynchronous else "tokenbucket"
        raise BadArgument(f"client: a {package}.Server is not for these limiters")
    with _shared.lock:
        if isinstance(client, str):
            server = _shared.by_url.get((kind, client))
            if server is None:
                server = _shared.by_url[kind, client] = kind(client)
            return server
        # Kept where its connections come from, so that it lives as long.
        place = getattr(client, "nodes_manager", None) or getattr(client, "connection_pool", None)
        known = getattr(place, "tokenbucket_server", None)
        if known is None:
            known = kind(client)
            if place is not None:
                place.tokenbucket_server = known
        if not isinstance(known, kind):
            kind(client)  # says why not
        return known


def client_of(url: str, home: str) -> Any:
    """A client of redis-py for a URL."""
    redis = importlib.import_module(f"redis{home}")
    try:
        return redis.Redis.from_url(url)
    except ValueError as error:
        raise BadArgument(f"client: {url!r}: {error}") from error


class _Closing(Backend):
    server: Server

    def _run(self, steps: Steps[T]) -> T:
        return self.server.run(steps)

    def close(self) -> None:
        """Closes connections that no other limiter uses."""
        if self._leave():
            self.server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Limiter(_Closing, Operations):
    """One limit for many names; each name has a bucket of its own, under `prefix` + name.

    `on_error` decides while the server is away: "local" enforces the same limit in the memory of this
    process, "open" lets everybody through, "closed" nobody, "raise" raises ServerAway. What is the
    caller's mistake is raised under each of them.

    `remember_denials`: so many denied names are refused here until their time has come. `batch`: so
    many tokens are fetched at a time and spent here. `on_decision` is called with every decision.

    A limit given to a call is for that call alone.
    """

    def __init__(
        self,
        server: Server | Client | str,
        limit: Limit,
        prefix: str = "tb:",
        *,
        on_error: OnError = "local",
        remember_denials: int = 0,
        batch: int = 0,
        on_decision: OnDecision | None = None,
    ) -> None:
        super().__init__(
            server_of(Server, server),
            limit,
            prefix=prefix,
            on_error=on_error,
            remember_denials=remember_denials,
            batch=batch,
            on_decision=on_decision,
        )

    def take(
        self, name: str, cost: Number = 1, *, limit: Limit | None = None, max_wait_ms: float = 0
    ) -> Decision:
        """Takes `cost` tokens if the bucket holds them, else nothing.

        `max_wait_ms`: so long the call waits its turn in the server, behind those who wait already.
        """
        if max_wait_ms:
            return self._run(self._take_in_turn(name, cost, limit, max_wait_ms))
        if self._batched(cost):
            return self._take_batched(name, int(cost), limit or self.limit)
        return self._run(self._take(name, cost, limit))

    def peek(self, name: str, cost: Number = 1, *, limit: Limit | None = None) -> Decision:
        """What `take` would decide; `remaining` is as after it. With cost 0, what there is."""
        return self._run(self._simple("TB.PEEK", name, limit, cost))

    def take_up_to(self, name: str, most: int, *, limit: Limit | None = None) -> Decision:
        """Takes as many whole tokens as there are, at most `most`: see `granted`."""
        return self._run(self._simple("TB.TAKEUPTO", name, limit, most))

    def reserve(
        self, name: str, cost: Number = 1, *, max_wait_ms: int, limit: Limit | None = None
    ) -> Decision:
        """Books a place in the queue: sleep `retry_after_ms`, then act.

        Denied, without a token taken, if the wait would be longer than `max_wait_ms`.
        """
        return self._run(self._simple("TB.RESERVE", name, limit, cost, max_wait_ms))

    def wait(self, name: str, cost: Number = 1, *, max_wait_ms: int, limit: Limit | None = None) -> Decision:
        """Reserves and sleeps until it is this caller's turn; a wait that is broken off gives back."""
        decision = self.reserve(name, cost, max_wait_ms=max_wait_ms, limit=limit)
        if decision.allowed and decision.retry_after_ms:
            try:
                self._clock.sleep(decision.retry_after_ms / 1000)
            except BaseException:
                self.give(name, cost, limit=limit)
                raise
        return decision

    def charge(self, name: str, amount: Number, *, limit: Limit | None = None) -> Decision:
        """Takes `amount` in any case, into debt if need be."""
        return self._run(self._simple("TB.CHARGE", name, limit, amount, once=True))

    def give(self, name: str, amount: Number, *, limit: Limit | None = None) -> Decision:
        """Puts `amount` back, never above the capacity."""
        return self._run(self._give(name, amount, limit))

    def reset(self, name: str, *, limit: Limit | None = None) -> Decision:
        """Makes the bucket full, and forgets its holds."""
        return self._run(self._reset_name(name, limit))

    def hold(
        self,
        name: str,
        amount: Number,
        *,
        ttl_ms: int = 30_000,
        limit: Limit | None = None,
        max_wait_ms: float = 0,
    ) -> Hold:
        """Takes `amount` until `with` is over, or for `ttl_ms` if its holder is gone.

        `max_wait_ms` as for `take`; `ttl_ms` begins with the grant.
        """
        part = Part("", self._key(name), name, limit or self.limit, amount)
        return Hold(self, [part], ttl_ms, max_wait_ms)

    def close(self) -> None:
        """Gives back what batches have left, and closes connections that no other limiter uses."""
        for giving in self._give_batches_back(None):
            self._run(giving)
        super().close()

    def _take_batched(self, name: str, cost: int, limit: Limit) -> Decision:
        began = self._clock.monotonic()
        batches = self._batches_for(None)
        with batches.lock:
            batch, decision = batches.take(name, limit, cost)
        if decision is None and self._denials:
            decision = self._denials.recall(name, limit, max(cost - batch.tokens, 1))
        if decision is None:
            decision = self._wait_for_batch(batches, batch, cost)
        for giving in self._give_evicted_back(batches):
            self._run(giving)
        self._tell(name, limit, decision, began)
        return decision

    def _wait_for_batch(self, batches: Batches, batch: Batch, cost: int) -> Decision:
        """Fetches for all that wait, or waits for the caller that does."""
        ready = threading.Event()
        waiter = Waiter(cost, ready.set)
        is_here = False
        try:
            with batches.lock:
                batch.waiting.append(waiter)
                batch.leader = batch.leader or waiter
            if batch.leader is not waiter:
                ready.wait()
            if not waiter.is_decided:  # it leads, or the one that led has handed over
                self._run(self._fetch(batches, batch))
            is_here = True
        finally:
            with batches.lock:
                if not is_here:  # interrupted, as by Ctrl-C
                    batch.leave(waiter)
                if batch.leader is waiter:
                    batch.leader = batch.waiting[0] if batch.waiting else None
                    if batch.leader is not None:
                        batch.leader.wake()
        if waiter.error is not None:
            raise waiter.error
        assert waiter.decision is not None
        return waiter.decision


class JointLimiter(_Closing, JointOperations):
    """Several limits, each under a name of its own, that are taken all together or not at all.

    The bucket of limit `which` is `prefix` + "{name}:" + which. The options are those of `Limiter`.
    Instead of one name, calls take a mapping with one for each limit; in a cluster these have to
    contain the same hash tag.
    """

    def __init__(
        self,
        server: Server | Client | str,
        limits: Mapping[str, Limit],
        prefix: str = "tb:",
        *,
        on_error: OnError = "local",
        on_decision: OnDecision | None = None,
    ) -> None:
        super().__init__(
            server_of(Server, server), limits, prefix=prefix, on_error=on_error, on_decision=on_decision
        )

    def take_all(
        self,
        name: str | Mapping[str, str],
        costs: Mapping[str, Number],
        *,
        limits: Mapping[str, Limit] | None = None,
        max_wait_ms: float = 0,
    ) -> JointDecision:
        """Takes every cost or none. `max_wait_ms` as for `Limiter.take`."""
        return self._run(self._take_all(name, costs, limits, max_wait_ms))

    def hold(
        self,
        name: str | Mapping[str, str],
        amounts: Mapping[str, Number],
        *,
        ttl_ms: int = 30_000,
        limits: Mapping[str, Limit] | None = None,
        max_wait_ms: float = 0,
    ) -> Hold:
        """Holds every amount or none, until `with` is over, or for `ttl_ms` if its holder is gone.

        `max_wait_ms` as for `Limiter.hold`.
        """
        return Hold(self, self._parts(name, amounts, limits), ttl_ms, max_wait_ms)

    def reset(self, name: str | Mapping[str, str]) -> Decision:
        """Makes the buckets of all limits full, and forgets their holds."""
        return self._run(self._reset_name(name))


class Hold(HoldOperations):
    """Asked for when it is made; `allowed` says with what result.

    `with` renews it as long as it lasts, and settles it with `used` at its end. It raises Denied if
    the hold was.
    """

    def __init__(self, limiter: _Closing, parts: list[Part], ttl_ms: int, max_wait_ms: float = 0) -> None:
        super().__init__(limiter, parts, ttl_ms, max_wait_ms)
        self._limiter = limiter
        self.is_over = False
        # A renewal on its way could arrive after the settlement.
        self._one_at_a_time = threading.Lock()
        self._settled: JointDecision | Exception | None = None
        began = limiter._clock.monotonic()
        limiter._run(self._renew(first=True))
        limiter._tell_all(parts, self.decision, began)

    def renew(self) -> JointDecision:
        """Makes the hold last `ttl_ms` from now; one that has expired is taken anew, given room."""
        began = self._limiter._clock.monotonic()
        if self.renew_in_background():
            self._limiter._tell_all(self._parts, self.decision, began)
        return self.decision

    def renew_in_background(self) -> bool:
        """Returns whether it was renewed. `on_decision` is not called."""
        if self._is_inherited:
            return False
        with self._one_at_a_time:
            if self.is_over:
                return False
            self._limiter._run(self._renew())
            return True

    def settle(self, used: Used | None = None) -> JointDecision:
        """Ends the hold, with `used` as told or as it was set. The first call is final.

        What is not reported counts as used in a bucket that refills; slots of a pool come back.
        """
        if self._is_inherited:
            return self.decision
        return self._end(self._amounts_used(self.used if used is None else used))

    def _end(self, parts: list[Part]) -> JointDecision:
        began, is_first = self._limiter._clock.monotonic(), self._settled is None
        if self._settled is None:
            self.stop_renewing()
            with self._one_at_a_time:
                if self._settled is None:
                    self._settled = self._settle_once(parts)
        if isinstance(self._settled, Exception):
            raise self._settled
        if is_first:
            self._limiter._tell_all(parts, self._settled, began)
        return self._settled

    def _settle_once(self, parts: list[Part]) -> JointDecision | Exception:
        calls: list[Call] = []
        try:
            return self._limiter._run(self._settle(parts, calls))
        except TokenBucketError as error:
            return error
        except BaseException:  # interrupted
            self._settled = JointDecision(allowed=False, lost=True)
            if not any(call.sent for call in calls):
                self._limiter.server.spawn(self._settle(parts))
            raise

    def __enter__(self) -> Self:
        if not self.allowed:
            raise Denied(self.decision)
        self._limiter.server.renewals.add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            try:
                self.settle()
            except BadArgument:  # of `used`: the hold ends all the same
                self._end(self._amounts_used(None))
                raise
        except TokenBucketError:
            if error is None:
                raise
            self._limiter.server.log.exception("a hold was not settled as its work has reported")

    def stop_renewing(self) -> None:
        """Leaves the hold to expire, if it is not settled before."""
        self.is_over = True
