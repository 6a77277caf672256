/**
 * Buckets that can be blocked for a time, whatever they hold: what the limiters of others promise.
 *
 * Beside each bucket is one of capacity 0 into which one token flows a second: a charge of N puts it into debt for N
 * seconds. One TB.MTAKE asks both, and takes nothing while the second is in debt.
 */

import { Decider, type Bucket, type DropInOptions } from "../api/decider.js";
import { hashTag } from "../transport/command.js";
import type { Decision } from "../values/decision.js";
import { type Amount, type Limit } from "../values/limit.js";
import type { Client, Server } from "../transport/server.js";

const BLOCKS: Limit = { capacity: 0, rate: 1 };

/** The longest debt without the module: 31 years. */
export const FOREVER_MS = 999_999_999_000;

export interface Outcome {
  allowed: boolean;
  degraded: boolean;
  bucket: Decision;
  /** How long it is blocked, 0 if it is not. */
  blockedMs: number;
}

export class BlockableBuckets {
  readonly #decider: Decider;

  constructor(client: Client | Server, options: DropInOptions) {
    this.#decider = new Decider(client, { ...options, prefix: "tb:" });
  }

  /** Takes `cost`, unless there is too little or the bucket is blocked. */
  async take({ name, limit }: Bucket, cost: Amount): Promise<Outcome> {
    const began = this.#decider.clock.now();
    const parts = [
      { which: "bucket", name: hashTag(name), limit, amount: cost },
      { which: "block", ...blockOf(name), amount: 0 },
    ];
    const joint = await this.#decider.decideAllQuietly(parts, ["TB.MTAKE", "2"]);
    const { allowed, degraded, retryAfterMs } = joint;
    const { bucket = joint, block } = joint.each;
    this.#decider.report(name, limit, bucket.with({ allowed, retryAfterMs }), began);
    return { allowed, degraded, bucket, blockedMs: block ? blockedMs(block) : 0 };
  }

  /** Decides on the bucket, blocked or not, and reads its block. */
  async decide({ name, limit }: Bucket, operation: "TB.PEEK" | "TB.CHARGE" | "TB.GIVE", amount: Amount) {
    const [bucket, block] = await Promise.all([
      this.#decider.decide(operation, { name: hashTag(name), limit }, [amount]),
      this.#decider.decideQuietly("TB.PEEK", blockOf(name), [0]),
    ]);
    return { bucket, blockedMs: blockedMs(block) };
  }

  /** Denies every call for `ms` from now, whatever block there was; for 31 years if infinite. */
  block({ name }: Bucket, ms: number): Promise<void> {
    return this.#set(blockOf(name), Math.min(ms, FOREVER_MS) / 1000);
  }

  /** The bucket is as if `amount` had been taken from a full one, and not blocked. */
  async set({ name, limit }: Bucket, amount: Amount): Promise<void> {
    await this.#set({ name: hashTag(name), limit }, amount);
    await this.#decider.delete([blockOf(name).name]);
  }

  /** Fills the bucket, and ends its block. Returns whether there was anything to forget. */
  delete({ name }: Bucket): Promise<boolean> {
    return this.#decider.delete([hashTag(name), blockOf(name).name]);
  }

  /** In one transaction, so that blocks of several callers do not add up. */
  async #set(bucket: Bucket, amount: Amount): Promise<void> {
    // Follows redirections and explains errors: a transaction can only fail.
    const peek = this.#decider.command("TB.PEEK", bucket, [0]);
    await this.#decider.ask(peek);
    const charge = this.#decider.command("TB.CHARGE", bucket, [amount]);
    await this.#decider.ask(peek, { together: [["DEL", this.#decider.prefix + bucket.name], charge] });
  }
}

function blockedMs({ allowed, retryAfterMs }: Decision): number {
  return allowed ? 0 : retryAfterMs;
}

/** Beside the bucket, in the slot of a cluster that it has. */
function blockOf(name: string): Bucket {
  return { name: `${hashTag(name)}:block`, limit: BLOCKS };
}
