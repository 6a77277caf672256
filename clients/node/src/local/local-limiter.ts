/** Limits in this process, with the decisions and the integers of the module: millionths of tokens, microseconds. */

import { BadArgument } from "../values/errors.js";
import { checkLimit, isDecimal, isNothing, MOST_TOKENS, rateParts } from "../values/limit.js";
import { Holds } from "./holds.js";
import { calendar, CENTURY_US, continuous, divideUp, floorDiv, min, usualUs, type Refill } from "./refill.js";

/** How many buckets a process keeps while its server is away. */
const MOST_BUCKETS = 10_000;
const MOST_RATES = 1000;
const MICRO = 1_000_000n;
const DEEPEST = -BigInt(MOST_TOKENS) * MICRO;
const NEVER = -1n;
const MOST_DIGITS = 400;
/** Of one call. */
const MOST_KEYS = 1024;
/** The latest time of a bucket: about the year 38,500. */
const MAX_TIME_US = 2n ** 60n;

type Words = readonly string[];

interface Stored {
  level: bigint;
  readonly at: bigint;
  /** Shared by the views of a bucket, and changed where one is kept. */
  readonly holds: Holds;
  /** When a server forgets it: once it is full and without holds under each limit that it had. */
  readonly expiresAtMs: number;
}

/** Buckets outlive an outage, so that all outages together cost one bucket. */
export class LocalLimiter {
  readonly #buckets = new Map<string, Stored>();
  readonly #flows = new Map<string, { flow: Refill; most: bigint }>();
  #now = 0n;

  /** `nowUs`: the time in Unix microseconds. `most`: how many buckets it keeps. */
  constructor(
    readonly nowUs = machinesNowUs,
    readonly most = MOST_BUCKETS,
  ) {}

