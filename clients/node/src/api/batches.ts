/** Fetches tokens in batches and spends them here, so that most takes need no round trip. */

import type { Decider, Bucket, Caller } from "./decider.js";
import { Decision } from "../values/decision.js";
import { bucketId, dropOldest, type Denials } from "./denials.js";
import { flowMs, rateParts, type Limit } from "../values/limit.js";
import type { Clock } from "../transport/driver.js";

const MOST_BATCHES = 10_000;

/** A caller that waits for a fetch. */
class Waiter {
  hasGone = false;

  constructor(
    readonly cost: number,
    readonly resolve: (decision: Decision) => void,
    readonly reject: (error: unknown) => void,
    readonly signal: AbortSignal | undefined,
  ) {
    signal?.addEventListener("abort", this.#leave, { once: true });
  }

  end(decide: () => Decision): void {
    this.signal?.removeEventListener("abort", this.#leave);
    if (this.hasGone) return;
    try {
      this.resolve(decide());
    } catch (error) {
      this.reject(error);
    }
  }

  readonly #leave = () => {
    this.hasGone = true;
    this.reject(this.signal?.reason);
  };
}

/** The replies of one fetch: what it took, and when the next token comes. */
interface Fetched {
  took: Decision;
  next: Decision;
}

/** The unspent tokens of one bucket. */
class Batch implements Bucket {
  #tokens = 0;
  #staleAt = 0;
  #fetchedAt = 0;
  #reply = new Decision({ allowed: false });
  waiters: Waiter[] = [];
  fetching: Promise<void> | undefined;

  constructor(
    readonly name: string,
    readonly limit: Limit,
    readonly clock: Clock,
  ) {}

  /** Tokens to spend; 0 when the bucket has had the time to refill without them. */
  get left(): number {
    return this.clock.now() < this.#staleAt ? this.#tokens : 0;
  }

  get isIdle(): boolean {
    return this.fetching === undefined && this.waiters.length === 0;
  }

  add(took: Decision, askedAt: number): void {
    this.#tokens = this.left + took.granted;
    this.#fetchedAt = askedAt;
    this.#reply = took;
    // A calendar rate refills nothing before the next boundary, and then all at once.
    const { isCalendar } = rateParts(this.limit.rate);
    this.#staleAt = askedAt + (isCalendar ? took.resetAfterMs : flowMs(this.limit, Number(this.limit.capacity)));
  }

