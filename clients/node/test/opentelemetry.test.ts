/** Decisions as metrics, read by the SDK of OpenTelemetry. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  AggregationTemporality,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
  type Histogram,
} from "@opentelemetry/sdk-metrics";
import { Limiter } from "tokenbucket-redis";
import { metricsOf } from "tokenbucket-redis/opentelemetry";
import { FakeServer } from "tokenbucket-redis/testing";

test("decisions are counted and timed, by what was decided", async (t) => {
  const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
  const reader = new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 3_600_000 });
  const provider = new MeterProvider({ readers: [reader] });
  t.after(() => provider.shutdown());
  const onDecision = metricsOf(provider.getMeter("app"), { limit: "login" });
  const limiter = new Limiter(new FakeServer(), { capacity: 2, rate: "1/s" }, { onDecision });
  const trial = new Limiter(new FakeServer(), { capacity: 0, rate: "1/s" }, { onDecision, shadow: true });
  for (let i = 0; i < 5; i++) await limiter.take("a");
  await (await trial.hold("a", 1)).settle(); // which is counted once
  await reader.forceFlush();

  const metric = exporter.getMetrics()[0]?.scopeMetrics[0]?.metrics[0];
  assert.equal(metric?.descriptor.name, "tokenbucket.decision.duration");
  const counts = metric.dataPoints.map(({ attributes, value }) => [attributes, (value as Histogram).count]);
  assert.deepEqual(counts, [
    [{ limit: "login", allowed: true, shadowed: false, degraded: false }, 2],
    [{ limit: "login", allowed: false, shadowed: false, degraded: false }, 3],
    [{ limit: "login", allowed: true, shadowed: true, degraded: false }, 1],
  ]);
});
