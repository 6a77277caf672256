/**
 * Buckets that can be blocked for a time, whatever they hold: what the limiters of others promise.
 *
 * Beside each bucket stands one that is never more than in debt: one token flows in a second, none fits
 * in, so who is charged N is out of debt after N seconds. One TB.MTAKE asks both, and takes nothing of a
 * bucket whose neighbour is in debt.
 */

import { Backend, type Bucket, type Options } from "./backend.js";
import { hashTag, scriptKey } from "./command.js";
import type { Decision } from "./decision.js";
import { type Amount, type Limit } from "./limit.js";
import type { Client } from "./lines.js";
import type { Server } from "./server.js";

const BLOCKS: Limit = { capacity: 0, rate: 1 };

/** As long as a debt may last without the module: 31 years. */
const FOREVER_MS = 999_999_999_000;

export interface Outcome {
  allowed: boolean;
  degraded: boolean;
  bucket: Decision;
  /** How long it is blocked, 0 if it is not. */
  blockedMs: number;
}

export class BlockableBuckets {
  readonly #backend: Backend;

  constructor(client: Client | Server, options: Options) {
    this.#backend = new Backend(client, { ...options, prefix: "tb:" });
  }

  /** Takes `cost`, unless there is too little or the bucket is blocked. */
  async take({ name, limit }: Bucket, cost: Amount): Promise<Outcome> {
    const began = this.#backend.clock.now();
    const joint = await this.#backend.decideAllQuietly(
      [
        { which: "bucket", name: hashTag(name), limit, amount: cost },
        { which: "block", name: blockKey(name), limit: BLOCKS, amount: 0 },
      ],
      ["TB.MTAKE", "2"],
    );
    const { bucket = joint, block } = joint.each;
    const { allowed, degraded } = joint;
    this.#backend.tell(name, limit, bucket.with({ allowed, retryAfterMs: joint.retryAfterMs }), began);
    return { allowed, degraded, bucket, blockedMs: block?.allowed === false ? block.retryAfterMs : 0 };
  }

  /** What there is; takes nothing. */
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

  /** What the operation decides, and whether the bucket is blocked. */
  async #withBlock({ name, limit }: Bucket, operation: string, amount: Amount): Promise<Outcome> {
    const [bucket, block] = await Promise.all([
      this.#backend.decide(operation, { name: hashTag(name), limit }, [amount]),
      this.#backend.decideQuietly("TB.PEEK", { name: blockKey(name), limit: BLOCKS }, [0]),
    ]);
    const degraded = bucket.degraded || block.degraded;
    const blockedMs = block.allowed ? 0 : block.retryAfterMs;
    return { allowed: bucket.allowed && block.allowed, degraded, bucket, blockedMs };
  }

  /** Nobody passes for `ms` from now, whatever there was before; for 31 years if infinite. */
  block({ name }: Bucket, ms: number): Promise<boolean> {
    return this.#set({ name: blockKey(name), limit: BLOCKS }, Math.min(ms, FOREVER_MS) / 1000);
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
    const key = this.#backend.prefix + name;
    const keys = this.#backend.server.canScript ? [key, scriptKey(key)] : [key];
    const deleted = await Promise.all(keys.map((one) => this.#backend.ask(["DEL", one])));
    return deleted.some((count) => Number(count) > 0);
  }

  /** In one transaction, so that blocks of several callers do not add up. */
  async #set(bucket: Bucket, amount: Amount): Promise<boolean> {
    // Finds out whether the module decides, or the script: a transaction can only fail.
    const peek = this.#backend.command("TB.PEEK", bucket, [0]);
    await this.#backend.ask(peek);
    const charge = this.#backend.command("TB.CHARGE", bucket, [amount]);
    const together = [["DEL", this.#backend.prefix + bucket.name], charge];
    return (await this.#backend.ask(peek, { together })) !== undefined;
  }
}

/** Beside the bucket, in the slot of a cluster that it has. */
function blockKey(name: string): string {
  return `${hashTag(name)}:block`;
}
