/**
 * Buckets that can be blocked for a time, whatever they hold: what the limiters of others promise.
 *
 * Beside each bucket stands one that is never more than in debt: one token flows in a second, none fits
 * in, so who is charged N is out of debt after N seconds. One TB.MTAKE asks both, and takes nothing of a
 * bucket whose neighbour is in debt.
 */

import { Asker, limitWords, type Bucket, type Options } from "./asker.js";
import type { Client } from "./connection.js";
import { Decision } from "./decision.js";
import type { Amount, Limit } from "./limit.js";
import { scriptKey } from "./command.js";

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
  readonly #asker: Asker;

  constructor(client: Client, options: Options) {
    this.#asker = new Asker(client, { ...options, prefix: "" });
  }

  /**
   * The key of a name's bucket, which its block's has to share a slot of a cluster with. The script's keys
   * have an end of their own, so for it both need a tag.
   */
  #key(name: string): string {
    return this.#asker.canScript ? tagged(name) : name;
  }

  /** Takes `cost`, unless there is too little or the bucket is blocked. */
  async take({ name, limit }: Bucket, cost: Amount): Promise<Outcome> {
    const began = this.#asker.clock.now();
    const joint = await this.#asker.decideAllQuietly(
      [
        { which: "bucket", name: this.#key(name), limit, amount: cost },
        { which: "block", name: blockKey(name), limit: BLOCKS, amount: 0 },
      ],
      ["TB.MTAKE", "2"],
    );
    const { bucket = joint, block } = joint.each;
    const { allowed, degraded } = joint;
    this.#asker.tell(name, limit, bucket.with({ allowed, retryAfterMs: joint.retryAfterMs }), began);
    return { allowed, degraded, bucket, blockedMs: block?.allowed === false ? block.retryAfterMs : 0 };
  }

  /** What there is; takes nothing. */
  async look({ name, limit }: Bucket): Promise<Outcome> {
    const [bucket, block] = await Promise.all([
      this.#asker.decide("TB.PEEK", { name: this.#key(name), limit }, [0]),
      this.#asker.decideQuietly("TB.PEEK", { name: blockKey(name), limit: BLOCKS }, [0]),
    ]);
    const degraded = bucket.degraded || block.degraded;
    const blockedMs = degraded || block.allowed ? 0 : block.retryAfterMs;
    return { allowed: bucket.allowed && block.allowed, degraded, bucket, blockedMs };
  }

  /** Takes `amount` in any case, into debt if need be. */
  charge({ name, limit }: Bucket, amount: Amount): Promise<Decision> {
    return this.#asker.decide("TB.CHARGE", { name: this.#key(name), limit }, [amount]);
  }

  give({ name, limit }: Bucket, amount: Amount): Promise<Decision> {
    return this.#asker.decide("TB.GIVE", { name: this.#key(name), limit }, [amount]);
  }

  /** Nobody passes for `ms` from now, whatever there was before; for 31 years if infinite. */
  block({ name }: Bucket, ms: number): Promise<boolean> {
    return this.#set({ name: blockKey(name), limit: BLOCKS }, Math.min(ms, FOREVER_MS) / 1000);
  }

  /** The bucket is as if `amount` had been taken from a full one, and not blocked. */
  async set({ name, limit }: Bucket, amount: Amount): Promise<boolean> {
    const known = await this.#set({ name: this.#key(name), limit }, amount);
    await this.#delete(blockKey(name));
    return known;
  }

  /** Fills the bucket, and ends its block. Whether there was anything to forget. */
  async delete({ name }: Bucket): Promise<boolean> {
    const deleted = await Promise.all([this.#delete(this.#key(name)), this.#delete(blockKey(name))]);
    return deleted.includes(true);
  }

  async #delete(key: string): Promise<boolean> {
    const keys = this.#asker.canScript ? [key, scriptKey(key)] : [key];
    const deleted = await Promise.all(keys.map((one) => this.#asker.ask(["DEL", one])));
    return deleted.some((count) => Number(count) > 0);
  }

  /** In one transaction, so that blocks of several callers do not add up. */
  async #set({ name, limit }: Bucket, amount: Amount): Promise<boolean> {
    // Finds out whether the module decides, or the script: a transaction can only fail.
    const found = await this.#asker.ask(["TB.PEEK", name, ...limitWords(limit), "0"]);
    if (found === undefined) return false;
    const charge = ["TB.CHARGE", name, ...limitWords(limit), String(amount)];
    return (await this.#asker.askTogether([["DEL", name], charge])) !== undefined;
  }
}

function blockKey(name: string): string {
  return `${tagged(name)}:block`;
}

/** With the slot of a cluster that `name` has. */
function tagged(name: string): string {
  return /\{[^}]+\}/.test(name) ? name : `{${name}}`;
}