  /** Spends tokens, however long their fetch took; undefined if there are too few. */
  spend(cost: number): Decision | undefined {
    if (this.#tokens < cost) return undefined;
    this.#tokens -= cost;
    const passedMs = Math.floor(this.clock.now() - this.#fetchedAt);
    return new Decision({
      allowed: true,
      remaining: this.#reply.remaining + this.#tokens,
      resetAfterMs: Math.max(this.#reply.resetAfterMs - passedMs, 0),
    });
  }

  /** The denial of a cost that the batch does not cover. */
  denial(cost: number, { next }: Fetched): Decision {
    return next.with({
      allowed: false,
      granted: 0,
      remaining: next.remaining + Number(next.allowed) + this.#tokens,
      retryAfterMs: cost > Number(this.limit.capacity) ? -1 : this.#waitMs(cost - this.#tokens, next),
    });
  }

  /** Removes and returns all tokens, stale or not. */
  empty(): number {
    const tokens = this.#tokens;
    this.#tokens = 0;
    return tokens;
  }

  #waitMs(lacking: number, { retryAfterMs }: Decision): number {
    const { isCalendar, count } = rateParts(this.limit.rate);
    // A boundary brings several tokens at once.
    const beyond = isCalendar ? (Math.ceil(lacking / Number(count)) - 1) * Number(count) : lacking - 1;
    return Math.max(retryAfterMs + Math.ceil(flowMs(this.limit, Math.max(beyond, 0))), 1);
  }
}

export class Batches {
  readonly #batches = new Map<string, Batch>();

  constructor(
    readonly size: number,
    readonly decider: Decider,
    readonly denials: Denials | undefined,
  ) {}

  take(name: string, limit: Limit, cost: number, caller: Caller): Promise<Decision> {
    const batch = this.#of(name, limit);
    if (batch.isIdle) {
      const { left } = batch;
      if (left >= cost) return Promise.resolve(batch.spend(cost)!);
      const refusal = this.denials?.recall(name, limit, cost - left);
      if (refusal) return Promise.resolve(refusal);
    }
    return new Promise((resolve, reject) => {
      const waiter = new Waiter(cost, resolve, reject, caller.signal);
      batch.waiters.push(waiter);
      batch.fetching ??= this.#fetchForAll(batch);
    });
  }

  /** Drops the tokens of a bucket that is reset to full. */
  forget(name: string, limit: Limit): void {
    this.#batches.get(bucketId(name, limit))?.empty();
  }

  /** Gives back all unspent tokens. */
  async close(): Promise<void> {
    await Promise.all([...this.#batches.values()].map((batch) => this.#settle(batch)));
    this.#batches.clear();
  }

  async #settle(batch: Batch): Promise<void> {
    await batch.fetching;
    const { left } = batch;
    batch.empty();
    if (left > 0) await this.decider.decideQuietly("TB.GIVE", batch, [left]);
  }

  #of(name: string, limit: Limit): Batch {
    const id = bucketId(name, limit);
    const batch = this.#batches.get(id) ?? new Batch(name, limit, this.decider.clock);
    this.#batches.delete(id); // so that it is put behind all others
    this.#batches.set(id, batch);
    if (this.#batches.size > MOST_BATCHES) this.#drop(dropOldest(this.#batches)!);
    return batch;
  }

  #drop(batch: Batch): void {
    if (batch.fetching) void batch.fetching.then(() => this.#drop(batch));
    else if (batch.left > 0) this.#giveBack(batch);
  }

  #giveBack(batch: Batch): void {
    const tokens = batch.empty();
    if (tokens > 0) this.decider.send(this.decider.command("TB.GIVE", batch, [tokens]));
  }

  async #fetchForAll(batch: Batch): Promise<void> {
    // One fetch serves all callers of the same turn.
    await undefined;
    while (batch.waiters.length > 0) {
      try {
        await this.#fetch(batch);
      } catch (error) {
        for (const waiter of batch.waiters.splice(0)) waiter.end(() => raise(error));
      }
    }
    batch.fetching = undefined;
  }

  /** Serves all waiting callers. If the bucket has more, the next fetch serves those that came meanwhile. */
  async #fetch(batch: Batch): Promise<void> {
    // Stale tokens go back: if others used the bucket meanwhile, it is not full without them.
    if (batch.left === 0) this.#giveBack(batch);
    const waiting = batch.waiters.length;
    const cost = batch.waiters.reduce((sum, waiter) => sum + waiter.cost, 0);
    const wanted = Math.max(this.size, cost - batch.left);
    const askedAt = this.decider.clock.now();
    const fetched = await this.#ask(batch, wanted, askedAt);
    if (!fetched) return this.#decideByPolicy(batch);
    const hasMore = fetched.took.granted === wanted;
    const served = hasMore ? batch.waiters.splice(0, waiting) : batch.waiters.splice(0);
    for (const waiter of served) {
      waiter.end(() => batch.spend(waiter.cost) ?? this.#deny(batch, waiter.cost, fetched, askedAt));
    }
  }

  #deny(batch: Batch, cost: number, fetched: Fetched, askedAt: number): Decision {
    const denial = batch.denial(cost, fetched);
    this.denials?.remember(batch.name, batch.limit, cost - batch.left, denial, askedAt);
    return denial;
  }

  /** Sends both commands in one write. Undefined if the server does not decide; a late grant goes into the batch. */
  async #ask(batch: Batch, wanted: number, askedAt: number): Promise<Fetched | undefined> {
    const take = this.#reply("TB.TAKEUPTO", batch, wanted, (took) => batch.add(took, askedAt));
    const peek = this.#reply("TB.PEEK", batch, 1);
    const [took, next] = await Promise.all([take, peek]);
    return took && { took, next: next ?? took };
  }

  #reply(operation: string, batch: Batch, amount: number, heard?: (decision: Decision) => void) {
    return new Promise<Decision | undefined>((resolve, failed) => {
      const replied = (reply: unknown) => {
        const decision = Decision.read(reply);
        heard?.(decision);
        resolve(decision);
      };
      const listener = { replied, failed, undecided: () => resolve(undefined) };
      this.decider.server.ask(this.decider.command(operation, batch, [amount]), listener);
    });
  }

  #decideByPolicy(batch: Batch): void {
    for (const waiter of batch.waiters.splice(0)) {
      waiter.end(() => this.decider.decideAlone("TB.TAKE", batch, [waiter.cost]));
    }
  }
}

function raise(error: unknown): never {
  throw error;
}
