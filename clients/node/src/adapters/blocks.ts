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

/** Denials are counted as tokens that a third bucket lacks. Read at this rate, none has flowed in for three days. */
const MOST_DENIALS = 10_000;
const DENIALS: Limit = { capacity: MOST_DENIALS, rate: "100/365d" };
/** How long each denial is remembered at most: no bucket takes more than 100 years to fill. */
const MS_OF_A_DENIAL = (100 * 365 * 86_400_000) / MOST_DENIALS;

/** The longest debt without the module: 31 years. */
export const FOREVER_MS = 999_999_999_000;

export interface Outcome {
  allowed: boolean;
  degraded: boolean;
  bucket: Decision;
  /** How long it is blocked, 0 if it is not. */
  blockedMs: number;
  /** The count of `setDenials`; 0 if it was not asked for. */
  denials: number;
}

export class BlockableBuckets {
  readonly #decider: Decider;

  constructor(client: Client | Server, options: DropInOptions) {
    this.#decider = new Decider(client, { ...options, prefix: "tb:" });
  }

  /** Takes `cost`, unless there is too little or the bucket is blocked. */
  async take({ name, limit }: Bucket, cost: Amount, { countDenials = false } = {}): Promise<Outcome> {
    const began = this.#decider.clock.now();
    const parts = [
      { which: "bucket", name: hashTag(name), limit, amount: cost },
      { which: "block", ...blockOf(name), amount: 0 },
    ];
    if (countDenials) parts.push({ which: "denials", ...denialsOf(name), amount: 0 });
    const joint = await this.#decider.decideAllQuietly(parts, ["TB.MTAKE", String(parts.length)]);
    const { allowed, degraded, retryAfterMs } = joint;
    const { bucket = joint, block, denials } = joint.each;
    this.#decider.tell(name, limit, bucket.with({ allowed, retryAfterMs }), began);
    const counted = denials ? MOST_DENIALS - denials.remaining : 0;
    return { allowed, degraded, bucket, blockedMs: block ? blockedMs(block) : 0, denials: counted };
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

  /** Remembers for `ms` how many denials there were, because the bucket is full then; at most 10,000, each for 3.6 days. */
  setDenials({ name }: Bucket, count: number, ms: number): Promise<void> {
    const most = Math.min(count, MOST_DENIALS);
    const limit = { capacity: MOST_DENIALS, rate: `${most}/${Math.min(ms, most * MS_OF_A_DENIAL)}ms` };
    return this.#set({ ...denialsOf(name), limit }, most);
  }

  async forgetDenials({ name }: Bucket): Promise<void> {
    await this.#decider.delete([denialsOf(name).name]);
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
    // Finds out whether the module decides, or the script: a transaction can only fail.
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

function denialsOf(name: string): Bucket {
  return { name: `${hashTag(name)}:denials`, limit: DENIALS };
}
