/** Holds: tokens reserved for one piece of work until it is settled, or its holder is gone. */

import { randomUUID } from "node:crypto";

import { byName, chosen, inTurn, type Decider, type Part, type ShareOptions, type WaitOptions } from "./decider.js";
import { LONGEST_MS, SETTLED_AGAIN_AFTER_MS } from "../values/constants.js";
import { Decision, Denied } from "../values/decision.js";
import { BadArgument, HoldLost, ReplyLost, ServerAway, textOf } from "../values/errors.js";
import { checkAmount, checkBetween, isNothing, isPool, type Amount } from "../values/limit.js";
import type { Call } from "../transport/server.js";

/** The actual use; for several limits, by their names. */
export type Used = Amount | Readonly<Record<string, Amount>>;

export interface HoldOptions extends WaitOptions {
  /**
   * Milliseconds until the tokens come back if the process dies, 1 to 30 days; 30,000 by default. An open hold is renewed
   * three times as often.
   */
  ttlMs?: number;
}

/**
 * Reserves tokens for a piece of work. Renews itself until it is settled or lost; `await using` settles it at the end of
 * its block, with `used`.
 *
 * Work admitted during an outage gets a hold in this process; the first renewal after reconnecting acquires it on the
 * server, if there is room, and the settlement charges in any case.
 *
 * ```ts
 * import { Limiter } from "tokenbucket-redis";
 * import { FakeServer } from "tokenbucket-redis/testing";
 *
 * const limiter = new Limiter(new FakeServer(), { capacity: 1000, rate: "1000/m" });
 * {
 *   await using hold = await limiter.hold("user:42", 500);
 *   if (hold.allowed) hold.used = 120;
 * }
 * console.log((await limiter.peek("user:42", 0)).remaining); // 880
 *
 * const hold = await limiter.hold("user:42", 500);
 * hold.signal.addEventListener("abort", () => console.log("stop"));
 * console.log(hold.lost, (await hold.renew()).allowed); // false true
 * console.log((await hold.settle(80)).remaining); // 800
 * ```
 */
export class Hold implements AsyncDisposable {
  readonly id = randomUUID();
  /** The actual use, for the end of the block. `settle` says what counts if it is not set. */
  used: Used | undefined;
  readonly #decider: Decider;
  /** Of alternatives, those of the granted one as soon as one is. */
  #parts: readonly Part[];
  readonly #each: number;
  readonly #ttlMs: number;
  readonly #losing = new AbortController();
  /** Called when it is settled, because tokens may have come back. */
  readonly #onSettled: () => void;
  /** The buckets in which a call without a reply may take it, even late. */
  #inDoubt: readonly Part[] | undefined;
  /** Whether the server has had the hold, and whether this process has decided on it. */
  #isKnown = false;
  #isLocal = false;
  /** When a call without a reply was last sent that may take it. */
  #sentMs: number | undefined;
  /** When the server ends the hold unless it is renewed. */
  #lastsUntilMs = 0;
  #decision = new Decision({ allowed: false });
  #timer: NodeJS.Timeout | undefined;
  #renewing: Promise<Decision> | undefined;
  #settled: Promise<Decision> | undefined;

  private constructor(decider: Decider, parts: readonly Part[], ttlMs: number, onSettled: () => void, each: number) {
    checkBetween("ttlMs", ttlMs, 1, LONGEST_MS);
    this.#decider = decider;
    this.#parts = parts;
    this.#ttlMs = Math.round(ttlMs);
    this.#each = each;
    this.#onSettled = onSettled;
  }

