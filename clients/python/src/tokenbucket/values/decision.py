"""What the server, or the policy in its place, has decided."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from .errors import TokenBucketError
from .limit import Limit


@dataclass(frozen=True, slots=True)
class Decision:
    allowed: bool
    remaining: int = 0
    """Whole tokens left; negative while in debt."""
    retry_after_ms: int = 0
    """Denied: the same call is allowed after that long if nobody else takes; -1 if never, because
    the cost is above the capacity. `reserve`: how long to wait. `charge`: until out of debt."""
    reset_after_ms: int = 0
    """Until the bucket is full."""
    degraded: bool = False
    """Whether the server did not decide: it is away, and `on_error` decided."""
    granted: int = 0
    """How many tokens `take_up_to` took; for the other calls 1 or 0, as `allowed`."""
    lost: bool = False
    """The command was sent and its reply lost: it is not known whether it happened."""

    def __bool__(self) -> bool:
        return self.allowed

    @classmethod
    def read(cls, reply: Sequence[int], degraded: bool = False, lost: bool = False) -> Decision:
        allowed, remaining, retry_after_ms, reset_after_ms = reply
        return cls(bool(allowed), remaining, retry_after_ms, reset_after_ms, degraded, allowed, lost)

    @property
    def retry_after_s(self) -> int:
        """For the Retry-After header: rounded up, so that nobody comes back too early."""
        return _up_to_seconds(self.retry_after_ms)

    def headers(self, limit: Limit, name: str = "default", jitter: float = 0) -> dict[str, str]:
        """RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers, and Retry-After.

        With `jitter` 0.5, Retry-After is up to half as long again, so that those who were denied
        together do not come back together; never shorter. It is left out where waiting does not
        help. Nothing is said about a bucket that nobody has looked at.
        """
        headers: dict[str, str] = {}
        if not self.degraded:
            window_s = limit.window_s
            policy = f'"{name}";q={int(float(limit.capacity))}'
            headers["RateLimit-Policy"] = policy + (f";w={window_s}" if window_s else "")
            left, reset_s = max(self.remaining, 0), _up_to_seconds(self.reset_after_ms)
            headers["RateLimit"] = f'"{name}";r={left};t={reset_s}'
        return headers | self.retry_after_header(jitter)

    def retry_after_header(self, jitter: float = 0) -> dict[str, str]:
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
    def read_each(
        cls, reply: Sequence[Any], names: Sequence[str], degraded: bool = False, lost: bool = False
    ) -> JointDecision:
        allowed, remaining, retry_after_ms, reset_after_ms, each = reply
        decisions = {name: Decision.read(one, degraded, lost) for name, one in zip(names, each, strict=True)}
        return cls(
            bool(allowed), remaining, retry_after_ms, reset_after_ms, degraded, allowed, lost, decisions
        )

    @classmethod
    def of(cls, decision: Decision) -> JointDecision:
        """Returns the decision of a single limit as that of several, which names none of them."""
        if isinstance(decision, JointDecision):
            return decision
        return cls(*(getattr(decision, one.name) for one in fields(decision)))


class Denied(TokenBucketError):
    """The hold of a `with` block was denied."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision)
        self.decision = JointDecision.of(decision)


def _up_to_seconds(ms: float) -> int:
    return int(-(-ms // 1000))
