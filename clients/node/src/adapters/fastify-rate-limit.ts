/**
 * A store for @fastify/rate-limit, whose options and headers stay as they are.
 *
 *     await app.register(rateLimit, { max: 100, timeWindow: "1 minute", store: tokenBucketStore(redis) });
 *
 * `max` is the capacity, and so many flow in over `timeWindow`.
 */

import type { FastifyRateLimitStore } from "@fastify/rate-limit";

import type { Bucket } from "../api/decider.js";
import { BlockableBuckets, FOREVER_MS, type Outcome } from "./blocks.js";
import type { Decision } from "../values/decision.js";
import { BadArgument, checkOptions } from "../values/errors.js";
import type { Limit } from "../values/limit.js";
import { Limiter, STORE_OPTIONS, type StoreLimiterOptions } from "../api/limiter.js";
import { serverOf, type Client, type Server } from "../transport/server.js";
import { asNumber, NO_LIMIT, windowLimit } from "./window-store.js";

/** The library's options that a store reads. */
interface RouteLimit {
  timeWindow?: unknown;
  continueExceeding?: boolean;
  exponentialBackoff?: boolean;
  ban?: number;
  routeInfo?: { method?: string | string[]; url?: string };
}

/** `current` is more than `max` exactly if the request is denied; `ttl` is in milliseconds. */
export interface Count {
  current: number;
  ttl: number;
}

export type Callback = (error: Error | null, count?: Count) => void;

export interface Store extends FastifyRateLimitStore {
  incr(key: string, callback: Callback, timeWindow: number, max: number): void;
  /** Returns what `incr` has counted; takes nothing. */
  read(key: string, callback: Callback, timeWindow: number, max: number): void;
  child(route: object): Store;
}

/** A store class over the server. `prefix` is "fastify-rate-limit-" by default; the library appends routes to it. */
export function tokenBucketStore(
  client: Client | Server,
  { prefix: first = "fastify-rate-limit-", ...options }: StoreLimiterOptions = {},
): new (route: object) => Store {
  const server = serverOf(client);
  checkOptions(options, STORE_OPTIONS);

  return class TokenBucketStore implements Store {
    readonly #counter: PlainCounter | StrictCounter;

    constructor(
      readonly route: RouteLimit,
      readonly prefix = first,
    ) {
      const own = { ...options, prefix };
      this.#counter = isStrict(route) ? new StrictCounter(server, own, route) : new PlainCounter(server, own);
    }

    incr(key: string, callback: Callback, timeWindow: number, max: number): void {
      this.#tell(callback, async () => this.#counter.count(key, checked(this.route, timeWindow, max)));
    }

    read(key: string, callback: Callback, timeWindow: number, max: number): void {
      this.#tell(callback, async () => this.#counter.read(key, checked(this.route, timeWindow, max)));
    }

    child(route: RouteLimit & object): Store {
      const { method = "", url = "" } = route.routeInfo ?? {};
      return new TokenBucketStore(route, `${this.prefix}${String(method)}${url}-`);
    }

    #tell(callback: Callback, count: () => Promise<Count>): void {
      count().then((counted) => callback(null, counted), callback);
    }
  };
}

interface Window {
  timeWindow: number;
  max: number;
  limit: Limit;
}

/** Before version 10 the library gave stores other numbers. */
function checked(route: RouteLimit, timeWindow: number, max: number): Window {
  const isOld = typeof route.timeWindow === "number" && route.timeWindow !== timeWindow;
  // A function may read them from the environment or a database.
  const [windowMs, most] = [asNumber(timeWindow), asNumber(max)];
  if (isOld || !(windowMs >= 0) || Number.isNaN(most)) {
    throw new BadArgument("max: the library does not tell it; the store needs @fastify/rate-limit 10 or later");
  }
  return { timeWindow: windowMs, max: most, limit: windowLimit(most, windowMs) };
}

