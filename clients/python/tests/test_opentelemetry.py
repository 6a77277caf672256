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
    for _ in range(5):
        limiter.take("a")
    data = reader.get_metrics_data()
    assert data
    [metric] = data.resource_metrics[0].scope_metrics[0].metrics
    assert metric.name == "tokenbucket.decision.duration"
    counted = {point.attributes["allowed"]: point.count for point in metric.data.data_points}  # type: ignore
    assert counted == {True: 2, False: 3}
    assert all(point.attributes["limiter"] == "search" for point in metric.data.data_points)  # type: ignore
