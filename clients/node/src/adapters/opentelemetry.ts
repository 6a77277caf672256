/** Decisions as OpenTelemetry metrics: `new Limiter(client, limit, { onDecision: metricsOf(meter) })`. */

import type { OnDecision } from "../api/decider.js";

/** What is needed of a `Meter`, which every release of @opentelemetry/api with metrics has. */
export interface Meter {
  createHistogram(
    name: string,
    options: { description: string; unit: string },
  ): { record(value: number, attributes: Record<string, string | boolean>): void };
}

/** Names are left out: there are as many as callers. */
export function metricsOf(meter: Meter, attributes: Record<string, string> = {}): OnDecision {
  const durations = meter.createHistogram("tokenbucket.decision.duration", {
    description: "How long decisions took, by what was decided",
    unit: "s",
  });
  return (_name, _limit, { allowed, shadowed, degraded }, durationMs) =>
    durations.record(durationMs / 1000, { ...attributes, allowed, shadowed, degraded });
}
