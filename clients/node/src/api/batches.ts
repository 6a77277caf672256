/** Fetches tokens in batches and spends them here, so that most takes need no round trip. */

import type { Bucket, Caller, Decider } from "./decider.js";
import { Decision } from "../values/decision.js";
import { bucketId, putLast } from "./denials.js";
import { flowMs, rateParts, type Limit } from "../values/limit.js";
import type { Clock } from "../transport/driver.js";
import { aTurn, whileIn } from "../transport/time.js";
import { Undecided } from "../values/errors.js";

const MOST_BATCHES = 10_000;
/** How many fetches a call shares before it asks for itself. */
const MOST_FETCHES = 2;

/** The unspent tokens of one bucket. */
class Batch implements Bucket {
  #tokens = 0;
  #staleAt = 0;
  #fetchedAt = 0;
  #reply = new Decision({ allowed: false });
  /** The fetch on its way. It belongs to no caller. */
  fetching: Promise<Decision | undefined> | undefined;
  /** How much the calls want that wait for a fetch. */
  wanted = 0;

  constructor(
    readonly name: string,
    readonly limit: Limit,
    readonly clock: Clock,
  ) {}

  /** Tokens to spend; 0 when the bucket has had the time to refill without them. */
  get left(): number {
    return this.clock.now() < this.#staleAt ? this.#tokens : 0;
  }

  add(took: Decision, askedAt: number): void {
    this.#tokens = this.left + took.granted;
    this.#fetchedAt = askedAt;
    this.#reply = took;
    // A calendar rate refills nothing before the next boundary, and then all at once.
    const { isCalendar } = rateParts(this.limit.rate);
    this.#staleAt = askedAt + (isCalendar ? took.resetAfterMs : flowMs(this.limit, Number(this.limit.capacity)));
  }

  /** Spends tokens, of a fetch however long it took; undefined if there are too few. */
  spend(cost: number, { isFetched = false } = {}): Decision | undefined {
    if ((isFetched ? this.#tokens : this.left) < cost) return undefined;
    this.#tokens -= cost;
    const passedMs = Math.floor(this.clock.now() - this.#fetchedAt);
    return new Decision({
      allowed: true,
      remaining: this.#reply.remaining + this.#tokens,
      resetAfterMs: Math.max(this.#reply.resetAfterMs - passedMs, 0),
    });
  }

  /** Removes and returns all tokens, stale or not. */
  empty(): number {
    const tokens = this.#tokens;
    this.#tokens = 0;
    return tokens;
  }
}

export class Batches {
  readonly #batches = new Map<string, Batch>();

  constructor(
    readonly size: number,
    readonly decider: Decider,
  ) {}

  /** Returns the batch for a cost that one can cover. */
  of(bucket: Bucket, cost: number): Batch | undefined {
    const isCovered = Number.isInteger(cost) && cost > 0 && cost <= Math.min(this.size, Number(bucket.limit.capacity));
    if (!isCovered) return undefined;
    const id = bucketId(bucket);
    const batch = this.#batches.get(id) ?? new Batch(bucket.name, bucket.limit, this.decider.clock);
    const dropped = putLast(this.#batches, id, batch, MOST_BATCHES);
    if (dropped) this.#settle(dropped).catch(() => {});
    return batch;
  }

  /** Takes from a batch that has too little. Its calls share a fetch, and its denial. */
  async take(batch: Batch, cost: number, caller: Caller): Promise<Decision> {
    for (let fetches = 0; fetches < MOST_FETCHES; fetches++) {
      batch.wanted += cost;
      const fetching = (batch.fetching ??= this.#fetch(batch));
      const took = await whileIn(caller.signal, fetching).finally(() => (batch.wanted -= cost));
      const spent = batch.spend(cost, { isFetched: true });
      if (spent) return spent;
      if (took?.granted === 0) return cost > 1 ? this.#denial(batch, cost, caller) : took;
      if (!took) break;
    }
    return this.decider.decideQuietly("TB.TAKE", batch, [cost], caller);
  }

  /** Returns the denial of a cost that the batch covers in part: the server says how long the rest takes. */
  async #denial(batch: Batch, cost: number, caller: Caller): Promise<Decision> {
    const { left } = batch;
    const rest = await this.decider.decideQuietly("TB.PEEK", batch, [cost - left], caller);
    const remaining = rest.remaining + (rest.allowed ? cost : left);
    return rest.with({ allowed: false, granted: 0, remaining, retryAfterMs: rest.retryAfterMs || 1 });
  }

  /** Drops the tokens of a bucket that is reset to full. */
  forget(bucket: Bucket): void {
    this.#batches.get(bucketId(bucket))?.empty();
  }

  async close(): Promise<void> {
    const batches = [...this.#batches.values()];
    this.#batches.clear();
    await Promise.all(batches.map((batch) => this.#settle(batch)));
  }

  async #settle(batch: Batch): Promise<void> {
    // Its callers spend first, and perhaps fetch once more.
    while (batch.fetching) await batch.fetching.then(aTurn, aTurn);
    const tokens = batch.empty();
    if (tokens > 0) await this.decider.decideQuietly("TB.GIVE", batch, [tokens]);
  }

  /** Resolves to nothing if the server did not decide. */
  async #fetch(batch: Batch): Promise<Decision | undefined> {
    try {
      // One fetch serves all callers of the same turn.
      await undefined;
      // Stale tokens go back: if others used the bucket meanwhile, it is not full without them. No caller asked for it, so
      // no policy decides in place of the server.
      const stale = batch.left === 0 ? batch.empty() : 0;
      if (stale > 0) this.decider.server.ask(this.decider.command("TB.GIVE", batch, [stale])).catch(() => {});
      const askedAt = this.decider.clock.now();
      const wanted = Math.max(this.size, batch.wanted) - batch.left;
      const took = Decision.read(await this.decider.server.ask(this.decider.command("TB.TAKEUPTO", batch, [wanted])));
      batch.add(took, askedAt);
      return took;
    } catch (error) {
      if (error instanceof Undecided) return undefined;
      throw error;
    } finally {
      batch.fetching = undefined;
    }
  }
}
