/** One limit for many names. */

import { Decider, inTurn, OPTIONS, type Bucket, type Caller, type Options, type ShareOptions } from "./decider.js";
import { Batches } from "./batches.js";
import type { Decision } from "../values/decision.js";
import { Denials } from "./denials.js";
import { Hold, Holder, type HoldOptions } from "./hold.js";
import { checkOptions } from "../values/errors.js";
import { checkAmount, checkCount, checkLimit, checkName, type Amount, type Limit } from "../values/limit.js";
import type { Client, Server } from "../transport/server.js";

export interface LimiterOptions extends Options {
  /** How many denied names this process refuses itself until they may retry; 0 by default. */
  rememberDenials?: number;
  /** The number of tokens to fetch at a time and spend in this process; 0 by default. */
  batch?: number;
}

export interface CallOptions extends Caller {
  /** The limit for this call alone. */
  limit?: Limit | undefined;
}

export interface TakeOptions extends CallOptions, ShareOptions {}

export interface ReserveOptions extends CallOptions {
  /** The longest acceptable wait, in milliseconds: a longer one is denied. */
  maxWaitMs: number;
}

const LIMITER_OPTIONS = [...OPTIONS, "rememberDenials", "batch"];
const CALL_OPTIONS = ["limit", "signal"];
const RESERVE_OPTIONS = [...CALL_OPTIONS, "maxWaitMs"];
const TAKE_OPTIONS = [...RESERVE_OPTIONS, "share", "weight"];
const HOLD_OPTIONS = [...TAKE_OPTIONS, "ttlMs"];

/**
 * One limit for many names; each name has a bucket of its own, at `prefix` + name.
 *
 * ```ts
 * import { Denied, Limiter } from "tokenbucket-redis";
 * import { FakeServer } from "tokenbucket-redis/testing";
 *
 * const limiter = new Limiter(new FakeServer(), { capacity: 10, rate: "5/s" }, { prefix: "search:" });
 * console.log((await limiter.take("user:42", 8)).allowed); // true
 * console.log((await limiter.take("user:42", 8)).retryAfterMs); // 1200
 * console.log((await limiter.peek("user:42", 0)).remaining); // 2
 * console.log((await limiter.takeUpTo("user:42", 25)).granted); // 2
 * console.log((await limiter.reserve("user:42", 1, { maxWaitMs: 1500 })).retryAfterMs); // 200
 * console.log((await limiter.wait("user:42", 1, { maxWaitMs: 1500 })).allowed); // true
 * console.log((await limiter.charge("user:42", 12)).remaining); // -12
 * console.log((await limiter.give("user:42", 3)).remaining); // -9
 * await limiter.reset("user:42");
 *
 * const hold = await limiter.hold("user:42", 5); // the most that the work may cost
 * if (hold.allowed) await hold.settle(2); // what it did cost
 * const denied = await limiter.withHold("user:42", 9, () => "done").catch((error: unknown) => error);
 * console.log(denied instanceof Denied); // true
 * ```
 */
export class Limiter extends Holder<string, Amount, TakeOptions & HoldOptions> {
  readonly limit: Limit;
  readonly #decider: Decider;
  readonly #denials: Denials | undefined;
  readonly #batches: Batches | undefined;

  constructor(client: Client | Server, limit: Limit, options: LimiterOptions = {}) {
    super();
    const { rememberDenials = 0, batch = 0 } = options;
    checkOptions(options, LIMITER_OPTIONS);
    checkLimit(limit);
    checkCount("rememberDenials", rememberDenials);
    checkCount("batch", batch);
    this.limit = { ...limit };
    this.#decider = new Decider(client, options);
    if (rememberDenials > 0) this.#denials = new Denials(rememberDenials, this.#decider.clock);
    if (batch > 1) this.#batches = new Batches(batch, this.#decider);
  }

  get onError() {
    return this.#decider.onError;
  }

