"""Decisions as metrics, read back by OpenTelemetry's own SDK."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tokenbucket import Limit, Limiter
from tokenbucket.opentelemetry import record_decisions
from tokenbucket.testing import FakeServer


def test_decisions_are_counted_by_outcome() -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("test")
    on_decision = record_decisions(meter, limiter="search")
    limiter = Limiter(FakeServer(), Limit(2, "1/s"), on_decision=on_decision)
    trial = Limiter(FakeServer(), Limit(2, "1/s"), on_decision=on_decision, shadow=True)
    for one in (limiter, trial):
        for _ in range(5):
            one.take("a")
    assert trial.hold("a", 1).settle().shadowed  # which is counted once
    data = reader.get_metrics_data()
    assert data
    [metric] = data.resource_metrics[0].scope_metrics[0].metrics
    assert metric.name == "tokenbucket.decision.duration"
    counted = {
        (point.attributes["allowed"], point.attributes["shadowed"]): point.count  # type: ignore
        for point in metric.data.data_points
    }
    assert counted == {(True, False): 4, (False, False): 3, (True, True): 4}
    assert all(point.attributes["limiter"] == "search" for point in metric.data.data_points)  # type: ignore
