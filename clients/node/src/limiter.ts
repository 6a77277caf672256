/** One limit for many names, and several limits together. */

import { Asker, type Options, type Part } from "./asker.js";
import { Batches, type Batch } from "./batches.js";
import type { Client } from "./connection.js";
import { Decision, type HeaderOptions, type JointDecision } from "./decision.js";
import { Denials } from "./denials.js";
import { Hold, type HoldOptions } from "./hold.js";
import { checkAmount, checkLimit, type Amount, type Limit } from "./limit.js";

export interface LimiterOptions extends Options {
  /** So many denied names are refused here until their time has come; 0, none, by default. */
  rememberDenials?: number;
  /** So many tokens are fetched at a time and spent here; 0, none, by default. */
  batch?: number;
}

export interface CallOptions {
  /** The limit for this call alone. */
  limit?: Limit | undefined;
}

export interface ReserveOptions extends CallOptions {
  /** The longest wait that is worth it. */
  maxWaitMs: number;
  /** Whether to wait here; else the caller waits for `retryAfterMs`. */
  sleep?: boolean;
  /** Breaks the wait off, and gives the tokens back. */
  signal?: AbortSignal;
}

/** One limit for many names; each name has a bucket of its own, at `prefix` + name. */
export class Limiter {
  readonly limit: Limit;
  readonly #asker: Asker;
  readonly #denials: Denials | undefined;
  readonly #batches: Batches | undefined;

  constructor(client: Client, limit: Limit, options: LimiterOptions = {}) {
    const { rememberDenials = 0, batch = 0 } = options;
    checkLimit(limit);
    checkCount("rememberDenials", rememberDenials);
    checkCount("batch", batch);
    this.limit = { ...limit };
    this.#asker = new Asker(client, options);
    if (rememberDenials > 0) this.#denials = new Denials(rememberDenials, this.#asker.clock);
    if (batch > 1) this.#batches = new Batches(batch, this.#asker.clock);
  }

  /** Takes `cost` tokens if the bucket holds them, else nothing. */
  async take(name: string, cost: Amount = 1, options: CallOptions = {}): Promise<Decision> {
    checkAmount("cost", cost);
    const limit = this.#limitOf(options);
    const batch = this.#batchFor(name, cost, limit);
    if (batch) return this.#takeFrom(batch, Number(cost));
    const began = this.#asker.clock.now();
    const refusal = this.#denials?.recall(name, limit, cost);
    if (refusal) {
      this.#asker.tell(name, limit, refusal, began);
      return refusal;
    }
    const decision = await this.#asker.decide("TB.TAKE", { name, limit }, [cost]);
    this.#denials?.remember(name, limit, cost, decision, began);
    return decision;
  }

  /** What `take` would decide; `remaining` is as after it. Of cost 0, what there is. */
  async peek(name: string, cost: Amount = 1, options: CallOptions = {}): Promise<Decision> {
    checkAmount("cost", cost);
    return this.#asker.decide("TB.PEEK", { name, limit: this.#limitOf(options) }, [cost]);
  }

  /** Takes as many whole tokens as there are, at most `most`: see `granted`. */
  async takeUpTo(name: string, most: number, options: CallOptions = {}): Promise<Decision> {
    checkCount("most", most);
    const ifOpen = new Decision({ allowed: true, degraded: true, granted: most });
    return this.#asker.decide("TB.TAKEUPTO", { name, limit: this.#limitOf(options) }, [most], ifOpen);
  }

  /**
   * Takes `cost`, into debt if need be, and sleeps until it is this caller's turn. Denied, at once
   * and without a token taken, if that would be longer than `maxWaitMs`.
   */
  async reserve(name: string, cost: Amount, options: ReserveOptions): Promise<Decision> {
    const { maxWaitMs, sleep = true, signal } = options;
    checkAmount("cost", cost);
    checkCount("maxWaitMs", maxWaitMs);
    signal?.throwIfAborted();
    const limit = this.#limitOf(options);
    const decision = await this.#asker.decide("TB.RESERVE", { name, limit }, [cost, maxWaitMs]);
    if (!sleep || !decision.allowed || decision.retryAfterMs === 0) return decision;
    try {
      await this.#asker.clock.sleep(decision.retryAfterMs, signal);
    } catch (aborted) {
      await this.give(name, cost, { limit });
      throw aborted;
    }
    return decision;
  }

  /** Takes `amount` in any case, into debt if need be. */
  async charge(name: string, amount: Amount, options: CallOptions = {}): Promise<Decision> {
    checkAmount("amount", amount);
    return this.#asker.decide("TB.CHARGE", { name, limit: this.#limitOf(options) }, [amount]);
  }

