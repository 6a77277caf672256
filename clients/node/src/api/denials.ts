/** Remembered denials: refuse a flood without asking the server. */

import type { Decision } from "../values/decision.js";
import type { Amount } from "../values/limit.js";
import type { Clock } from "../transport/driver.js";
import type { Bucket } from "./decider.js";

interface Denial {
  id: string;
  cost: number;
  decision: Decision;
  askedAt: number;
  heardAt: number;
}

/**
 * The last denial of each of at most `size` names.
 *
 * The server decided at some time between the call and its reply. Calls are refused no longer than if it was at the
 * call; `retryAfterMs` counts from the reply, so that it is enough.
 */
export class Denials {
  readonly #denials = new Map<string, Denial>();
  #forgottenAt = -Infinity;

  constructor(
    readonly size: number,
    readonly clock: Clock,
  ) {}

  /** The denial that still holds for such a cost; one of cost 5 says nothing about cost 1. */
  recall(bucket: Bucket, cost: Amount): Decision | undefined {
    const denial = this.#denials.get(bucket.name);
    if (!denial) return undefined;
    const { decision } = denial;
    const now = this.clock.now();
    if (now >= denial.askedAt + decision.retryAfterMs) {
      this.#denials.delete(bucket.name);
      return undefined;
    }
    if (denial.id !== bucketId(bucket)) return undefined;
    // For a cost that can never be had, no wait helps, and the server says so.
    if (Number(cost) < denial.cost || Number(cost) > Number(bucket.limit.capacity)) return undefined;
    const waitedMs = Math.floor(now - denial.heardAt);
    return decision.with({
      retryAfterMs: Math.max(decision.retryAfterMs - waitedMs, 1),
      resetAfterMs: Math.max(decision.resetAfterMs - waitedMs, 1),
    });
  }

  remember(bucket: Bucket, cost: Amount, decision: Decision, askedAt: number): void {
    if (decision.allowed || decision.degraded || decision.retryAfterMs <= 0) return;
    if (askedAt < this.#forgottenAt) return; // the server may have denied it before the tokens came back
    const denial = { id: bucketId(bucket), cost: Number(cost), decision, askedAt, heardAt: this.clock.now() };
    putLast(this.#denials, bucket.name, denial, this.size);
  }

  clear(): void {
    this.#denials.clear();
  }

  /** Tokens have come back, by whatever limit: the denial may no longer hold. */
  forget(bucket: Bucket): void {
    this.#denials.delete(bucket.name);
    this.#forgottenAt = this.clock.now();
  }
}

export function bucketId({ name, limit: { capacity, rate } }: Bucket): string {
  return `${capacity} ${rate} ${name}`;
}

/** Puts the value behind all others. Returns the first one, which leaves if there are more than `most`. */
export function putLast<V>(map: Map<string, V>, id: string, value: V, most: number): V | undefined {
  map.delete(id);
  map.set(id, value);
  if (map.size <= most) return undefined;
  const [oldest, first] = map.entries().next().value!;
  map.delete(oldest);
  return first;
}
