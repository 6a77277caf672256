/** The stores of express-rate-limit and hono-rate-limiter, which count hits in windows: a hit is a token taken. */

import { AsyncLocalStorage } from "node:async_hooks";

import { DROP_IN_OPTIONS, type DropInOptions, type Policy } from "../api/decider.js";
import type { Decision } from "../values/decision.js";
import { BadArgument, checkOptions } from "../values/errors.js";
import { capacityOf, type Limit } from "../values/limit.js";
import { Limiter } from "../api/limiter.js";
import type { Client, Server } from "../transport/server.js";

export interface StoreOptions extends DropInOptions {
  /**
   * The limit of a key. Needed where the library's `limit` is a function of the request, which a store does not see:
   * the two functions have to agree.
   */
  limitOf?: (key: string) => number | Promise<number>;
}

/** The library's options that a store reads. */
export interface WindowOptions {
  windowMs: number;
  limit: number | ((...request: never[]) => unknown);
  skipFailedRequests?: boolean;
  skipSuccessfulRequests?: boolean;
}

export interface Hits {
  /** More than the limit exactly if the request is denied. */
  totalHits: number;
  /** When the next request passes after a denial; otherwise when the bucket is full. */
  resetTime: Date;
}

/** What a request has taken and not given back. */
interface Taken {
  key: string;
  decision: Decision | undefined;
}

/** The limit comes with each call. */
export const NO_LIMIT: Limit = { capacity: 0, rate: 1 };

/** `limit` is the capacity, and as many tokens flow in over `windowMs`. */
export class WindowStore {
  /** A bucket is at the key "tb:" + prefix + the library's key. */
  readonly prefix: string;
  readonly localKeys = false;
  readonly #limiter: Limiter;
  readonly #limitOf: StoreOptions["limitOf"];
  #window: WindowOptions | undefined;
  #mistake: BadArgument | undefined = new BadArgument("store: no limiter has called its init()");
  /** Set if requests can get their tokens back: a denied one is skipped as well, and has taken none. */
  #taken: AsyncLocalStorage<Taken> | undefined;

  constructor(client: Client | Server, prefix: string, { limitOf, ...options }: StoreOptions) {
    if (limitOf !== undefined && typeof limitOf !== "function") {
      throw new BadArgument("limitOf: is not a function of the key");
    }
    checkOptions(options, DROP_IN_OPTIONS);
    this.prefix = prefix;
    this.#limiter = new Limiter(client, NO_LIMIT, { ...options, prefix: `tb:${prefix}` });
    this.#limitOf = limitOf;
  }

  /** Called by the library. A mistake also fails every later call, because newer libraries log what this throws. */
  init(options: WindowOptions): void {
    const { skipFailedRequests, skipSuccessfulRequests } = options;
    // From the environment, a number is a string.
    const limit = typeof options.limit === "function" ? options.limit : asNumber(options.limit);
    const window = { windowMs: asNumber(options.windowMs), limit };
    this.#mistake = this.#mistakeIn(window);
    if (this.#mistake) throw this.#mistake;
    this.#window = window;
    if (skipFailedRequests || skipSuccessfulRequests) this.#taken = new AsyncLocalStorage();
  }

  async increment(key: string): Promise<Hits> {
    const taken: Taken = { key, decision: undefined };
    this.#taken?.enterWith(taken); // Before the first await, so that it is the caller's context.
    const limit = await this.#limit(key);
    const decision = await this.#limiter.take(key, 1, { limit });
    if (decision.allowed) taken.decision = decision;
    const { windowMs, limit: ofLibrary } = this.#window!;
    const { totalHits, ms } = hitsOf(decision, this.#limiter.onError, limit, windowMs);
    // The library's own function cannot turn a denial into a pass.
    const isHidden = !decision.allowed && typeof ofLibrary === "function";
    return { totalHits: isHidden ? Number.MAX_SAFE_INTEGER : totalHits, resetTime: inMs(ms) };
  }

  /** Gives back the token that the request took, if it took one. */
  async decrement(key: string): Promise<void> {
    const taken = this.#taken?.getStore();
    if (taken?.key !== key) return void (await this.#limiter.give(key, 1, { limit: await this.#limit(key) }));
    const { decision } = taken;
    taken.decision = undefined;
    if (decision) await this.#limiter.giveBack(decision, key, 1, { limit: await this.#limit(key) });
  }

  /** Undefined of a full bucket. */
  async get(key: string): Promise<Hits | undefined> {
    const limit = await this.#limit(key);
    const { remaining, resetAfterMs } = await this.#limiter.peek(key, 0, { limit });
    if (resetAfterMs === 0) return undefined;
    return { totalHits: Number(limit.capacity) - remaining, resetTime: inMs(resetAfterMs) };
  }

  async resetKey(key: string): Promise<void> {
    await this.#limiter.reset(key, { limit: await this.#limit(key) });
  }

  #mistakeIn({ windowMs, limit }: WindowOptions): BadArgument | undefined {
    if (!(windowMs > 0 && windowMs < Infinity)) return new BadArgument("windowMs: is not a number above 0");
    if ((typeof limit === "function") !== (this.#limitOf !== undefined)) {
      return new BadArgument("limit: is a function of the request only with `limitOf: (key) => limit`, and vice versa");
    }
    if (Number.isNaN(limit)) return new BadArgument("limit: is not a number");
    const other = this.#window;
    if (other && (other.windowMs !== windowMs || other.limit !== limit)) {
      return new BadArgument("store: two limiters with different limits share it, so neither would hold");
    }
    return undefined;
  }

  async #limit(key: string): Promise<Limit> {
    if (this.#mistake) throw this.#mistake;
    const { windowMs, limit } = this.#window!;
    return windowLimit(typeof limit === "number" ? limit : asNumber(await this.#limitOf!(key)), windowMs);
  }
}

/** Returns the hits that a decision stands for, more than the limit if it is a denial, and the time until its reset. */
export function hitsOf(decision: Decision, onError: Policy, limit: Limit, windowMs: number) {
  const { allowed, degraded, remaining, resetAfterMs, retryAfterMs } = decision;
  const capacity = Number(limit.capacity);
  // The libraries have no word for "never", as of a limit of 0: until then, the whole window.
  if (!allowed) return { totalHits: capacity + 1, ms: retryAfterMs < 0 ? windowMs : retryAfterMs };
  if (degraded && onError === "open") return { totalHits: 1, ms: windowMs };
  return { totalHits: Math.min(Math.max(capacity - remaining, 0), capacity), ms: resetAfterMs };
}

/** Reads a number as the libraries do when they compare it; NaN for what is none. */
export function asNumber(value: unknown): number {
  return typeof value === "string" || typeof value === "number" ? Number(value) : NaN;
}

/** Reads one of the option of that name. */
export function numberOf(name: string, value: unknown): number {
  const number = asNumber(value);
  if (Number.isNaN(number)) throw new BadArgument(`${name}: ${String(value)} is not a number`);
  return number;
}

/** A bucket of the limit's size, into which as many tokens flow in a window. */
export function windowLimit(limit: number, windowMs: number): Limit {
  const capacity = capacityOf(Math.floor(limit));
  return { capacity, rate: `${capacity || 1}/${windowMs}ms` };
}

function inMs(ms: number): Date {
  return new Date(Date.now() + ms);
}