  /** @internal */ static async of(
    decider: Decider,
    parts: readonly Part[],
    options: HoldOptions & ShareOptions,
    onSettled = () => {},
    each = 0,
  ): Promise<Hold> {
    const { ttlMs = 30_000, signal } = options;
    signal?.throwIfAborted();
    const hold = new Hold(decider, parts, ttlMs, onSettled, each);
    const call = { ...inTurn(options), each };
    try {
      await hold.#set(parts, call);
      return hold;
    } finally {
      const { allowed, shadowed } = hold.#decision;
      if (allowed && !shadowed) hold.#renewIn(ttlMs / 3);
      else hold.#settled = Promise.resolve(hold.#decision);
      // The server may have a hold that no caller knows of.
      if (hold.#settled && hold.#inDoubt) hold.#abandon(parts);
    }
  }

  /** The first decision, then that of the last renewal; of alternatives, `granted` stays the first. */
  get decision(): Decision {
    return this.#decision;
  }

  get allowed(): boolean {
    return this.#decision.allowed;
  }

  /**
   * Aborts, with a `HoldLost`, when the server no longer has the hold: the process was suspended or the server was away for
   * more than half of the ttl, every renewal for all of it failed with an error such as NOPERM, or a failover lost the
   * hold. Others may have the tokens, so the work should stop. The next renewal finds out, within a third of the ttl, or
   * when the server is back or accepts writes again.
   */
  get signal(): AbortSignal {
    return this.#losing.signal;
  }

  /** True once the server no longer has the hold. */
  get lost(): boolean {
    return this.signal.aborted;
  }

  /**
   * Makes the hold last its ttl from now, if it is still there: see `allowed`. A lost hold is not taken anew, and one
   * that is settled stays so: resolves to that outcome.
   */
  renew(): Promise<Decision> {
    if (this.#settled) return this.#settled;
    // The server forgets a hold of nothing at once.
    const held = this.#parts.filter(({ amount }) => !isNothing(amount));
    if (this.lost || held.length === 0) return Promise.resolve(this.#decision);
    this.#renewing ??= this.#set(held, { renews: this.#isKnown }).finally(() => (this.#renewing = undefined));
    return this.#renewing;
  }

  /**
   * Ends the hold: what was not used comes back, what was used beyond it is charged. What is not reported, neither here
   * nor in `used`, counts as used; the slots of a pool (rate 0) come back. If the hold is not there any more (it
   * expired, or the server was away when the work began), what was used is charged.
   *
   * Happens once: later calls get the first outcome. If the server does not answer, the hold is settled by its id when
   * it is back.
   */
  async settle(used: Used | undefined = this.used): Promise<Decision> {
    return (this.#settled ??= this.#settle(this.#usedOf(used)));
  }

  /** Settles with `used`; if that is wrong, settles as if nothing was reported, and throws. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.settle();
    } catch (error) {
      if (error instanceof BadArgument && !this.#settled) {
        this.used = undefined;
        await this.settle();
      }
      throw error;
    }
  }

  /** Takes the hold if the server has never had it. */
  async #set(parts: readonly Part[], call: Call): Promise<Decision> {
    const sentMs = performance.now();
    const onDoubt = () => {
      if (call.renews) return;
      this.#inDoubt ??= parts;
      this.#sentMs = sentMs;
    };
    const words = [String(this.#ttlMs), this.id];
    if (call.each) words.unshift("TB.HOLDANY", String(parts.length), String(call.each));
    else words.unshift("TB.MHOLD", String(parts.length));
    const decided = await this.#decider.decideAll(parts, words, { ...call, onDoubt });
    const { granted } = this.#decision; // no renewal says the number of the alternative
    const decision = (this.#decision = this.#each > 0 && granted > 0 ? decided.with({ granted }) : decided);
    if (call.each) this.#choose(parts, decision);
    this.#isLocal ||= decision.degraded;
    if (decision.degraded) return decision;
    this.#isKnown ||= decision.allowed && !decision.shadowed;
    if (decision.allowed) this.#lastsUntilMs = performance.now() + this.#ttlMs;
    else if (this.#isKnown) this.#lose();
    return decision;
  }

  #lose(): void {
    clearTimeout(this.#timer);
    this.#losing.abort(new HoldLost("the hold is gone, and others may have its tokens"));
  }

  /** Keeps the granted alternative alone. Another is ended that the server may hold without a reply. */
  #choose(parts: readonly Part[], { granted, degraded }: Decision): void {
    const own = chosen(parts, this.#each, granted);
    if (own.length === 0) return;
    const isOther = ({ name }: Part) => own.every((part) => part.name !== name || isNothing(part.amount));
    if (degraded && this.#inDoubt) this.#abandon(parts.filter(isOther));
    this.#parts = own;
  }

  /** Ends what the server may hold in these buckets, and no caller knows of. */
  #abandon(parts: readonly Part[], inMs = 0): void {
    const nothing = byName(parts).map((part) => ({ ...part, amount: 0 }));
    if (parts.length > 0) this.#settleLater(nothing, inMs);
  }

  async #settle(parts: readonly Part[]): Promise<Decision> {
    clearTimeout(this.#timer);
    if (parts.length === 0) return this.#decision; // an alternative that wants nothing
    // A renewal on its way could arrive after the settlement.
    await this.#renewing?.catch(() => {});
    const words = ["TB.MSETTLE", String(parts.length), this.id];
    let isAnswered = false;
    try {
      const settled = await this.#decider.decideAll(parts, words);
      isAnswered = !settled.degraded;
      if (!isAnswered) return settled;
      if (this.#inDoubt) this.#abandon(this.#inDoubt, SETTLED_AGAIN_AFTER_MS);
      if (this.#isLocal) this.#decider.server.local.run([...words, ...this.#decider.wordsOfAll(parts)]);
      // What was used without a hold.
      const missing = parts.filter(({ which }) => settled.each[which]?.allowed === false);
      const used = missing.filter(({ amount }) => Number(amount) > 0);
      const charges = used.map((part) => this.#decider.decide("TB.CHARGE", part, [part.amount]));
      const lost = (await Promise.all(charges)).some((charged) => charged.lost);
      return lost ? settled.with({ degraded: true, lost: true }) : settled;
    } catch (error) {
      isAnswered ||= !(error instanceof ServerAway || error instanceof ReplyLost);
      throw error;
    } finally {
      if (!isAnswered && (this.#inDoubt || this.#isKnown)) this.#settleLater(parts, SETTLED_AGAIN_AFTER_MS);
      this.#onSettled();
    }
  }

  /** Charges nothing if the hold is not there, so it may happen again and again. */
  #settleLater(parts: readonly Part[], inMs = 0): void {
    const words = ["TB.MSETTLE", String(parts.length), this.id, ...this.#decider.wordsOfAll(parts)];
    void this.#decider.server.unsettled.settle(words, this.#ttlMs, inMs, this.#sentMs, this.#onSettled);
  }

  /** Returns the parts with what was used of each. */
  #usedOf(used: Used | undefined): Part[] {
    const names = this.#parts.map(({ which }) => which);
    const isNamed = typeof used === "object";
    const strange = isNamed ? Object.keys(used).find((name) => !names.includes(name)) : undefined;
    if (isNamed && names[0] === "") throw new BadArgument("used: the hold has one limit, and takes one number");
    if (strange !== undefined) throw new BadArgument(`used: '${strange}' is none of the limits ${names.join(", ")}`);
    if (!isNamed && names.length > 1 && Number(used ?? 0) !== 0) {
      throw new BadArgument(`used: ${used} does not say of which limit`);
    }
    const parts = this.#parts.map((part) => {
      const reported = (isNamed ? used[part.which] : used) ?? (isPool(part.limit) ? 0 : part.amount);
      checkAmount("used", reported);
      if (isPool(part.limit) && Number(reported) > 0) {
        throw new BadArgument(`used: ${reported} of a pool, whose slots all come back`);
      }
      return { ...part, amount: reported };
    });
    // Of what fills up an alternative there is no hold.
    const counts = ({ amount }: Part, at: number) => !isNothing(amount) || !isNothing(this.#parts[at]!.amount);
    return this.#each > 0 ? parts.filter(counts) : parts;
  }

  #renewIn(ms: number): void {
    this.#timer = setTimeout(() => void this.#keep(), ms).unref();
  }

  /** Renews three times a ttl, and more often while the server is away: the hold has to outlast that. */
  async #keep(): Promise<void> {
    let isAway = false;
    try {
      isAway = (await this.renew()).degraded;
    } catch (error) {
      isAway = error instanceof ServerAway;
      if (!isAway) this.log("renewed", error); // an outage has a line of its own
      if (!isAway && this.#isKnown && performance.now() > this.#lastsUntilMs) this.#lose();
    }
    if (this.#settled || this.lost) return;
    const usualMs = this.#ttlMs / 3;
    const soonMs = Math.max(this.#ttlMs / 10, this.#decider.server.retryEveryMs);
    this.#renewIn(isAway ? Math.min(soonMs, usualMs) : usualMs);
  }

  /** @internal */ log(what: string, error: unknown): void {
    this.#decider.server.log(`tokenbucket: a hold was not ${what}: ${textOf(error)}`);
  }
}

/** What all limiters offer of holds. */
export abstract class Holder<Name, Amounts, Options> {
  /**
   * Holds the amount, or all amounts, or nothing. It lasts until it is settled; if the process dies, for `ttlMs`. See
   * `allowed`.
   */
  abstract hold(name: Name, amounts: Amounts, options?: Options): Promise<Hold>;

  /** Does `work` under a hold, and settles it with `hold.used`. Rejects with `Denied` if the hold is denied. */
  async withHold<T>(name: Name, amounts: Amounts, work: Work<T>, options?: Options): Promise<T> {
    return workUnder(await this.hold(name, amounts, options), work);
  }
}

export type Work<T> = (hold: Hold) => T | Promise<T>;

export async function workUnder<T>(hold: Hold, work: Work<T>): Promise<T> {
  if (!hold.allowed) throw new Denied(hold.decision);
  let result;
  try {
    result = await work(hold);
  } catch (error) {
    // The error of the work is the one to throw.
    await hold[Symbol.asyncDispose]().catch((failed: unknown) => hold.log("settled", failed));
    throw error;
  }
  await hold[Symbol.asyncDispose]();
  return result;
}
