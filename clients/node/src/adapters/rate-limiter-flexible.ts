/** `RateLimiterTokenBucket`, for where `RateLimiterRedis` of rate-limiter-flexible stands. */

import {
  RateLimiterMemory,
  RateLimiterRes,
  type IRateLimiterStoreOptions,
  type RateLimiterAbstract,
  type RateLimiterLike,
} from "rate-limiter-flexible";

import type { Bucket, DropInOptions } from "../api/decider.js";
import { BlockableBuckets, FOREVER_MS, type Outcome } from "./blocks.js";
import type { Decision } from "../values/decision.js";
import { Denials } from "../api/denials.js";
import { BadArgument } from "../values/errors.js";
import { capacityOf, flowMs } from "../values/limit.js";
import type { Clock } from "../transport/driver.js";
import { serverOf, type Client, type Server } from "../transport/server.js";

/** Two options of the library are not offered: `reserve` of `Limiter` spreads calls evenly, and what is refused is not counted. */
type NotOffered = "storeClient" | "execEvenly" | "blockOnConsumed";

/** The library's options. `inMemoryBlockOnConsumed` refuses here every key that was refused, until its time has come. */
export interface RateLimiterTokenBucketOptions
  extends Omit<DropInOptions, "prefix">,
    Omit<IRateLimiterStoreOptions, NotOffered> {
  storeClient: Client | Server;
  /** The most that can be consumed at once. */
  points: number;
  /** How many seconds `points` take to flow in. */
  duration: number;
}

export interface CallOptions {
  /** Seconds, for this call, instead of `duration`. */
  customDuration?: number;
}

type Key = string | number;
type Method = "consume" | "penalty" | "reward" | "get" | "set" | "block" | "delete";

const MOST_KEYS_BLOCKED_IN_MEMORY = 10_000;

/** The base of the library's limiters, which `RateLimiterUnion` accepts; no release exports it under its name. */
const Base: typeof RateLimiterAbstract = Object.getPrototypeOf(RateLimiterMemory);

/**
 * `points` is the capacity, and as many flow in over `duration`. Results are the library's RateLimiterRes: `msBeforeNext` is,
 * of a refusal, until the same call would pass (-1: never), of all else until every point is there again.
 */
export class RateLimiterTokenBucket extends Base {
  /** Of its own, because older releases take a negative number for 4. */
  override points: number;
  insuranceLimiter: RateLimiterLike | undefined;
  readonly inMemoryBlockOnConsumed: number;
  readonly inMemoryBlockDuration: number;
  readonly #buckets: BlockableBuckets;
  readonly #clock: Clock;
  readonly #denials: Denials;

  constructor(options: RateLimiterTokenBucketOptions) {
    const { storeClient, points, duration, insuranceLimiter } = options;
    const { execEvenly, blockOnConsumed } = options as IRateLimiterStoreOptions;
    const { inMemoryBlockOnConsumed = 0, inMemoryBlockDuration = 0 } = options;
    if (!Number.isFinite(points)) throw new Error("points must be set and must be a finite number");
    if (!(duration > 0 && duration < Infinity)) {
      throw new Error("duration must be set and above 0: points of a bucket always come back");
    }
    if (execEvenly) throw new Error("execEvenly is not offered: use reserve() of Limiter");
    if (blockOnConsumed) throw new Error("blockOnConsumed is not offered: what is refused is not counted");
    if (insuranceLimiter !== undefined && typeof insuranceLimiter?.consume !== "function") {
      throw new Error("insuranceLimiter must be a limiter");
    }
    if (inMemoryBlockOnConsumed > 0 && points > inMemoryBlockOnConsumed) {
      throw new Error('inMemoryBlockOnConsumed option must be greater or equal "points" option');
    }
    if (inMemoryBlockDuration > 0 && inMemoryBlockOnConsumed === 0) {
      throw new Error("inMemoryBlockOnConsumed option must be set up");
    }
    super(options);
    this.points = points;
    this.insuranceLimiter = insuranceLimiter;
    this.inMemoryBlockOnConsumed = inMemoryBlockOnConsumed;
    this.inMemoryBlockDuration = inMemoryBlockDuration;
    // An insurance decides at an error.
    const { onError = insuranceLimiter ? "throw" : "local" } = options;
    this.#buckets = new BlockableBuckets(storeClient, { ...options, onError });
    this.#clock = serverOf(storeClient).clock;
    const mostInMemory = inMemoryBlockOnConsumed > 0 ? MOST_KEYS_BLOCKED_IN_MEMORY : 0;
    this.#denials = new Denials(mostInMemory, this.#clock);
  }