/** A bucket a key. */
class PlainCounter {
  readonly #limiter: Limiter;

  constructor(server: Server, { prefix, ...options }: StoreLimiterOptions) {
    this.#limiter = new Limiter(server, NO_LIMIT, { ...options, prefix: `tb:${prefix}` });
  }

  async count(key: string, window: Window): Promise<Count> {
    const decision = await this.#limiter.take(key, 1, { limit: window.limit });
    if (decision.degraded && this.#limiter.onError === "open") return { current: 1, ttl: window.timeWindow };
    return decision.allowed ? counted(decision, window) : denied(decision, window);
  }

  async read(key: string, window: Window): Promise<Count> {
    return counted(await this.#limiter.peek(key, 0, { limit: window.limit }), window);
  }
}

/** A bucket a key that is blocked for its denials, or counts them. */
class StrictCounter {
  readonly #buckets: BlockableBuckets;
  readonly #route: RouteLimit;
  readonly #prefix: string;
  readonly #canCountAway: boolean;

  constructor(server: Server, { prefix, ...options }: StoreLimiterOptions, route: RouteLimit) {
    this.#buckets = new BlockableBuckets(server, options);
    this.#route = route;
    this.#prefix = prefix ?? "";
    this.#canCountAway = (options.onError ?? "local") === "local";
  }

  async count(key: string, window: Window): Promise<Count> {
    const bucket = { name: this.#prefix + key, limit: window.limit };
    const outcome = await this.#buckets.take(bucket, 1, { countDenials: true });
    const { allowed, degraded, denials } = outcome;
    if (degraded && !this.#canCountAway) {
      return allowed ? { current: 1, ttl: window.timeWindow } : denied(outcome.bucket, window);
    }
    if (!allowed) return this.#deny(bucket, outcome, window);
    if (denials > 0) await this.#buckets.forgetDenials(bucket);
    return counted(outcome.bucket, window);
  }

  async read(key: string, window: Window): Promise<Count> {
    const asked = { name: this.#prefix + key, limit: window.limit };
    const { blockedMs, bucket } = await this.#buckets.decide(asked, "TB.PEEK", 0);
    return blockedMs > 0 ? { current: window.max + 1, ttl: blockedMs } : counted(bucket, window);
  }

  /** Counts the denials since the last request that passed, and blocks for as long as the route's options say. */
  async #deny(bucket: Bucket, outcome: Outcome, window: Window): Promise<Count> {
    const { continueExceeding, exponentialBackoff } = this.#route;
    const { timeWindow, max } = window;
    const blocks = continueExceeding || exponentialBackoff;
    const denials = (blocks && outcome.blockedMs === 0 ? 0 : outcome.denials) + 1;
    const blockMs = Math.min(continueExceeding ? timeWindow : timeWindow * 2 ** (denials - 1), FOREVER_MS);
    await Promise.all([
      this.#buckets.setDenials(bucket, denials, blocks ? blockMs : timeWindow),
      blocks && this.#buckets.block(bucket, blockMs),
    ]);
    return { current: max + denials, ttl: blocks ? blockMs : untilPass(outcome.bucket, window) };
  }
}

function isStrict({ continueExceeding, exponentialBackoff, ban = -1 }: RouteLimit): boolean {
  return continueExceeding === true || exponentialBackoff === true || ban >= 0;
}

function counted({ remaining, resetAfterMs }: Decision, { max }: Window): Count {
  return { current: Math.min(Math.max(max - remaining, 0), max), ttl: resetAfterMs };
}

function denied(decision: Decision, window: Window): Count {
  return { current: window.max + 1, ttl: untilPass(decision, window) };
}

/** The library has no word for "never", as of a `max` of 0: until then, the whole window. */
function untilPass({ retryAfterMs }: Decision, { timeWindow }: Window): number {
  return retryAfterMs < 0 ? timeWindow : retryAfterMs;
}
