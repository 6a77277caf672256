"""Decisions as metrics of OpenTelemetry; needs its API alone."""

from __future__ import annotations

from opentelemetry import metrics

from ..api.operations import OnDecision
from ..values.decision import Decision
from ..values.limit import Limit


def record_decisions(meter: metrics.Meter | None = None, **attributes: str) -> OnDecision:
    """Records how long each decision took, hence how many there were.

    The histogram `tokenbucket.decision.duration` has the attributes `allowed`, `shadowed`, `degraded`
    and what is given here. Names are not among them: there would be a series for each caller.

    >>> from tokenbucket import Limit, Limiter
    >>> from tokenbucket.opentelemetry import record_decisions
    >>> from tokenbucket.testing import FakeServer
    >>> limiter = Limiter(FakeServer(), Limit(10, "5/s"), on_decision=record_decisions(limiter="search"))
    """
    meter = meter or metrics.get_meter("tokenbucket")
    duration = meter.create_histogram(
        "tokenbucket.decision.duration", unit="s", description="Time until a limiter had decided"
    )

    def record(name: str, limit: Limit, decision: Decision, seconds: float) -> None:
        outcome = {name: getattr(decision, name) for name in ("allowed", "shadowed", "degraded")}
        duration.record(seconds, {**attributes, **outcome})

    return record
