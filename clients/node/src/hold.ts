/** What is held for one piece of work until it is settled, or its holder is gone. */

import { randomUUID } from "node:crypto";

import { limitWords, type Asker, type Part } from "./asker.js";
import { Denied, JointDecision } from "./decision.js";
import { textOf } from "./errors.js";
import { checkAmount, type Amount } from "./limit.js";

/** What the work used; of several limits, by their names. */
export type Used = Amount | Readonly<Record<string, Amount>>;

export interface HoldOptions {
  /** When the tokens come back if the holder is gone; 30,000 by default. It is renewed three times as often. */
  ttlMs?: number;
}

const MAX_TTL_MS = 30 * 86_400_000;

/**
 * Renews itself until it is settled; `await using` settles it at the end of its block, with `used`.
 *
 * Work that was let through because the server was away has one too, which the first renewal after
 * its return takes, if there is room, and the settlement charges in any case.
 */
export class Hold implements AsyncDisposable {
  readonly id = randomUUID();
  /** What the work used, for the end of the block: nothing unless set. */
  used: Used = 0;
  readonly #asker: Asker;
  readonly #parts: readonly Part[];
  readonly #ttlMs: number;
  #decision = new JointDecision({ allowed: false });
  #timer: NodeJS.Timeout | undefined;
  #renewing: Promise<unknown> | undefined;
  #isOver = false;

  private constructor(asker: Asker, parts: readonly Part[], ttlMs: number) {
    if (!(ttlMs >= 1 && ttlMs <= MAX_TTL_MS)) throw new RangeError(`ttlMs: ${ttlMs} is not from 1 to 30 days`);
    this.#asker = asker;
    this.#parts = parts;
    this.#ttlMs = Math.round(ttlMs);
  }

  static async of(asker: Asker, parts: readonly Part[], { ttlMs = 30_000 }: HoldOptions): Promise<Hold> {
    const hold = new Hold(asker, parts, ttlMs);
    await hold.renew();
    // Three times a ttl, so that one renewal may fail and the next still comes in time.
    hold.#isOver = !hold.allowed;
    if (hold.allowed) hold.#timer = setInterval(() => hold.#keep(), ttlMs / 3).unref();
    return hold;
  }

  /** Does the work while `holding`; rejects with `Denied` if it is denied. */
  static async during<T>(holding: Promise<Hold>, work: (hold: Hold) => T | Promise<T>): Promise<T> {
    const hold = await holding;
    if (!hold.allowed) throw new Denied(hold.decision);
    try {
      return await work(hold);
    } finally {
      await hold.settle();
    }
  }

  /** The first decision, then that of the last renewal. */
  get decision(): JointDecision {
    return this.#decision;
  }

  get allowed(): boolean {
    return this.#decision.allowed;
  }

  /** Makes the hold last its ttl from now; one that has expired is taken anew, given room. */
  async renew(): Promise<JointDecision> {
    const { length } = this.#parts;
    this.#decision = await this.#asker.decideAll(this.#parts, [
      "TB.MHOLD",
      String(length),
      String(this.#ttlMs),
      this.id,
    ]);
    return this.#decision;
  }

  /**
   * Ends the hold: what was not used comes back, what was used beyond it is charged. If it is not
   * there any more (it expired, or the server was away when the work began), what was used is charged.
   *
   * Asked also while the server is thought to be away: what a settlement does not tell is lost.
   */
  async settle(used: Used = this.used): Promise<void> {
    if (this.#isOver) return;
    const parts = this.#parts.map((part) => ({ ...part, amount: this.#usedOf(part, used) }));
    this.#isOver = true;
    clearInterval(this.#timer);
    // A renewal on its way could arrive after the settlement.
    await this.#renewing;
    const how = { always: true };
    const settled = await this.#asker.decideAll(parts, ["TB.MSETTLE", String(parts.length), this.id], how);
    for (const { which, name, limit, amount } of parts) {
      if (settled.each[which]?.allowed !== false || Number(amount) === 0) continue;
      await this.#asker.ask(["TB.CHARGE", this.#asker.prefix + name, ...limitWords(limit), String(amount)], how);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.settle();
  }

  #usedOf({ which }: Part, used: Used): Amount {
    if (typeof used !== "object") {
      if (this.#parts.length === 1 || Number(used) === 0) return used;
      throw new RangeError(`used: ${used} does not say of which limit`);
    }
    const amount = used[which] ?? 0;
    checkAmount("used", amount);
    return amount;
  }

  #keep(): void {
    this.#renewing ??= this.renew()
      .catch((error: unknown) => this.#asker.server.log(`tokenbucket: a hold was not renewed: ${textOf(error)}`))
      .finally(() => (this.#renewing = undefined));
  }
}
