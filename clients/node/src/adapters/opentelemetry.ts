/** Decisions as OpenTelemetry metrics: `new Limiter(client, limit, { onDecision: metricsOf(meter) })`. */

import type { Meter } from "@opentelemetry/api";

import type { OnDecision } from "../api/decider.js";

/** Names are left out: there are as many as callers. */
export function metricsOf(meter: Meter, attributes: Record<string, string> = {}): OnDecision {
  const durations = meter.createHistogram("tokenbucket.decision.duration", {
    description: "How long decisions took, by what was decided",
    unit: "s",
  });
  return (_name, _limit, { allowed, shadowed, degraded }, durationMs) =>
    durations.record(durationMs / 1000, { ...attributes, allowed, shadowed, degraded });
}