  readonly #commands: Record<string, (words: Words) => unknown> = {
    "TB.PEEK": (words) => {
      const view = this.#look(words, { pool: true });
      return view.reply(...view.book(up(words[3] ?? "1"), "0"));
    },
    "TB.TAKE": ([key, capacity, rate, cost = "1"]) =>
      this.#commands["TB.RESERVE"]!([key!, capacity!, rate!, cost, "0"]),
    "TB.RESERVE": (words) => {
      const view = this.#look(words);
      return this.#kept(view, ...view.book(up(words[3]), words[4]!));
    },
    "TB.TAKEUPTO": (words) => {
      const view = this.#look(words);
      const most = Number(words[3]);
      if (!(most >= 1 && most <= MOST_TOKENS)) {
        throw new BadArgument("ERR max must be a whole number of tokens from 1 to 1e12");
      }
      const granted = min(floorDiv(view.level, MICRO), BigInt(most));
      if (granted < 1n) return view.reply(0n, view.waitMs(MICRO));
      view.take(granted * MICRO);
      return this.#kept(view, granted);
    },
    "TB.CHARGE": (words) => {
      const view = this.#look(words);
      view.take(up(words[3]));
      if (view.level < DEEPEST) throw new BadArgument("ERR the bucket would be more than 1e12 tokens in debt");
      return this.#kept(view, 1n, view.waitMs(0n));
    },
    "TB.GIVE": (words) => {
      const view = this.#look(words);
      view.give(down(words[3]));
      return this.#kept(view, 1n);
    },
    "TB.MTAKE": ([count, ...words]) => {
      const parts = groupsOf(count, words).map((group) => ({ view: this.#look(group), cost: up(group[3]) }));
      return this.#together(
        parts,
        ({ view, cost }) => view.waitMs(cost),
        ({ view, cost }) => view.take(cost),
      );
    },
    "TB.MHOLD": ([count, ttlMs, id = "", ...words]) => {
      const groups = groupsOf(count, words);
      return this.#together(
        groups.map((group) => ({ view: this.#look(group, { pool: true }), amount: up(group[3]) })),
        ({ view, amount }) => view.holdWaitMs(id, amount),
        ({ view, amount }) => view.hold(id, amount, ttlMs),
      );
    },
    "TB.TAKEANY": ([, each, ...words]) => this.#oneOf("TB.MTAKE", each, [], words),
    "TB.HOLDANY": ([, each, ttlMs = "", id = "", ...words]) => this.#oneOf("TB.MHOLD", each, [ttlMs, id], words),
    "TB.MRENEW": ([count, ttlMs, id = "", ...words]) =>
      this.#together(
        groupsOf(count, words, 3).map((group) => ({ view: this.#look(group, { pool: true }) })),
        ({ view }) => (view.held(id) ? 0n : NEVER),
        ({ view }) => view.hold(id, view.held(id)!, ttlMs),
      ),
    "TB.MSETTLE": ([count, id = "", ...words]) => {
      const replies = groupsOf(count, words).map((group) => {
        const view = this.#look(group, { pool: true });
        if (!view.held(id)) return view.reply(0n, NEVER);
        view.settle(id, up(group[3]));
        return this.#kept(view, 1n, view.waitMs(0n));
      });
      return joint(replies);
    },
    DEL: (keys) => keys.filter((key) => this.#stored(key) && this.#buckets.delete(key)).length,
  };

  /** The reply to a command of the module; throws where the module replies with an error. */
  run([name = "", ...args]: Words): unknown {
    const decide = this.#commands[name];
    if (!decide) throw new BadArgument(`ERR unknown command '${name}'`);
    this.#now = this.nowUs();
    return decide(args);
  }

  #look([key = "", capacity = "", rate = ""]: Words, { pool = false } = {}): View {
    const { flow, most } = this.#flowOf(rate);
    if (flow.isPool && !pool) throw new BadArgument("ERR rate 0 is a pool, which only commands of holds accept");
    const full = down(capacity);
    if (!flow.isPool && full > most) {
      throw new BadArgument("ERR refilling capacity from empty at this rate would take more than 100 years");
    }
    return new View(key, full, flow, this.#now, this.#stored(key));
  }

  /** Returns what is stored, with what the holds have returned that have ended. */
  #stored(key: string): Stored | undefined {
    const stored = this.#buckets.get(key);
    if (!stored || stored.expiresAtMs < Math.floor(Number(this.#now) / 1000)) return undefined;
    stored.level += stored.holds.endUntil(this.#now);
    return stored;
  }

  /** Reads a rate once: that takes longer than to decide. `most` flows in within 100 years. */
  #flowOf(rate: string): { flow: Refill; most: bigint } {
    const known = this.#flows.get(rate);
    if (known) return known;
    checkLimit({ capacity: 0, rate });
    if (this.#flows.size === MOST_RATES) this.#flows.clear();
    const one = flowOf(rate);
    this.#flows.set(rate, one);
    return one;
  }

  /** Stores the bucket if it has changed, and returns the reply. */
  #kept(view: View, allowed: bigint, waitMs?: bigint): number[] {
    if (view.isChanged) {
      const stored = view.toStore();
      if (stored) this.#buckets.set(view.key, stored);
      else this.#buckets.delete(view.key);
      if (this.#buckets.size > this.most) this.#forgetSome();
    }
    return view.reply(allowed, waitMs);
  }

  /** Forgets a tenth: those that are full the soonest. Else names that rotate would make a spent bucket full. */
  #forgetSome(): void {
    const soonest = [...this.#buckets].toSorted(([, a], [, b]) => a.expiresAtMs - b.expiresAtMs);
    for (const [key] of soonest.slice(0, Math.ceil(this.most / 10))) this.#buckets.delete(key);
  }

  /**
   * Takes the first alternative that allows it; or asks that alone which has the hold already. Of several that have it, the
   * first that wants just what is held, or else the first.
   */
  #oneOf(name: string, each = "", before: Words, words: Words): unknown {
    const size = 4 * Number(each);
    checkCount(words.length / 4);
    const numbered = groupsOf(String(words.length / size), words, size).map((words, at) => ({ words, number: at + 1 }));
    // Looked at one and all, since a mistake in the last is one, too.
    const likeness = numbered.map(({ words }) => this.#likeness(before[1], groupsOf(each, words)));
    const most = Math.max(...likeness);
    const asked = most > 0 ? [numbered[likeness.indexOf(most)]!] : numbered;
    const denials: number[][] = [];
    for (const { words, number } of asked) {
      const [allowed, ...rest] = this.#commands[name]!([each, ...before, ...words]) as number[];
      if (allowed) return [number, ...rest];
      denials.push([0, ...rest]);
    }
    const waitOf = ([, , waitMs = 0]: number[]) => (waitMs < 0 ? Infinity : waitMs);
    return denials.reduce((one, other) => (waitOf(other) < waitOf(one) ? other : one));
  }

  /**
   * Returns 2 if just so much is held of each bucket, 1 if the hold is in each of which more than 0 is wanted (in one of all,
   * if none is), and else 0.
   */
  #likeness(id: string | undefined, groups: readonly Words[]): number {
    const parts = groups.map((group) => {
      const view = this.#look(group, { pool: id !== undefined });
      return { wanted: up(group[3]), held: id === undefined ? 0n : (view.held(id) ?? 0n) };
    });
    const wanting = parts.filter(({ wanted }) => wanted > 0n);
    const isThere = wanting.length > 0 ? wanting.every(({ held }) => held > 0n) : parts.some(({ held }) => held > 0n);
    if (!isThere) return 0;
    return parts.every(({ wanted, held }) => wanted === held) ? 2 : 1;
  }

  /** Changes all buckets, or none if one of them has to wait. */
  #together<P extends { view: View }>(parts: P[], waitOf: (part: P) => bigint, change: (part: P) => void): unknown[] {
    const waits = parts.map(waitOf);
    if (waits.every((waitMs) => waitMs === 0n)) parts.forEach(change);
    return joint(parts.map(({ view }, at) => this.#kept(view, waits[at] === 0n ? 1n : 0n, waits[at])));
  }
}

/** Reads a clock that never steps back. */
function machinesNowUs(): bigint {
  return BigInt(Math.round((performance.timeOrigin + performance.now()) * 1000));
}

/** A bucket as it is now under the limit of one call. */
class View {
  isChanged = false;
  /** Before anything flowed in: where waits are counted from, until something is moved. */
  #from: { level: bigint; at: bigint };
  /** A refill seldom ends on a whole millionth: the rest is dated back. */
  #now: { level: bigint; at: bigint };

  constructor(
    readonly key: string,
    readonly capacity: bigint,
    readonly flow: Refill,
    readonly now: bigint,
    readonly stored: Stored = { level: capacity, at: now, holds: new Holds(), expiresAtMs: 0 },
  ) {
    if (flow.isPool) {
      this.#from = this.#now = { level: capacity - stored.holds.total, at: now };
      return;
    }
    this.#from = { level: min(stored.level, capacity), at: stored.at };
    const flowed = flow.between(this.#from.at, now);
    this.#now = this.#atMostFull(this.#from.level + flowed.amount, flowed.at);
  }

  get level(): bigint {
    return this.#now.level;
  }

  /** Returns what is to be kept: nothing of a full bucket without holds. */
  toStore(): Stored | undefined {
    const { level, at } = this.#now;
    const { holds } = this.stored;
    const { endsAt } = holds;
    if (level === this.capacity && endsAt === 0n) return undefined;
    const fullAtUs = Math.max(Number(this.#reachesAt(this.capacity)), Number(endsAt));
    const earliestMs = Math.ceil(fullAtUs / 1000);
    const latestMs = earliestMs + Math.floor((fullAtUs - Number(this.now)) / 4000) + 1000;
    const expiresAtMs = this.stored.expiresAtMs >= earliestMs ? this.stored.expiresAtMs : latestMs;
    return { level, at, holds, expiresAtMs };
  }

  take(amount: bigint): void {
    if (amount > 0n) this.#move(-amount);
  }

  /** Takes `cost` if that takes no longer than `mostMs`. */
  book(cost: bigint, mostMs: string): [allowed: bigint, waitMs: bigint] {
    const waitMs = this.waitMs(cost);
    if (waitMs < 0n || waitMs > BigInt(mostMs)) return [0n, waitMs];
    this.take(cost);
    return [1n, waitMs];
  }

  give(amount: bigint): void {
    if (amount > 0n && this.level < this.capacity) this.#move(amount);
  }

  held(id: string): bigint | undefined {
    return this.stored.holds.get(id)?.amount;
  }

  /** Sets what is held under `id`: takes what that needs more, gives back what it needs less. */
  hold(id: string, amount: bigint, ttlMs = ""): void {
    const held = this.held(id);
    if (held === undefined && amount === 0n) return;
    this.stored.holds.delete(id);
    if (amount > 0n) this.stored.holds.set({ id, amount, endsAt: this.now + BigInt(ttlMs) * 1000n });
    this.#move((held ?? 0n) - amount);
  }

  settle(id: string, used: bigint): void {
    const held = this.held(id) ?? 0n;
    this.stored.holds.delete(id);
    this.#move(held - used);
  }

  /** Returns how long until a hold of `amount` could be had, counting on all holds but this one. */
  holdWaitMs(id: string, amount: bigint): bigint {
    const held = this.stored.holds.get(id);
    const lacking = amount - (held?.amount ?? 0n);
    if (lacking <= 0n) return 0n;
    this.stored.holds.delete(id);
    const waitMs = this.waitMs(lacking);
    if (!held) return waitMs;
    this.stored.holds.set(held);
    return amount > this.capacity && this.now + waitMs * 1000n >= held.endsAt ? NEVER : waitMs;
  }

  /** Returns how long until `cost` may be taken if no other call acts; never if it is above the capacity. */
  waitMs(cost: bigint): bigint {
    return cost > this.capacity ? NEVER : this.#msUntil(cost);
  }

  reply(allowed: bigint, waitMs = 0n): number[] {
    return [allowed, floorDiv(this.level, MICRO), waitMs, this.#msUntil(this.capacity)].map(Number);
  }

  #move(amount: bigint): void {
    this.isChanged = true;
    this.#from = this.#now = this.#atMostFull(this.level + amount, this.#now.at);
  }

  #atMostFull(level: bigint, at: bigint): { level: bigint; at: bigint } {
    return level < this.capacity ? { level, at } : { level: this.capacity, at: this.now };
  }

  #msUntil(level: bigint): bigint {
    const reached = this.#reachesAt(level);
    if (reached > MAX_TIME_US && this.flow.isPool) return NEVER;
    return reached <= this.now ? 0n : divideUp(reached - this.now, 1000n);
  }

  /** Returns when there is so much, because it has flowed in or because holds have ended. */
  #reachesAt(level: bigint): bigint {
    const { at } = this.#from;
    const missing = level - this.#from.level;
    if (missing <= 0n) return at;
    const { held, before } = this.stored.holds.first(
      ({ endsAt }, sum) => sum + this.flow.between(at, endsAt).amount >= missing,
    );
    const flows = this.flow.reaches(at, missing - before);
    return held && held.endsAt < flows ? held.endsAt : flows;
  }
}

/** Millionths per microsecond are tokens per second. `most` flows in within 100 years. */
function flowOf(rate: string): { flow: Refill; most: bigint } {
  const { count, period, periodMs, isCalendar } = rateParts(rate);
  const [tokens, scale] = exactly(count);
  const [periods, periodScale] = exactly(period);
  const gain = isCalendar ? down(count) : tokens * periodScale * 1000n;
  const us = isCalendar ? usualUs(rate) : scale * periods * BigInt(periodMs);
  const flow = isCalendar ? calendar(gain, rate) : continuous(gain, us);
  if (tokens === 0n && !/[/@]/.test(rate)) return { flow, most: 0n };
  if (CENTURY_US * gain < us * MICRO || gain > us * BigInt(MOST_TOKENS) || (isCalendar && us > CENTURY_US)) {
    throw new BadArgument("ERR rate must be at least 1 token in 100 years and at most 1e12 a second");
  }
  return { flow, most: isCalendar ? (CENTURY_US / us) * gain : (CENTURY_US * gain) / us };
}

/** A decimal as a ratio of whole numbers. */
function exactly(text: string): [numerator: bigint, denominator: bigint] {
  const [digits = "", exponent = "0"] = text.toLowerCase().replace(/^\+/, "").split("e");
  const [whole = "", fraction = ""] = digits.split(".");
  const power = Number(exponent) - fraction.length;
  // Powers beyond would take seconds to compute.
  if (Math.abs(power) > MOST_DIGITS) throw new BadArgument(`ERR '${text}' has more than ${MOST_DIGITS} digits`);
  const numerator = BigInt(whole + fraction || "0");
  return power >= 0 ? [numerator * 10n ** BigInt(power), 1n] : [numerator, 10n ** BigInt(-power)];
}

/** Capacities and what is given are rounded down to the millionth. */
function down(text = ""): bigint {
  return micros(text, 0n);
}

/** Costs are rounded up. */
function up(text = ""): bigint {
  return micros(text, 1n);
}

/** Returns the millionths of an amount: those that it is meant to be, if a float alone makes the difference. */
function micros(text: string, more: bigint): bigint {
  if (!isDecimal(text) || Number(text) > MOST_TOKENS) {
    throw new BadArgument(`ERR '${text}' must be a decimal number of tokens from 0 to 1e12`);
  }
  if (/^\d+$/.test(text)) return BigInt(text) * MICRO;
  if (isNothing(text)) return 0n;
  const [numerator, denominator] = exactly(text);
  const millionths = numerator * MICRO;
  const meant = (2n * millionths + denominator) / (2n * denominator);
  const off = millionths - meant * denominator;
  if ((off < 0n ? -off : off) * MICRO <= denominator) return meant;
  return (millionths + more * (denominator - 1n)) / denominator;
}

function checkCount(buckets: number): void {
  if (buckets > MOST_KEYS) throw new BadArgument(`ERR numkeys must be a whole number from 1 to ${MOST_KEYS}`);
}

function groupsOf(count: string | undefined, words: readonly string[], size = 4): string[][] {
  checkCount(Number(count));
  return Array.from({ length: Number(count) }, (_, at) => words.slice(size * at, size * at + size));
}

/** The four numbers of the bucket that binds, and each bucket's own. */
function joint(each: number[][]): unknown[] {
  const column = (at: number) => each.map((reply) => reply[at] ?? 0);
  const worst = (waits: number[]) => (waits.includes(-1) ? -1 : Math.max(...waits));
  return [Math.min(...column(0)), Math.min(...column(1)), worst(column(2)), worst(column(3)), each];
}