  /** Takes `cost` tokens if the bucket holds them, else nothing. */
  take(name: string, cost: Amount = 1, options: TakeOptions = {}): Promise<Decision> {
    try {
      checkAmount("cost", cost);
      const bucket = this.#bucket(name, options, TAKE_OPTIONS);
      const call = inTurn(options);
      if (call.maxWaitMs) return this.#decider.decide("TB.TAKE", bucket, [cost], call);
      if (this.#batches || this.#denials)
        return this.#decider.reported([bucket], this.#takeSparingly(bucket, cost, call));
      // The shorter command costs a tenth less, with its driver.
      return this.#decider.decide("TB.TAKE", bucket, cost === 1 ? [] : [cost], call);
    } catch (error) {
      return Promise.reject(error as Error);
    }
  }

  /** Returns what `take` would decide, with `remaining` as after it; for cost 0, the level. */
  async peek(name: string, cost: Amount = 1, options: CallOptions = {}): Promise<Decision> {
    checkAmount("cost", cost);
    return this.#decider.decide("TB.PEEK", this.#bucket(name, options), [cost], options);
  }

  /** Takes as many whole tokens as the bucket has, at most `most`: see `granted`. */
  async takeUpTo(name: string, most: number, options: CallOptions = {}): Promise<Decision> {
    checkCount("most", most);
    return this.#decider.decide("TB.TAKEUPTO", this.#bucket(name, options), [most], options);
  }

  /**
   * Books a place in the queue: sleep `retryAfterMs`, then act. Denied, without taking a token, if the wait would exceed
   * `maxWaitMs`.
   */
  async reserve(name: string, cost: Amount, options: ReserveOptions): Promise<Decision> {
    checkAmount("cost", cost);
    checkCount("maxWaitMs", options.maxWaitMs);
    const bucket = this.#bucket(name, options, RESERVE_OPTIONS);
    const { maxWaitMs, signal } = options;
    const decision = await this.#decider.decide("TB.RESERVE", bucket, [cost, maxWaitMs], { signal });
    return this.#decider.shadow ? decision.with({ retryAfterMs: 0 }) : decision;
  }

  /** Reserves, and sleeps until the call's turn. An aborted wait gives its tokens back. */
  async wait(name: string, cost: Amount, options: ReserveOptions): Promise<Decision> {
    const decision = await this.reserve(name, cost, options);
    if (!decision.allowed || decision.retryAfterMs === 0) return decision;
    try {
      await this.#decider.clock.sleep(decision.retryAfterMs, options.signal);
    } catch (aborted) {
      // The reason to abort is the error to throw.
      await this.giveBack(decision, name, cost, { limit: options.limit }).catch(() => {});
      throw aborted;
    }
    return decision;
  }

  /** @internal Gives back what the decision took: what this process has decided is none of the server's. */
  async giveBack({ degraded }: Decision, name: string, cost: Amount, options: CallOptions): Promise<void> {
    if (!degraded) await this.give(name, cost, options);
    else this.#decider.server.local.run(this.#decider.command("TB.GIVE", this.#bucket(name, options), [cost]));
  }

  /** Takes `amount` unconditionally, into debt if needed. */
  async charge(name: string, amount: Amount, options: CallOptions = {}): Promise<Decision> {
    checkAmount("amount", amount);
    return this.#decider.decide("TB.CHARGE", this.#bucket(name, options), [amount], options);
  }

  /** Puts `amount` back, at most up to the capacity. */
  async give(name: string, amount: Amount, options: CallOptions = {}): Promise<Decision> {
    checkAmount("amount", amount);
    const bucket = this.#bucket(name, options);
    const given = this.#decider.decide("TB.GIVE", bucket, [amount], options);
    return given.finally(() => this.#denials?.forget(bucket));
  }

  /** Makes the bucket full, and forgets its holds. */
  async reset(name: string, options: CallOptions = {}): Promise<void> {
    const bucket = this.#bucket(name, options);
    try {
      await this.#decider.delete([name]);
    } finally {
      this.#batches?.forget(bucket);
      this.#denials?.forget(bucket);
    }
  }

  async hold(name: string, amount: Amount, options: TakeOptions & HoldOptions = {}): Promise<Hold> {
    const bucket = this.#bucket(name, options, HOLD_OPTIONS);
    return Hold.of(this.#decider, [{ which: "", ...bucket, amount }], options, () => this.#denials?.forget(bucket));
  }

  /** Gives back what batches have left. The client stays open. */
  async close(): Promise<void> {
    await this.#batches?.close();
  }

  /** Checks what a call is about, before anything is sent. */
  #bucket(name: string, options: CallOptions, known: readonly string[] = CALL_OPTIONS): Bucket {
    checkName(name);
    checkOptions(options, known);
    const { limit = this.limit } = options;
    if (limit !== this.limit) checkLimit(limit);
    return { name, limit };
  }

  /** Takes from a batch; otherwise applies a denial that still holds before it asks the server. */
  async #takeSparingly(bucket: Bucket, cost: Amount, caller: Caller): Promise<Decision> {
    caller.signal?.throwIfAborted();
    const began = this.#decider.clock.now();
    const tokens = Number(cost);
    const batch = this.#batches?.of(bucket, tokens);
    const known = batch?.spend(tokens) ?? this.#denials?.recall(bucket, cost);
    if (known) return known;
    const decision = batch
      ? await batch.take(tokens, caller)
      : await this.#decider.decideQuietly("TB.TAKE", bucket, [cost], caller);
    this.#denials?.remember(bucket, cost, decision, began);
    return decision;
  }
}
