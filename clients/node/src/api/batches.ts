/** Fetches tokens in batches and spends them here, so that most takes need no round trip. */

import type { Bucket, Caller, Decider } from "./decider.js";
import { Decision } from "../values/decision.js";
import { bucketId, putLast } from "./denials.js";
import { flowMs, rateParts } from "../values/limit.js";
import { aTurn, whileIn } from "../transport/time.js";
import { Undecided } from "../values/errors.js";

const MOST_BATCHES = 10_000;
/** How many fetches a call shares before it asks for itself. */
const MOST_FETCHES = 2;

/** The unspent tokens of one bucket. */
class Batch {
  #tokens = 0;
  #staleAt = 0;
  #fetchedAt = 0;
  #reply = new Decision({ allowed: false });
  /** The fetch on its way. It belongs to no caller. */
  #fetching: Promise<Decision | undefined> | undefined;
  /** How much the calls want that wait for a fetch. */
  #wanted = 0;

  constructor(
    readonly bucket: Bucket,
    readonly size: number,
    readonly decider: Decider,
  ) {}

  /** Tokens to spend; 0 when the bucket has had the time to refill without them. */
  get #left(): number {
    return this.decider.clock.now() < this.#staleAt ? this.#tokens : 0;
  }

  /** Spends what is here; undefined if that is too little. */
  spend(cost: number): Decision | undefined {
    return cost <= this.#left ? this.#spent(cost) : undefined;
  }

  /** Takes when there is too little here. Calls share a fetch, however long it takes, and its denial. */
  async take(cost: number, caller: Caller): Promise<Decision> {
    for (let fetches = 0; fetches < MOST_FETCHES; fetches++) {
      this.#wanted += cost;
      const fetching = (this.#fetching ??= this.#fetch());
      const took = await whileIn(caller.signal, fetching).finally(() => (this.#wanted -= cost));
      if (cost <= this.#tokens) return this.#spent(cost);
      if (took?.granted === 0) return cost > 1 ? this.#denial(cost, caller) : took;
      if (!took) break;
    }
    return this.decider.decideQuietly("TB.TAKE", this.bucket, [cost], caller);
  }

  /** Removes and returns all tokens, stale or not. */
  empty(): number {
    const tokens = this.#tokens;
    this.#tokens = 0;
    return tokens;
  }

  /** Gives back what its callers leave: they spend first, and perhaps fetch once more. */
  async settle(): Promise<void> {
    while (this.#fetching) await this.#fetching.then(aTurn, aTurn);
    const tokens = this.empty();
    if (tokens > 0) await this.decider.decideQuietly("TB.GIVE", this.bucket, [tokens]);
  }

  #spent(cost: number): Decision {
    this.#tokens -= cost;
    const remaining = this.#reply.remaining + this.#tokens;
    const passedMs = Math.floor(this.decider.clock.now() - this.#fetchedAt);
    return new Decision({ allowed: true, remaining, resetAfterMs: Math.max(this.#reply.resetAfterMs - passedMs, 0) });
  }

  /** Returns the denial of a cost that is covered in part: the server says how long the rest takes. */
  async #denial(cost: number, caller: Caller): Promise<Decision> {
    const left = this.#left;
    const rest = await this.decider.decideQuietly("TB.PEEK", this.bucket, [cost - left], caller);
    const remaining = rest.remaining + (rest.allowed ? cost : left);
    return rest.with({ allowed: false, granted: 0, remaining, retryAfterMs: rest.retryAfterMs || 1 });
  }

  /** Resolves to nothing if the server did not decide. */
  async #fetch(): Promise<Decision | undefined> {
    const { server, clock } = this.decider;
    const ask = (operation: string, tokens: number) =>
      server.ask(this.decider.command(operation, this.bucket, [tokens]));
    try {
      // One fetch serves all callers of the same turn.
      await undefined;
      // Stale tokens go back: if others used the bucket meanwhile, it is not full without them. No caller asked for it, so
      // no policy decides in place of the server.
      const stale = this.#left === 0 ? this.empty() : 0;
      if (stale > 0) ask("TB.GIVE", stale).catch(() => {});
      const askedAt = clock.now();
      const took = Decision.read(await ask("TB.TAKEUPTO", Math.max(this.size, this.#wanted) - this.#left));
      this.#tokens = this.#left + took.granted;
      this.#fetchedAt = askedAt;
      this.#reply = took;
      // A calendar rate refills nothing before the next boundary, and then all at once.
      const { limit } = this.bucket;
      const { isCalendar } = rateParts(limit.rate);
      this.#staleAt = askedAt + (isCalendar ? took.resetAfterMs : flowMs(limit, Number(limit.capacity)));
      return took;
    } catch (error) {
      if (error instanceof Undecided) return undefined;
      throw error;
    } finally {
      this.#fetching = undefined;
    }
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
    const batch = this.#batches.get(id) ?? new Batch(bucket, this.size, this.decider);
    const dropped = putLast(this.#batches, id, batch, MOST_BATCHES);
    dropped?.settle().catch(() => {});
    return batch;
  }

  /** Drops the tokens of a name that is reset to full, of whatever limit. */
  forget({ name }: Bucket): void {
    for (const batch of this.#batches.values()) if (batch.bucket.name === name) batch.empty();
  }

  async close(): Promise<void> {
    const batches = [...this.#batches.values()];
    this.#batches.clear();
    await Promise.all(batches.map((batch) => batch.settle()));
  }
}
