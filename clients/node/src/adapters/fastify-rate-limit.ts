/** A store for @fastify/rate-limit, whose options and headers stay as they are. */

import type { FastifyRateLimitStore } from "@fastify/rate-limit";

import { BadArgument, checkOptions } from "../values/errors.js";
import { DROP_IN_OPTIONS, type DropInOptions } from "../api/decider.js";
import { Limiter } from "../api/limiter.js";
import type { Client, Server } from "../transport/server.js";
import { hitsOf, NO_LIMIT, numberOf, windowLimit } from "./window-store.js";

/** The library's options that a store reads. */
interface RouteLimit {
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

/**
 * A store class over the server: `register(rateLimit, { max: 100, timeWindow: "1 minute", store: tokenBucketStore(redis) })`.
 * `max` is the capacity, and as many tokens flow in over `timeWindow`. `prefix` is "fastify-rate-limit-" by default;
 * the library appends routes to it.
 */
export function tokenBucketStore(
  client: Client | Server,
  { prefix: first = "fastify-rate-limit-", ...options }: DropInOptions = {},
): new (route: object) => Store {
  checkOptions(options, DROP_IN_OPTIONS);

  return class TokenBucketStore implements Store {
    readonly #limiter: Limiter;

    constructor(
      readonly route: RouteLimit,
      readonly prefix = first,
    ) {
      const { continueExceeding, exponentialBackoff, ban = -1 } = route;
      if (continueExceeding || exponentialBackoff || ban >= 0) {
        const refused = "continueExceeding, exponentialBackoff and ban are not offered";
        throw new BadArgument(`${refused}: a bucket does not count what it denies`);
      }
      this.#limiter = new Limiter(client, NO_LIMIT, { ...options, prefix: `tb:${prefix}` });
    }

    incr(key: string, callback: Callback, timeWindow: number, max: number): void {
      this.#count(key, 1, timeWindow, max).then((count) => callback(null, count), callback);
    }

    read(key: string, callback: Callback, timeWindow: number, max: number): void {
      this.#count(key, 0, timeWindow, max).then((count) => callback(null, count), callback);
    }

    child(route: RouteLimit & object): Store {
      const { method = "", url = "" } = route.routeInfo ?? {};
      return new TokenBucketStore(route, `${this.prefix}${String(method)}${url}-`);
    }

    async #count(key: string, cost: 0 | 1, timeWindow: number, max: number): Promise<Count> {
      // Functions may read them from the environment or a database.
      const windowMs = numberOf("timeWindow", timeWindow);
      const most = numberOf("max", max);
      // Such a window is over before the next request.
      if (windowMs <= 0) return { current: cost, ttl: 0 };
      const limit = windowLimit(most, windowMs);
      const decision = await (cost ? this.#limiter.take(key, cost, { limit }) : this.#limiter.peek(key, 0, { limit }));
      const { totalHits, ms } = hitsOf(decision, this.#limiter.onError, limit, windowMs);
      return { current: totalHits, ttl: ms };
    }
  };
}
