"""Limiters of several limits, for threads and asyncio alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from ..transport.call import Call
from ..values.decision import Decision
from ..values.errors import BadArgument
from ..values.limit import Limit, Number
from .operations import Backend, DecisionT, HoldT, OnDecision, OnError, Part, ServerT, in_turn, words_of

Names = str | Mapping[str, str]
"""One name for all limits, or one for each."""
Amounts = Mapping[str, Number]
Alternatives = Sequence[Amounts]
Limits = Mapping[str, Limit]

_ENCODED = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})


class BaseJointLimiter(Backend[ServerT, DecisionT, HoldT]):
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
    >>> sorted(limiter.headers(decision))
    ['RateLimit', 'RateLimit-Policy']
    >>> with limiter.hold("alice", {"requests": 1, "tokens": 500}) as hold:
    ...     hold.used = {"tokens": 120}
    >>> hold.remaining
    {'requests': 58, 'tokens': 9480}
    >>> either = [{"a": 400}, {"b": 400}]  # the best first
    >>> tokens = JointLimiter(FakeServer(), dict.fromkeys("ab", Limit(500, "500/m")))
    >>> [tokens.take_any("llm", either).granted for _ in range(3)]
    [1, 2, 0]
    >>> limiter.reset("alice").allowed
    True
    """

    def __init__(
        self,
        server: ServerT | str,
        limits: Limits,
        prefix: str = "tb:",
        *,
        on_error: OnError = "local",
        on_decision: OnDecision | None = None,
        shadow: bool = False,
    ) -> None:
        super().__init__(server, prefix, on_error, on_decision, shadow)
        self.limits = _checked(limits)

    def take_all(
        self, name: Names, costs: Amounts, *, limits: Limits | None = None, max_wait_ms: float = 0
    ) -> DecisionT:
        """Takes every cost or none. `max_wait_ms` is that of `Limiter.take`; no call has a share."""
        parts = self._parts(name, costs, limits)
        words = ("TB.MTAKE", len(parts), *words_of(parts))
        return self._run(self._decide(parts, words, in_turn(max_wait_ms)))

    def hold(
        self,
        name: Names,
        amounts: Amounts,
        *,
        ttl_ms: int = 30_000,
        limits: Limits | None = None,
        max_wait_ms: float = 0,
    ) -> HoldT:
        """Holds every amount or none. Lasts and waits as a hold of `Limiter.hold`, but without a share."""
        parts = self._parts(name, amounts, limits)
        return self._of_hold(self, parts, ttl_ms, in_turn(max_wait_ms))

    def take_any(self, name: Names, alternatives: Alternatives, *, limits: Limits | None = None) -> DecisionT:
        """Takes the first alternative of which every limit allows its cost. Nobody takes in between.

        `granted` is its number, from 1. A denial says when the first of them is allowed, not which: its
        `each` is empty. A limit may stand in several alternatives. It does not wait.
        """
        parts, call = self._alternatives(name, alternatives, limits)
        return self._run(self._decide(parts, ("TB.TAKEANY", len(parts), call.each, *words_of(parts)), call))

    def hold_any(
        self, name: Names, alternatives: Alternatives, *, ttl_ms: int = 30_000, limits: Limits | None = None
    ) -> HoldT:
        """Holds the first alternative as `take_any` takes it. `hold.decision.granted` is its number, and
        `hold.amounts` are its amounts."""
        parts, call = self._alternatives(name, alternatives, limits)
        return self._of_hold(self, parts, ttl_ms, call)

    def reset(self, name: Names) -> DecisionT:
        """Makes the buckets of all limits full, and forgets their holds."""
        return self._run_once(self._reset(self._parts(name, dict.fromkeys(self.limits, 0), None)))

    def headers(self, decision: Decision, *, limits: Limits | None = None) -> dict[str, str]:
        """Returns the HTTP headers of a decision as `Limiter.headers` does, with an item for each limit."""
        of = self.limits if limits is None else limits
        return decision._headers(of if decision.each else {})

    def _alternatives(
        self, name: Names, alternatives: Alternatives, limits: Limits | None
    ) -> tuple[list[Part], Call]:
        are_some = isinstance(alternatives, Sequence) and not isinstance(alternatives, str | bytes)
        if not (are_some and alternatives):
            raise BadArgument(f"alternatives: {alternatives!r} is not a sequence of one or more mappings")
        each = [self._parts(name, amounts, limits) for amounts in alternatives]
        if len({len(parts) for parts in each}) > 1:
            advice = "name a limit with amount 0 to fill one up"
            raise BadArgument(f"alternatives: all must name the same number of limits: {advice}")
        return list(chain(*each)), Call(each=len(each[0]))

    def _parts(self, name: Names, amounts: Amounts, limits: Limits | None) -> list[Part]:
        """Returns what the call is about. The buckets of one name share a hash tag, hence a slot.

        Names are encoded, so that no name ends its tag early or meets the bucket of another. Names given
        as a mapping bring tags of their own.
        """
        of = self.limits if limits is None else _checked(limits)
        if not isinstance(amounts, Mapping) or not amounts:
            raise BadArgument(f"no limit is named: {amounts!r} must map each limit to its amount")
        if unknown := [which for which in amounts if which not in of]:
            raise BadArgument(f"no limit is called {unknown[0]!r}, only {', '.join(of) or 'none'}")
        names = name if isinstance(name, Mapping) else dict.fromkeys(amounts, name)
        if missing := [which for which in amounts if which not in names]:
            raise BadArgument(f"name: {name!r} has none for the limit {missing[0]!r}")
        if not all(isinstance(one, str) for one in names.values()):
            raise BadArgument(f"name: {name!r} is neither a str nor one for each limit")
        tag = hash_tag(name) if isinstance(name, str) else None
        return [
            Part(which, f"{self.prefix}{tag or names[which]}:{which}", names[which], of[which], amount)
            for which, amount in amounts.items()
        ]


def hash_tag(name: str) -> str:
    """Returns the hash tag of a name, which no name ends early or leaves empty."""
    return f"{{{name.translate(_ENCODED) or '%'}}}"


def _checked(limits: Limits) -> dict[str, Limit]:
    for which, limit in dict(limits).items():
        if not isinstance(limit, Limit):
            raise BadArgument(f"limits: {which!r} is {limit!r}, not a Limit")
    return dict(limits)
