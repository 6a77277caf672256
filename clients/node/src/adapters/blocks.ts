/**
 * Buckets that can be blocked for a time, whatever they hold: what the limiters of others promise.
 *
 * Beside each bucket is one of capacity 0 into which one token flows a second: a charge of N puts it into debt for N
 * seconds. One TB.MTAKE asks both, and takes nothing while the second is in debt.
 */

import { Decider, type Bucket, type Options } from "../api/decider.js";
import { hashTag, scriptKey } from "../transport/command.js";
import type { Decision } from "../values/decision.js";
import { type Amount, type Limit } from "../values/limit.js";
import type { Client } from "../transport/clients.js";
import type { Server } from "../transport/server.js";

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

  constructor(client: Client | Server, options: Options) {
    this.#decider = new Decider(client, { ...options, prefix: "tb:" });
  }

  /** Takes `cost`, unless there is too little or the bucket is blocked. */
  async take({ name, limit }: Bucket, cost: Amount, { countDenials = false } = {}): Promise<Outcome> {
    const began = this.#decider.clock.now();
    const parts = [
      { which: "bucket", name: hashTag(name), limit, amount: cost },
      { which: "block", name: blockKey(name), limit: BLOCKS, amount: 0 },
    ];
    if (countDenials) parts.push({ which: "denials", name: denialsKey(name), limit: DENIALS, amount: 0 });
    const joint = await this.#decider.decideAllQuietly(parts, ["TB.MTAKE", String(parts.length)]);
    const { bucket = joint, block, denials } = joint.each;
    const { allowed, degraded } = joint;
    this.#decider.tell(name, limit, bucket.with({ allowed, retryAfterMs: joint.retryAfterMs }), began);
    return {
      allowed,
      degraded,
      bucket,
      blockedMs: block ? blockedMs(block) : 0,
      denials: denials ? MOST_DENIALS - denials.remaining : 0,
    };
  }

  /** Returns the level; takes nothing. */
  look(bucket: Bucket): Promise<Outcome> {
    return this.#withBlock(bucket, "TB.PEEK", 0);
  }

  /** Takes `amount` in any case, into debt if need be. */
  charge(bucket: Bucket, amount: Amount): Promise<Outcome> {
    return this.#withBlock(bucket, "TB.CHARGE", amount);
  }

  give(bucket: Bucket, amount: Amount): Promise<Outcome> {
    return this.#withBlock(bucket, "TB.GIVE", amount);
  }

  /** Decides on the bucket, and reads its block. */
  async #withBlock({ name, limit }: Bucket, operation: string, amount: Amount): Promise<Outcome> {
    const [bucket, block] = await Promise.all([
      this.#decider.decide(operation, { name: hashTag(name), limit }, [amount]),
      this.#decider.decideQuietly("TB.PEEK", { name: blockKey(name), limit: BLOCKS }, [0]),
    ]);
    const degraded = bucket.degraded || block.degraded;
    return { allowed: bucket.allowed && block.allowed, degraded, bucket, blockedMs: blockedMs(block), denials: 0 };
  }

  /** Denies every call for `ms` from now, whatever block there was; for 31 years if infinite. */
  block({ name }: Bucket, ms: number): Promise<boolean> {
    return this.#set({ name: blockKey(name), limit: BLOCKS }, Math.min(ms, FOREVER_MS) / 1000);
  }

  /** Remembers for `ms` how many denials there were, because the bucket is full then; at most 10,000, each for 3.6 days. */
  setDenials({ name }: Bucket, count: number, ms: number): Promise<boolean> {
    const most = Math.min(count, MOST_DENIALS);
    const limit = { capacity: MOST_DENIALS, rate: `${most}/${Math.min(ms, most * MS_OF_A_DENIAL)}ms` };
    return this.#set({ name: denialsKey(name), limit }, most);
  }

  forgetDenials({ name }: Bucket): Promise<boolean> {
    return this.#delete(denialsKey(name));
  }

  /** The bucket is as if `amount` had been taken from a full one, and not blocked. */
  async set({ name, limit }: Bucket, amount: Amount): Promise<boolean> {
    const known = await this.#set({ name: hashTag(name), limit }, amount);
    await this.#delete(blockKey(name));
    return known;
  }

  /** Fills the bucket, and ends its block. Whether there was anything to forget. */
  async delete({ name }: Bucket): Promise<boolean> {
    const deleted = await Promise.all([this.#delete(hashTag(name)), this.#delete(blockKey(name))]);
    return deleted.includes(true);
  }

  async #delete(name: string): Promise<boolean> {
    const key = this.#decider.prefix + name;
    const keys = this.#decider.server.canScript ? [key, scriptKey(key)] : [key];
    const deleted = await Promise.all(keys.map((one) => this.#decider.ask(["DEL", one])));
    return deleted.some((count) => Number(count) > 0);
  }

  /** In one transaction, so that blocks of several callers do not add up. */
  async #set(bucket: Bucket, amount: Amount): Promise<boolean> {
    // Finds out whether the module decides, or the script: a transaction can only fail.
    const peek = this.#decider.command("TB.PEEK", bucket, [0]);
    await this.#decider.ask(peek);
    const charge = this.#decider.command("TB.CHARGE", bucket, [amount]);
    const together = [["DEL", this.#decider.prefix + bucket.name], charge];
    return (await this.#decider.ask(peek, { together })) !== undefined;
  }
}

function blockedMs({ allowed, retryAfterMs }: Decision): number {
  return allowed ? 0 : retryAfterMs;
}

/** Returns whether a block was to last for ever. */
export function isForever(blockedMs: number): boolean {
  return blockedMs > FOREVER_MS / 2;
}

/** Beside the bucket, in the slot of a cluster that it has. */
function blockKey(name: string): string {
  return `${hashTag(name)}:block`;
}

function denialsKey(name: string): string {
  return `${hashTag(name)}:denials`;
}
