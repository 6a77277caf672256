"""What the server, or the policy in its place, has decided."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from .errors import TokenBucketError
from .limit import Limit


@dataclass(frozen=True, slots=True)
class Decision:
    """What the server decided about a call. It is true if the call is allowed.

    `remaining` is whole tokens left, negative while in debt. `retry_after_ms` is the wait after which the
    same call is allowed unless others take before, -1 if never, because its cost is above the capacity; of
    `reserve` how long to wait, of `charge` until out of debt. `reset_after_ms` is the time until the bucket
    is full. `granted` is what `take_up_to` took; 1 or 0 for other calls. `degraded`: the server was away, and
    `on_error` decided. `lost`: the reply was lost, and a `give` or `charge` may or may not have been
    executed. `shadowed`: the call was denied, and shadow mode let it pass.

    >>> from tokenbucket import Limit, Limiter
    >>> from tokenbucket.testing import FakeServer
    >>> limiter = Limiter(FakeServer(), Limit(1, "1/s"))
    >>> allowed = limiter.take("alice")
    >>> allowed.allowed, allowed.remaining, allowed.reset_after_ms
    (True, 0, 1000)
    >>> denied = limiter.take("alice")
    >>> denied.allowed, denied.retry_after_ms
    (False, 1000)
    """

    allowed: bool
    remaining: int = 0
    retry_after_ms: int = 0
    reset_after_ms: int = 0
    degraded: bool = False
    granted: int = 0
    lost: bool = False
    shadowed: bool = False

    def __bool__(self) -> bool:
        return self.allowed

    @classmethod
    def _read(cls, reply: Sequence[int], degraded: bool = False, lost: bool = False) -> Decision:
        allowed, remaining, retry_after_ms, reset_after_ms = reply
        return cls(bool(allowed), remaining, retry_after_ms, reset_after_ms, degraded, allowed, lost)

    def _in_shadow_mode(self, wanted: int = 1) -> Self:
        """Returns the decision as granting all that was wanted: `shadowed` if it did not."""
        if self.granted >= wanted:
            return self
        return replace(self, allowed=True, granted=wanted, shadowed=True)

    @property
    def retry_after_s(self) -> int:
        """Returns whole seconds for the Retry-After header, rounded up.

        >>> Decision(allowed=False, retry_after_ms=1200).retry_after_s
        2
        """
        return _up_to_seconds(self.retry_after_ms)

    def headers(self, limit: Limit, name: str = "default", jitter: float = 0) -> dict[str, str]:
        """Returns RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers, and Retry-After.

        `jitter` 0.5 lengthens Retry-After by up to half, so that denied clients do not return together.
        Retry-After is missing where waiting does not help, and a degraded decision has no RateLimit.

        >>> denied = Decision(allowed=False, retry_after_ms=1200, reset_after_ms=6000)
        >>> for name, value in denied.headers(Limit(5, "1/s")).items():
        ...     print(f"{name}: {value}")
        RateLimit-Policy: "default";q=5;w=5
        RateLimit: "default";r=0;t=6
        Retry-After: 2
        """
        headers: dict[str, str] = {}
        if not self.degraded:
            window_s = limit.window_s
            policy = f'"{name}";q={int(limit._capacity)}'
            headers["RateLimit-Policy"] = policy + (f";w={window_s}" if window_s else "")
            left, reset_s = max(self.remaining, 0), _up_to_seconds(self.reset_after_ms)
            headers["RateLimit"] = f'"{name}";r={left};t={reset_s}'
        return headers | self._retry_after_header(jitter)

    def _retry_after_header(self, jitter: float = 0) -> dict[str, str]:
        if self.allowed or self.retry_after_ms <= 0:
            return {}
        later = 1 + jitter * random.random()
        return {"Retry-After": str(_up_to_seconds(self.retry_after_ms * later))}


@dataclass(frozen=True, slots=True)
class JointDecision(Decision):
    """The decision over several limits: that of the one that binds."""

    each: Mapping[str, Decision] = field(default_factory=dict)
    """The decision of each limit; empty if `on_error` is "open" or "closed" and decided."""

    @classmethod
    def _read_each(
        cls, reply: Sequence[Any], names: Sequence[str], degraded: bool = False, lost: bool = False
    ) -> JointDecision:
        allowed, remaining, retry_after_ms, reset_after_ms, each = reply
        decisions = {name: Decision._read(one, degraded, lost) for name, one in zip(names, each, strict=True)}
        return cls(
            bool(allowed), remaining, retry_after_ms, reset_after_ms, degraded, allowed, lost, each=decisions
        )

    def _in_shadow_mode(self, wanted: int = 1) -> Self:
        each = {which: one._in_shadow_mode() for which, one in self.each.items()}
        return replace(Decision._in_shadow_mode(self, wanted), each=each)

    @classmethod
    def _of(cls, decision: Decision) -> JointDecision:
        """Returns the decision of a single limit as a joint one, without `each`."""
        if isinstance(decision, JointDecision):
            return decision
        return cls(*(getattr(decision, one.name) for one in fields(decision)))


class Denied(TokenBucketError):
    """The hold of a `with` block was denied. `decision` says until when.

    >>> from tokenbucket import Denied, Limit, Limiter
    >>> from tokenbucket.testing import FakeServer
    >>> limiter = Limiter(FakeServer(), Limit(1, "1/s"))
    >>> try:
    ...     with limiter.hold("alice", 1), limiter.hold("alice", 1):
    ...         print("not reached")
    ... except Denied as denied:
    ...     print(denied.decision.retry_after_ms)
    1000
    """

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision)
        self.decision = JointDecision._of(decision)


def _up_to_seconds(ms: float) -> int:
    return int(-(-ms // 1000))