  /** Puts `amount` back, never above the capacity. */
  async give(name: string, amount: Amount, options: CallOptions = {}): Promise<Decision> {
    checkAmount("amount", amount);
    const limit = this.#limitOf(options);
    const given = this.#asker.decide("TB.GIVE", { name, limit }, [amount]);
    return given.finally(() => this.#denials?.forget(name, limit));
  }

  /** Takes `amount` until it is settled, or for `ttlMs` if its holder is gone. */
  async hold(name: string, amount: Amount, options: HoldOptions & CallOptions = {}): Promise<Hold> {
    const part: Part = { which: "", name, limit: this.#limitOf(options), amount };
    return Hold.of(this.#asker, [part], options);
  }

  /** Does `work` while holding; settles with what it sets `hold.used` to. Rejects with `Denied` if denied. */
  withHold<T>(
    name: string,
    amount: Amount,
    work: (hold: Hold) => T | Promise<T>,
    options: HoldOptions & CallOptions = {},
  ): Promise<T> {
    return Hold.during(this.hold(name, amount, options), work);
  }

  /** The headers of a response, see `Decision.headers`. */
  headers(decision: Decision, { limit, ...options }: HeaderOptions & CallOptions = {}): Record<string, string> {
    return decision.headers(limit ?? this.limit, options);
  }

  /** Gives back what batches have left. The client stays open: it is the caller's. */
  async close(): Promise<void> {
    const batches = this.#batches?.all() ?? [];
    await Promise.all(
      batches.map((batch) =>
        batch.inTurn(async () => {
          const left = batch.empty();
          if (left > 0) await this.give(batch.name, left, { limit: batch.limit });
        }),
      ),
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #limitOf({ limit }: CallOptions): Limit {
    if (limit) checkLimit(limit);
    return limit ?? this.limit;
  }

  /** The batch from which a take of whole tokens is served; undefined for all others. */
  #batchFor(name: string, cost: Amount, limit: Limit): Batch | undefined {
    const tokens = Number(cost);
    const isServed = this.#batches && Number.isInteger(tokens) && tokens > 0 && tokens <= this.#batches.size;
    return isServed ? this.#batches.of(name, limit) : undefined;
  }

  async #takeFrom(batch: Batch, cost: number): Promise<Decision> {
    const began = this.#asker.clock.now();
    const decision = await batch.inTurn(() => this.#spend(batch, cost));
    this.#asker.tell(batch.name, batch.limit, decision, began);
    return decision;
  }

  async #spend(batch: Batch, cost: number): Promise<Decision> {
    if (batch.left() >= cost) return batch.spend(cost);
    const { name, limit } = batch;
    const askedAt = this.#asker.clock.now();
    const refusal = this.#denials?.recall(name, limit, cost - batch.left());
    if (refusal) return refusal;
    const size = this.#batches!.size;
    let reply = await this.#asker.decideQuietly("TB.TAKEUPTO", batch, [size]);
    if (reply.degraded) return reply;
    batch.add(reply, askedAt);
    if (batch.left() >= cost) return batch.spend(cost);
    const lacking = cost - batch.left();
    // That reply was not about what is lacking.
    if (reply.granted > 0 || lacking > 1) reply = await this.#asker.decideQuietly("TB.PEEK", batch, [lacking]);
    if (reply.degraded) return reply;
    const denied = reply.with({
      allowed: false,
      granted: 0,
      remaining: (reply.allowed ? reply.remaining + lacking : reply.remaining) + batch.left(),
      retryAfterMs: reply.retryAfterMs || 1,
    });
    this.#denials?.remember(name, limit, lacking, denied, askedAt);
    return denied;
  }
}

/** A bucket of each of several limits, taken all together or not at all. */
export class JointLimiter {
  readonly limits: Readonly<Record<string, Limit>>;
  readonly #asker: Asker;

  /** The bucket of limit `which` is at `prefix` + "{name}:" + which. */
  constructor(client: Client, limits: Readonly<Record<string, Limit>>, options: Options = {}) {
    for (const limit of Object.values(limits)) checkLimit(limit);
    this.limits = { ...limits };
    this.#asker = new Asker(client, options);
  }

  /** Takes every cost or none. A name for each limit has to bring its own hash tag, for a cluster. */
  async takeAll(name: Names, costs: Amounts): Promise<JointDecision> {
    const parts = this.#parts(name, costs);
    return this.#asker.decideAll(parts, ["TB.MTAKE", String(parts.length)]);
  }

  /** Holds every amount or none, until they are settled, or for `ttlMs` if their holder is gone. */
  async hold(name: Names, amounts: Amounts, options: HoldOptions = {}): Promise<Hold> {
    return Hold.of(this.#asker, this.#parts(name, amounts), options);
  }

  /** Does `work` while holding; settles with what it sets `hold.used` to. Rejects with `Denied` if denied. */
  withHold<T>(
    name: Names,
    amounts: Amounts,
    work: (hold: Hold) => T | Promise<T>,
    options: HoldOptions = {},
  ): Promise<T> {
    return Hold.during(this.hold(name, amounts, options), work);
  }

  #parts(name: Names, amounts: Amounts): Part[] {
    return Object.entries(amounts).map(([which, amount]) => {
      const limit = this.limits[which];
      if (!limit) throw new RangeError(`'${which}' is none of the limits ${Object.keys(this.limits).join(", ")}`);
      const of = typeof name === "string" ? `{${name}}` : name[which];
      if (of === undefined) throw new RangeError(`there is no name for limit '${which}'`);
      return { which, name: `${of}:${which}`, limit, amount };
    });
  }
}

/** One name for all limits, or one for each. */
export type Names = string | Readonly<Record<string, string>>;
export type Amounts = Readonly<Record<string, Amount>>;

function checkCount(name: string, count: number): void {
  if (!Number.isSafeInteger(count) || count < 0)
    throw new RangeError(`${name}: ${count} is not a whole number of at least 0`);
}
