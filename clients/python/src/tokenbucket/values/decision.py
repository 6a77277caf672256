"""What the server, or the policy in its place, has decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .errors import TokenBucketError
from .limit import Limit


@dataclass(frozen=True, slots=True)
class Decision:
    """What the server decided about a call. It is true if the call is allowed.

    `remaining` is whole tokens left, negative while in debt. `retry_after_ms` is the wait after which the
    same call is allowed unless others take before, -1 if never, because its cost is above the capacity; of
    `reserve` how long to wait, of `charge` until out of debt. `reset_after_ms` is the time until the bucket
    is full. `granted` is what `take_up_to` took, and of `take_any` the number of the alternative, from 1; 1
    or 0 for other calls. `degraded`: the server was away, and `on_error` decided. `lost`: the reply was lost,
    and a `give` or `charge` may or may not have been executed. `shadowed`: the call was denied, and shadow
    mode let it pass.

    `each` has the decision of each limit of a `JointLimiter`; the other fields are those of the limit that
    binds. It is empty if `on_error` is "open" or "closed" and decided, and of a `take_any` that was denied.

    >>> from tokenbucket import Limit, Limiter
    >>> from tokenbucket.testing import FakeServer
    >>> limiter = Limiter(FakeServer(), Limit(1, "1/s"))
    >>> allowed = limiter.take("alice")
    >>> allowed.allowed, allowed.remaining, allowed.reset_after_ms
    (True, 0, 1000)
    >>> denied = limiter.take("alice")
    >>> bool(denied), denied.retry_after_ms, denied.retry_after_s
    (False, 1000, 1)
    """

    allowed: bool
    remaining: int = 0
    retry_after_ms: int = 0
    reset_after_ms: int = 0
    degraded: bool = False
    granted: int = 0
    lost: bool = False
    shadowed: bool = False
    each: Mapping[str, Decision] = field(default_factory=dict, hash=False)

    def __bool__(self) -> bool:
        return self.allowed

    def _in_shadow_mode(self, wanted: int = 1) -> Decision:
        """Returns the decision as granting all that was wanted: `shadowed` if it did not."""
        if self.granted >= wanted:
            return self
        each = {which: one._in_shadow_mode() for which, one in self.each.items()}
        return replace(self, allowed=True, granted=wanted, shadowed=True, each=each)

    @property
    def retry_after_s(self) -> int:
        """Returns whole seconds for the Retry-After header, rounded up."""
        return _up_to_seconds(self.retry_after_ms)

    def _headers(self, limits: Mapping[str, Limit]) -> dict[str, str]:
        """Returns RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers, and Retry-After.

        Retry-After is missing where waiting does not help, and a degraded decision has no RateLimit.
        """
        each = {} if self.degraded else self.each or dict.fromkeys(limits, self)
        policies = [
            _policy(which, limits[which])
            for which, one in each.items()
            if one.remaining <= limits[which]._capacity  # or an override counts
        ]
        left = [
            f'"{which}";r={max(one.remaining, 0)};t={_up_to_seconds(one.reset_after_ms)}'
            for which, one in each.items()
        ]
        headers = {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(left)}
        if not self.allowed and self.retry_after_ms > 0:
            headers["Retry-After"] = str(self.retry_after_s)
        return {name: text for name, text in headers.items() if text}


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
        self.decision = decision


def _up_to_seconds(ms: float) -> int:
    return int(-(-ms // 1000))


def _policy(name: str, limit: Limit) -> str:
    window = f";w={limit.window_s}" if limit.window_s else ""
    return f'"{name}";q={int(limit._capacity)}{window}'
