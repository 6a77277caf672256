"""Limiters of several limits, for threads and asyncio alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic

from ..transport.call import Steps
from ..values.decision import Decision, JointDecision
from ..values.errors import BadArgument
from ..values.limit import Limit, Number
from .hold import JointDecisionT
from .limiter import DecisionT, HoldT, ServerT
from .operations import Backend, OnDecision, OnError, Part, in_turn

Names = str | Mapping[str, str]
"""One name for all limits, or one for each."""

_ENCODED = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})


class BaseJointLimiter(Backend, Generic[ServerT, DecisionT, JointDecisionT, HoldT]):
    """Several named limits. A call takes all of its costs, or none.

    The bucket of limit `which` is `prefix` + "{name}:" + which. The options are those of `Limiter`.
    Instead of one name, calls accept a mapping with a name for each limit. In a cluster, these names
    must contain the same hash tag.

    >>> from tokenbucket import JointLimiter, Limit
    >>> from tokenbucket.testing import FakeServer
    >>> limiter = JointLimiter(
    ...     FakeServer(), {"requests": Limit(60, "60/m"), "tokens": Limit(10_000, "10000/m")}
    ... )
    >>> decision = limiter.take_all("alice", {"requests": 1, "tokens": 400})
    >>> {which: one.remaining for which, one in decision.each.items()}
    {'requests': 59, 'tokens': 9600}
    """

    # What threads and asyncio do in ways of their own, as for limiters of one limit.
    _of_hold: Any
    _run: Callable[[Steps[JointDecision]], JointDecisionT]
    _run_once: Callable[[Steps[Decision]], DecisionT]

    def __init__(
        self,
        server: ServerT | str,
        limits: Mapping[str, Limit],
        prefix: str = "tb:",
        *,
        on_error: OnError = "local",
        on_decision: OnDecision | None = None,
        shadow: bool = False,
    ) -> None:
        super().__init__(server, prefix, on_error, on_decision, shadow)
        self.limits = dict(limits)
        for name, limit in self.limits.items():
            if not isinstance(limit, Limit):
                raise BadArgument(f"limits: {name!r} is {limit!r}, not a Limit")

    # The calls.

    def take_all(
        self,
        name: Names,
        costs: Mapping[str, Number],
        *,
        limits: Mapping[str, Limit] | None = None,
        max_wait_ms: float = 0,
    ) -> JointDecisionT:
        """Takes every cost or none. `max_wait_ms` is that of `Limiter.take`; no call has a share.

        >>> limiter = JointLimiter(FakeServer(), {"a": Limit(5, "1/s"), "b": Limit(1, "1/s")})
        >>> limiter.take_all("alice", {"a": 1, "b": 2}).allowed
        False
        >>> limiter.take_all("alice", {"a": 5, "b": 1}).allowed
        True
        """
        return self._run(self._take_all(name, costs, limits, max_wait_ms))

    def hold(
        self,
        name: Names,
        amounts: Mapping[str, Number],
        *,
        ttl_ms: int = 30_000,
        limits: Mapping[str, Limit] | None = None,
        max_wait_ms: float = 0,
    ) -> HoldT:
        """Holds every amount or none. Lasts and waits as a hold of `Limiter.hold`, but without a share.

        >>> limits = {"tokens": Limit(10_000, "10000/m"), "inflight": Limit(3, 0)}
        >>> limiter = JointLimiter(FakeServer(), limits)
        >>> with limiter.hold("alice", {"tokens": 500, "inflight": 1}) as hold:
        ...     hold.used = {"tokens": 120}
        >>> hold.remaining
        {'tokens': 9880, 'inflight': 3}
        """
        parts = self._parts(name, amounts, limits)
        hold: HoldT = self._of_hold(self, parts, ttl_ms, in_turn(max_wait_ms))
        return hold

    def reset(self, name: Names) -> DecisionT:
        """Makes the buckets of all limits full, and forgets their holds.

        >>> JointLimiter(FakeServer(), {"requests": Limit(60, "60/m")}).reset("alice").allowed
        True
        """
        return self._run_once(self._reset_name(name))

    def headers(
        self, decision: JointDecision, *, limits: Mapping[str, Limit] | None = None, jitter: float = 0
    ) -> dict[str, str]:
        """Returns the HTTP headers of a decision, with an item for each limit: see `Decision.headers`.

        >>> limiter = JointLimiter(FakeServer(), {"minute": Limit(60, "60/m"), "day": Limit(500, "500@d")})
        >>> limiter.headers(limiter.take_all("alice", {"minute": 1, "day": 1}))["RateLimit"]
        '"minute";r=59;t=1, "day";r=499;t=86400'
        """
        headers: dict[str, str] = {}
        of = self.limits if limits is None else limits
        for which, one in decision.each.items():
            for name, item in one.headers(of[which], which).items():
                headers[name] = f"{headers[name]}, {item}" if name in headers else item
        headers.pop("Retry-After", None)
        return headers | decision._retry_after_header(jitter)

    def _parts(
        self, name: Names, amounts: Mapping[str, Number], limits: Mapping[str, Limit] | None
    ) -> list[Part]:
        of = self.limits if limits is None else limits
        if not isinstance(amounts, Mapping) or not amounts:
            raise BadArgument(f"no limit is named: {amounts!r} must map each limit to its amount")
        if unknown := [which for which in amounts if which not in of]:
            raise BadArgument(f"no limit is called {unknown[0]!r}, only {', '.join(of) or 'none'}")
        if isinstance(name, Mapping) and (missing := [which for which in amounts if which not in name]):
            raise BadArgument(f"name: {name!r} has none for the limit {missing[0]!r}")
        if not all(isinstance(one, str) for one in (name.values() if isinstance(name, Mapping) else [name])):
            raise BadArgument(f"name: {name!r} is neither a str nor one for each limit")
        return [
            Part(
                which,
                _key_of(self.prefix, name, which),
                name if isinstance(name, str) else name[which],
                of[which],
                amount,
            )
            for which, amount in amounts.items()
        ]

    def _take_all(
        self,
        name: Names,
        costs: Mapping[str, Number],
        limits: Mapping[str, Limit] | None,
        max_wait_ms: float,
    ) -> Steps[JointDecision]:
        began, parts = self._clock.monotonic(), self._parts(name, costs, limits)
        terms = in_turn(max_wait_ms)
        decision = yield from self._decide_all(parts, "TB.MTAKE", len(costs), terms=terms)
        if self._shadow:
            decision = decision._in_shadow_mode()
        self._tell_all(parts, decision, began)
        return decision

    def _reset_name(self, name: Names) -> Steps[Decision]:
        keys = [_key_of(self.prefix, name, which) for which in self.limits]
        return (yield from self._reset(keys, self.limits.values()))


def _key_of(prefix: str, name: Names, which: str) -> str:
    """Returns the key of one limit. The buckets of one name share a hash tag, hence a slot.

    Names are encoded, so that no name ends its tag early or meets the bucket of another. Names given
    as a mapping bring tags of their own.
    """
    if isinstance(name, str):
        return f"{prefix}{{{name.translate(_ENCODED) or '%'}}}:{which}"
    return f"{prefix}{name[which]}:{which}"
