/** One limit for many names. */

import { Decider, inTurn, type Caller, type Options, type Part, type Policy, type ShareOptions } from "./decider.js";
import { Batches } from "./batches.js";
import type { Decision, HeaderOptions } from "../values/decision.js";
import { Denials } from "./denials.js";
import { Hold, type HoldOptions } from "./hold.js";
import { checkAmount, checkCount, checkLimit, type Amount, type Limit } from "../values/limit.js";
import type { Client } from "../transport/driver.js";
import type { Server } from "../transport/server.js";

export interface LimiterOptions extends Options {
  /** How many denied names this process refuses itself until they may retry; 0 by default. */
  rememberDenials?: number;
  /** How many tokens to fetch at a time and spend in this process; 0 by default. */
  batch?: number;
}

export interface CallOptions extends Caller {
  /** The limit for this call alone. */
  limit?: Limit | undefined;
}

export interface TakeOptions extends CallOptions, ShareOptions {}

export interface ReserveOptions extends CallOptions {
  /** The longest wait that is worth it. */
  maxWaitMs: number;
}

const NO_OPTIONS: TakeOptions = {};

/** One limit for many names; each name has a bucket of its own, at `prefix` + name. */
export class Limiter {
  readonly limit: Limit;
  readonly #decider: Decider;
  readonly #denials: Denials | undefined;
  readonly #batches: Batches | undefined;

  constructor(client: Client | Server, limit: Limit, options: LimiterOptions = {}) {
    const { rememberDenials = 0, batch = 0 } = options;
    checkLimit(limit);
    checkCount("rememberDenials", rememberDenials);
    checkCount("batch", batch);
    this.limit = { ...limit };
    this.#decider = new Decider(client, options);
    if (rememberDenials > 0) this.#denials = new Denials(rememberDenials, this.#decider.clock);
    if (batch > 1) this.#batches = new Batches(batch, this.#decider, this.#denials);
  }

  get onError(): Policy {
    return this.#decider.onError;
  }

