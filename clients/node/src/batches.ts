/** Tokens fetched in batches and spent here, so that most takes ask nobody. */

import type { Clock } from "./connection.js";
import { Decision } from "./decision.js";
import { bucketId } from "./denials.js";
import { flowMs, rateParts, type Limit } from "./limit.js";

/** What is left of the tokens that were fetched for one bucket. */
export class Batch {
  #tokens = 0;
  #fetchedAt = 0;
  #staleAt = 0;
  #reply = new Decision({ allowed: false });
  #users = 0;
  #turn: Promise<unknown> = Promise.resolve();

  constructor(
    readonly name: string,
    readonly limit: Limit,
    readonly clock: Clock,
  ) {}

  /** Whether nobody would miss it. */
  get isIdle(): boolean {
    return this.#users === 0 && this.left() === 0;
  }

  /** Lets one caller at a time fetch: one batch may be enough for all who wait. */
  inTurn<T>(work: () => Promise<T>): Promise<T> {
    this.#users++;
    const done = this.#turn.then(work).finally(() => this.#users--);
    this.#turn = done.catch(() => {});
    return done;
  }

  /**
   * What may be spent: nothing once as many tokens have flowed into the bucket again.
   *
   * Or a process that was idle would spend a batch beside the bucket that filled meanwhile.
   */
  left(): number {
    if (this.clock.now() >= this.#staleAt) this.#tokens = 0;
    return this.#tokens;
  }

  add(reply: Decision, askedAt: number): void {
    this.#tokens = this.left() + reply.granted;
    this.#fetchedAt = askedAt;
    this.#reply = reply;
    let refilledMs = flowMs(this.limit, this.#tokens);
    // Nothing flows before the next boundary, and then all at once.
    if (rateParts(this.limit.rate).isCalendar) refilledMs = Math.min(refilledMs, reply.resetAfterMs);
    this.#staleAt = askedAt + refilledMs;
  }

  spend(cost: number): Decision {
    this.#tokens -= cost;
    const passedMs = Math.floor(this.clock.now() - this.#fetchedAt);
    return new Decision({
      allowed: true,
      remaining: this.#reply.remaining + this.#tokens,
      resetAfterMs: Math.max(this.#reply.resetAfterMs - passedMs, 0),
    });
  }

  /** What is left, which is then left no longer. */
  empty(): number {
    const left = this.left();
    this.#tokens = 0;
    return left;
  }
}

export class Batches {
  readonly #batches = new Map<string, Batch>();

  constructor(
    readonly size: number,
    readonly clock: Clock,
  ) {}

  of(name: string, limit: Limit): Batch {
    const id = bucketId(name, limit);
    const batch = this.#batches.get(id) ?? this.#make(name, limit);
    this.#batches.delete(id); // so that it is put behind all others
    this.#batches.set(id, batch);
    return batch;
  }

  all(): Batch[] {
    return [...this.#batches.values()];
  }

  /** Looks at the two that were not used for longest, so that memory stays bounded. */
  #make(name: string, limit: Limit): Batch {
    let looks = 2;
    for (const [id, batch] of this.#batches) {
      if (looks-- === 0 || !batch.isIdle) break;
      this.#batches.delete(id);
    }
    return new Batch(name, limit, this.clock);
  }
}
