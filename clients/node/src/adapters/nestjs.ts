/** The storage of @nestjs/throttler: its guard, decorators and options stay as they are. */

import type { ThrottlerStorage } from "@nestjs/throttler";

import { DROP_IN_OPTIONS, type DropInOptions } from "../api/decider.js";
import { BlockableBuckets, FOREVER_MS, type Outcome } from "./blocks.js";
import { BadArgument, checkOptions } from "../values/errors.js";
import type { Client, Server } from "../transport/server.js";
import { numberOf, windowLimit } from "./window-store.js";

/** What a guard gets; its times are seconds. */
export type ThrottlerRecord = Awaited<ReturnType<ThrottlerStorage["increment"]>>;

/** `limit` is the capacity, and as many tokens flow in over `ttl`. */
export class TokenBucketStorage implements ThrottlerStorage {
  readonly #buckets: BlockableBuckets;
  readonly #prefix: string;

  constructor(client: Client | Server, options: DropInOptions = {}) {
    checkOptions(options, DROP_IN_OPTIONS);
    this.#buckets = new BlockableBuckets(client, options);
    this.#prefix = options.prefix ?? "throttler:";
  }

  /** Takes a token. Times are milliseconds. A key without one is blocked for `blockDuration`, or not at all if it is 0. */
  async increment(
    key: string,
    ttl: number,
    limit: number,
    blockDuration: number,
    throttlerName: string,
  ): Promise<ThrottlerRecord> {
    if (limit === undefined) throw new BadArgument("limit: is missing: @nestjs/throttler tells it from version 6 on");
    const ttlMs = duration("ttl", ttl);
    if (ttlMs <= 0) throw new BadArgument(`ttl: ${ttl} is not above 0`);
    const blockMs = duration("blockDuration", blockDuration);
    const bucket = {
      name: `${this.#prefix}${key}:${throttlerName}`,
      limit: windowLimit(numberOf("limit", limit), ttlMs),
    };
    const capacity = Number(bucket.limit.capacity);
    const outcome = await this.#buckets.take(bucket, 1);
    if (outcome.allowed || outcome.degraded || outcome.blockedMs > 0 || blockMs <= 0) {
      return record(outcome, capacity, ttlMs);
    }
    await this.#buckets.block(bucket, blockMs);
    return record({ ...outcome, blockedMs: blockMs }, capacity, ttlMs);
  }
}

/** Reads a string, too: before version 6.7.1 the guard passes on what its user wrote. */
function duration(name: string, ms: unknown): number {
  return Math.min(numberOf(name, ms), FOREVER_MS);
}

function record({ allowed, degraded, bucket, blockedMs }: Outcome, limit: number, ttl: number): ThrottlerRecord {
  // The guard has no word for "never", as in a limit of 0: until then, what would be the whole ttl.
  const retryAfterMs = bucket.retryAfterMs < 0 ? ttl : bucket.retryAfterMs;
  const totalHits = degraded ? 0 : Math.max(limit - bucket.remaining, 0) + (allowed ? 0 : 1);
  return {
    totalHits,
    timeToExpire: seconds(bucket.resetAfterMs),
    isBlocked: !allowed,
    timeToBlockExpire: allowed ? 0 : seconds(Math.max(blockedMs, retryAfterMs)),
  };
}

function seconds(ms: number): number {
  return Math.ceil(ms / 1000);
}