  /** Resolves when the points were there; rejects with RateLimiterRes when not, with an Error as `onError` says. */
  override async consume(key: Key, given = 1, options: CallOptions = {}): Promise<RateLimiterRes> {
    return this.#insured("consume", [key, given, options], async (bucket) => {
      const points = numberOf(given);
      // A block in memory alone refuses every cost for the same time.
      const remembered = this.#denials.recall(bucket, this.inMemoryBlockDuration > 0 ? 0 : points);
      if (remembered) throw new RateLimiterRes(0, remembered.retryAfterMs);
      const askedAt = this.#clock.now();
      const outcome = await this.#buckets.take(bucket, points);
      if (outcome.allowed) return this.#passed(outcome.bucket, points);
      throw await this.#refused(bucket, points, outcome, askedAt);
    });
  }

  /** Takes points in any case. */
  override async penalty(key: Key, given = 1, options: CallOptions = {}): Promise<RateLimiterRes> {
    return this.#insured("penalty", [key, given, options], async (bucket) => {
      const points = numberOf(given);
      return this.#changed(await this.#buckets.decide(bucket, "TB.CHARGE", points), points);
    });
  }

  /** Puts points back, never more than were taken. */
  override async reward(key: Key, given = 1, options: CallOptions = {}): Promise<RateLimiterRes> {
    return this.#insured("reward", [key, given, options], async (bucket) => {
      const points = numberOf(given);
      return this.#changed(await this.#buckets.decide(bucket, "TB.GIVE", points), -points);
    });
  }

  /**
   * Returns what a key has left; null if that is everything. Without a point left, more than `points` count as consumed:
   * by that, callers that ask first are refused, as after a refusal by the original.
   */
  override async get(key: Key, options: CallOptions = {}): Promise<RateLimiterRes | null> {
    return this.#insured("get", [key, options], async (bucket) => {
      const known = await this.#buckets.decide(bucket, "TB.PEEK", 0);
      const { remaining, resetAfterMs } = known.bucket;
      if (known.blockedMs === 0 && resetAfterMs === 0) return null;
      if (known.blockedMs > 0 || remaining > 0) return this.#changed(known, 0);
      const msBeforeNext = Math.max(Math.ceil(resetAfterMs - flowMs(bucket.limit, this.#capacity - 1)), 1);
      return new RateLimiterRes(0, msBeforeNext, Math.max(this.#capacity - remaining, this.#capacity + 1));
    });
  }

  /** Acts as if these points had been consumed just now. More than `points`: blocks for `secDuration`. */
  override async set(key: Key, given: number, secDuration: number, options: CallOptions = {}): Promise<RateLimiterRes> {
    return this.#insured("set", [key, given, secDuration, options], async (bucket) => {
      const points = numberOf(given);
      if (points > this.points) {
        this.#denials.forget(bucket);
        return this.#block(bucket, points, secDuration);
      }
      await this.#buckets.set(bucket, Math.max(points, 0)).finally(() => this.#denials.forget(bucket));
      return during(secDuration, points);
    });
  }

  /** Denies every call for that many seconds; 0: until it is deleted. */
  override async block(key: Key, secDuration: number, options: CallOptions = {}): Promise<RateLimiterRes> {
    return this.#insured("block", [key, secDuration, options], (bucket) =>
      this.#block(bucket, this.points + 1, secDuration),
    );
  }

  /** Returns whether there was a key. */
  override async delete(key: Key, options: CallOptions = {}): Promise<boolean> {
    return this.#insured("delete", [key, options], (bucket) =>
      this.#buckets.delete(bucket).finally(() => this.#denials.forget(bucket)),
    );
  }

  deleteInMemoryBlockedAll(): void {
    this.#denials.clear();
  }

  get #capacity(): number {
    return capacityOf(this.points);
  }

  /** What is no duration, such as NaN, does not replace the limiter's own. */
  #bucket(key: Key, options: CallOptions | null): Bucket {
    const custom = Number(options?.customDuration ?? NaN);
    if (custom === 0) throw new BadArgument("customDuration must be above 0: points of a bucket always come back");
    const capacity = this.#capacity;
    const duration = custom > 0 ? custom : this.duration;
    return { name: String(this.getKey(key)), limit: { capacity, rate: `${capacity || 1}/${duration}s` } };
  }

  /** Returns what is left after points were put or taken, which no block keeps from happening. */
  #changed({ bucket, blockedMs }: Pick<Outcome, "bucket" | "blockedMs">, points: number): RateLimiterRes {
    return blockedMs > 0 ? new RateLimiterRes(0, this.#msOf(blockedMs), this.points + 1) : this.#passed(bucket, points);
  }

  /** Returns what to tell of a block: of one for ever a duration, as the original does. A timer would overflow. */
  #msOf(blockedMs: number): number {
    return blockedMs > FOREVER_MS / 2 ? this.msDuration : blockedMs;
  }

  #passed({ remaining, resetAfterMs }: Decision, points: number): RateLimiterRes {
    const consumed = this.#capacity - remaining;
    return new RateLimiterRes(Math.max(remaining, 0), resetAfterMs, consumed, consumed === points);
  }

  async #refused(
    bucket: Bucket,
    points: number,
    { bucket: decision, blockedMs, degraded }: Outcome,
    askedAt: number,
  ): Promise<RateLimiterRes> {
    // After a block it is the bucket's turn, which may still lack points.
    let msBeforeNext = Math.max(this.#msOf(blockedMs), decision.retryAfterMs);
    if (blockedMs === 0 && this.blockDuration > 0 && !degraded) {
      msBeforeNext = Math.max(this.msBlockDuration, decision.retryAfterMs);
      await this.#buckets.block(bucket, this.msBlockDuration);
    }
    if (decision.retryAfterMs < 0) msBeforeNext = -1;
    if (this.inMemoryBlockDuration > 0) msBeforeNext = this.inMemoryBlockDuration * 1000;
    const isBlock = blockedMs > 0 || this.blockDuration > 0 || this.inMemoryBlockDuration > 0;
    const cost = isBlock ? 0 : points;
    this.#denials.remember(bucket, cost, decision.with({ allowed: false, retryAfterMs: msBeforeNext }), askedAt);
    return new RateLimiterRes(0, msBeforeNext, this.#capacity - decision.remaining + points);
  }

  async #block(bucket: Bucket, points: number, secDuration: number): Promise<RateLimiterRes> {
    await this.#buckets.block(bucket, secDuration > 0 ? secDuration * 1000 : Infinity);
    return during(secDuration, points);
  }

  /** Does `work` on the bucket of a call; at any error of the store, lets the insurance do the same. */
  async #insured<T>(method: Method, args: [key: Key, ...unknown[]], work: (bucket: Bucket) => Promise<T>): Promise<T> {
    try {
      return await work(this.#bucket(args[0], args.at(-1) as CallOptions));
    } catch (failed) {
      const insurance = this.insuranceLimiter;
      if (!insurance || !(failed instanceof Error) || failed instanceof BadArgument) throw failed;
      return (insurance[method] as (...args: unknown[]) => Promise<T>)(...args);
    }
  }
}

function during(secDuration: number, points: number): RateLimiterRes {
  return new RateLimiterRes(0, secDuration > 0 ? secDuration * 1000 : -1, points);
}

/** Reads the points of a call; in the original, too, whole numbers may be strings. */
function numberOf(points: unknown): number {
  const number = typeof points === "string" && /^[1-9][0-9]*$/.test(points) ? Number(points) : points;
  if (typeof number === "number" && Number.isFinite(number)) return number;
  throw new BadArgument(`points: ${typeof points} ${JSON.stringify(String(points))} is not a number`);
}