  /** Takes `cost` tokens if the bucket holds them, else nothing. */
  take(name: string, cost: Amount = 1, options: TakeOptions = NO_OPTIONS): Promise<Decision> {
    try {
      checkAmount("cost", cost);
      const limit = this.#limitOf(options);
      const { maxWaitMs, share, weight } = options;
      if (maxWaitMs !== undefined || share !== undefined || weight !== undefined) {
        const how = inTurn(options);
        if (how.maxWaitMs) return this.#decider.decide("TB.TAKE", { name, limit }, [cost], options, how);
      }
      if (this.#batches || this.#denials) return this.#takeSparingly(name, cost, limit, options);
      // The shorter command costs a tenth less, with its driver.
      return this.#decider.decide("TB.TAKE", { name, limit }, cost === 1 ? [] : [cost], options);
    } catch (error) {
      return Promise.reject(error as Error);
    }
  }

  /** Returns what `take` would decide, with `remaining` as after it; for cost 0, the level. */
  async peek(name: string, cost: Amount = 1, options: CallOptions = NO_OPTIONS): Promise<Decision> {
    checkAmount("cost", cost);
    return this.#decider.decide("TB.PEEK", { name, limit: this.#limitOf(options) }, [cost], options);
  }

  /** Takes as many whole tokens as there are, at most `most`: see `granted`. */
  async takeUpTo(name: string, most: number, options: CallOptions = NO_OPTIONS): Promise<Decision> {
    checkCount("most", most);
    return this.#decider.decide("TB.TAKEUPTO", { name, limit: this.#limitOf(options) }, [most], options);
  }

  /**
   * Takes `cost`, into debt if need be; the caller then waits for `retryAfterMs` until it is its turn. Denied, and
   * without a token taken, if that would be longer than `maxWaitMs`.
   */
  async reserve(name: string, cost: Amount, options: ReserveOptions): Promise<Decision> {
    checkAmount("cost", cost);
    checkCount("maxWaitMs", options.maxWaitMs);
    const bucket = { name, limit: this.#limitOf(options) };
    return this.#decider.decide("TB.RESERVE", bucket, [cost, options.maxWaitMs], options);
  }

  /** Reserves, and sleeps until it is this caller's turn. A `signal` breaks that off, and the tokens are given back. */
  async wait(name: string, cost: Amount, options: ReserveOptions): Promise<Decision> {
    const decision = await this.reserve(name, cost, options);
    if (!decision.allowed || decision.retryAfterMs === 0) return decision;
    try {
      await this.#decider.clock.sleep(decision.retryAfterMs, options.signal);
    } catch (aborted) {
      // The reason to abort is the error to throw.
      await this.give(name, cost, { limit: options.limit }).catch(() => {});
      throw aborted;
    }
    return decision;
  }

  /** Takes `amount` in any case, into debt if need be. */
  async charge(name: string, amount: Amount, options: CallOptions = NO_OPTIONS): Promise<Decision> {
    checkAmount("amount", amount);
    return this.#decider.decide("TB.CHARGE", { name, limit: this.#limitOf(options) }, [amount], options);
  }

  /** Puts `amount` back, never above the capacity. */
  async give(name: string, amount: Amount, options: CallOptions = NO_OPTIONS): Promise<Decision> {
    checkAmount("amount", amount);
    const limit = this.#limitOf(options);
    const given = this.#decider.decide("TB.GIVE", { name, limit }, [amount], options);
    return given.finally(() => this.#denials?.forget(name, limit));
  }

  /** Makes the bucket full, and forgets its holds. */
  async reset(name: string, options: CallOptions = NO_OPTIONS): Promise<void> {
    const limit = this.#limitOf(options);
    this.#batches?.forget(name, limit);
    this.#denials?.forget(name, limit);
    await this.#decider.deleteAll([name]);
  }

  /** Takes `amount` until it is settled, or for `ttlMs` if its holder is gone. */
  async hold(name: string, amount: Amount, options: TakeOptions & HoldOptions = {}): Promise<Hold> {
    const part: Part = { which: "", name, limit: this.#limitOf(options), amount };
    return Hold.of(this.#decider, [part], options, inTurn(options));
  }

  /** Does `work` while holding; settles with what it sets `hold.used` to. Rejects with `Denied` if denied. */
  withHold<T>(
    name: string,
    amount: Amount,
    work: (hold: Hold) => T | Promise<T>,
    options: TakeOptions & HoldOptions = {},
  ): Promise<T> {
    return Hold.during(this.hold(name, amount, options), work);
  }

  /** The headers of a response, see `Decision.headers`. */
  headers(decision: Decision, { limit, ...options }: HeaderOptions & CallOptions = {}): Record<string, string> {
    return decision.headers(limit ?? this.limit, options);
  }

  /** Gives back what batches have left. The client stays open: it is the caller's. */
  async close(): Promise<void> {
    await this.#batches?.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #limitOf({ limit }: CallOptions): Limit {
    if (limit) checkLimit(limit);
    return limit ?? this.limit;
  }

  async #takeSparingly(name: string, cost: Amount, limit: Limit, options: CallOptions): Promise<Decision> {
    options.signal?.throwIfAborted();
    const began = this.#decider.clock.now();
    const decision = await this.#takeByBatch(name, cost, limit, options);
    this.#decider.tell(name, limit, decision, began);
    return decision;
  }

  /** Takes whole tokens from a batch, if there are batches; otherwise applies remembered denials first. */
  async #takeByBatch(name: string, cost: Amount, limit: Limit, options: CallOptions): Promise<Decision> {
    const tokens = Number(cost);
    const batches = this.#batches;
    if (batches && Number.isInteger(tokens) && tokens > 0 && tokens <= batches.size) {
      return batches.take(name, limit, tokens, options);
    }
    const began = this.#decider.clock.now();
    const refusal = this.#denials?.recall(name, limit, cost);
    if (refusal) return refusal;
    const decision = await this.#decider.decideQuietly("TB.TAKE", { name, limit }, [cost], options);
    this.#denials?.remember(name, limit, cost, decision, began);
    return decision;
  }
}
