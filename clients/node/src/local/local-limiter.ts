/** Limits in this process, with the decisions and the integers of the module: millionths of tokens, microseconds. */

import { BadArgument } from "../values/errors.js";
import { checkLimit, isDecimal, MOST_TOKENS, rateParts } from "../values/limit.js";
import { Holds, type Held } from "./holds.js";
import { calendar, continuous, floorDiv, type Refill } from "./refill.js";

/** How many buckets a process keeps while its server is away. */
const MOST_BUCKETS = 10_000;
const MOST_LIMITS = 1000;
const MICRO = 1_000_000n;
const NEVER = -1n;
/** Whatever is below is less than a millionth, and seldom nothing. */
const LEAST_TOKENS = 1e-7;
const MOST_DIGITS = 400;
/** No bucket takes longer to fill: 100 years. */
const CENTURY_US = 3_155_760_000n * MICRO;

interface Stored {
  level: bigint;
  at: bigint;
  /** Shared by the views of a bucket, and changed where one is kept. */
  holds: Holds;
  /** When it is full and without holds, by the limit of its last call; then it is as good as none. */
  fullAt: number;
}

export class LocalLimiter {
  readonly #buckets = new Map<string, Stored>();
  readonly #flows = new Map<string, Refill>();
  #now = 0n;

  /** `nowUs`: the time in Unix microseconds. `most`: how many buckets it keeps. */
  constructor(
    readonly nowUs: () => bigint,
    readonly most = Infinity,
  ) {}

  clear(): void {
    this.#buckets.clear();
  }

  readonly #commands: Record<string, (args: readonly string[]) => unknown> = {
    "TB.PEEK": (args) => this.#peek(args),
    "TB.TAKE": (args) => this.#reserve([...args.slice(0, 3), args[3] ?? "1", "0"]),
    "TB.RESERVE": (args) => this.#reserve(args),
    "TB.TAKEUPTO": (args) => this.#takeUpTo(args),
    "TB.CHARGE": (args) => this.#charge(args),
    "TB.GIVE": (args) => this.#give(args),
    "TB.MTAKE": (args) => this.#takeAll(args),
    "TB.MHOLD": (args) => this.#hold(args),
    "TB.MRENEW": (args) => this.#renew(args),
    "TB.MSETTLE": (args) => this.#settle(args),
    DEL: (args) => args.filter((key) => this.#buckets.delete(key)).length,
  };

  /** The reply to a command of the module; throws where the module replies with an error. */
  run([name = "", ...args]: readonly string[]): unknown {
    const decide = this.#commands[name];
    if (!decide) throw new BadArgument(`ERR unknown command '${name}'`);
    this.#now = this.nowUs();
    return decide(args);
  }

  #look([key = "", capacity = "", rate = ""]: readonly string[], { pool = false } = {}): View {
    const flow = this.#flowOf(capacity, rate);
    if (flow.isPool && !pool) throw new BadArgument("ERR rate 0 is a pool, which only commands of holds accept");
    const stored = this.#buckets.get(key);
    const isFull = stored !== undefined && stored.fullAt <= Number(this.#now);
    return new View(key, down(capacity), flow, this.#now, isFull ? undefined : stored);
  }

  /** Reads a limit once: that takes longer than to decide. */
  #flowOf(capacity: string, rate: string): Refill {
    const text = `${capacity} ${rate}`;
    const known = this.#flows.get(text);
    if (known) return known;
    checkLimit({ capacity, rate });
    const flow = flowOf(rate);
    if (this.#flows.size === MOST_LIMITS) this.#flows.clear();
    this.#flows.set(text, flow);
    return flow;
  }

  /** Moves tokens and stores the bucket, unless nothing is to be moved. */
  #move(view: View, amount: bigint): void {
    if (amount === 0n) return;
    view.move(amount);
    this.#keep(view);
  }

  #keep(view: View): void {
    if (view.isFull) this.#buckets.delete(view.key);
    else this.#buckets.set(view.key, view.stored);
    if (this.#buckets.size > this.most) this.#forgetSome();
  }

  /** Forgets a tenth: those that are full the soonest. Else names that rotate would make a spent bucket full. */
  #forgetSome(): void {
    const soonest = [...this.#buckets].toSorted(([, a], [, b]) => a.fullAt - b.fullAt);
    for (const [key] of soonest.slice(0, Math.ceil(this.most / 10))) this.#buckets.delete(key);
  }

  #peek(words: readonly string[]): number[] {
    const view = this.#look(words, { pool: true });
    const cost = up(words[3] ?? "1");
    const waitMs = view.waitMs(cost);
    if (waitMs !== 0n) return view.reply(0n, waitMs);
    if (cost > 0n) view.move(-cost);
    return view.reply(1n);
  }

  #reserve(words: readonly string[]): number[] {
    const view = this.#look(words);
    const cost = up(words[3]);
    const waitMs = view.waitMs(cost);
    if (waitMs < 0n || waitMs > BigInt(words[4]!)) return view.reply(0n, waitMs);
    this.#move(view, -cost);
    return view.reply(1n, waitMs);
  }

  #takeUpTo(words: readonly string[]): number[] {
    const view = this.#look(words);
    const most = Number(words[3]);
    if (!(most >= 1 && most <= MOST_TOKENS)) {
      throw new BadArgument("ERR max must be a whole number of tokens from 1 to 1e12");
    }
    const granted = min(floorDiv(view.level, MICRO), BigInt(most));
    if (granted < 1n) return view.reply(0n, view.waitMs(MICRO));
    this.#move(view, -granted * MICRO);
    return view.reply(granted);
  }

  #charge(words: readonly string[]): number[] {
    const view = this.#look(words);
    this.#move(view, -up(words[3]));
    return view.reply(1n, view.debtFreeMs());
  }

  #give(words: readonly string[]): number[] {
    const view = this.#look(words, { pool: true });
    this.#move(view, down(words[3]));
    return view.reply(1n);
  }

  #takeAll([count = "", ...words]: readonly string[]): unknown[] {
    const groups = groupsOf(count, words);
    const waits = groups.map((group) => this.#look(group).waitMs(up(group[3])));
    if (waits.every((waitMs) => waitMs === 0n)) {
      return joint(groups.map((group) => this.#reserve([...group, "0"])));
    }
    return joint(groups.map((group, at) => this.#look(group).reply(waits[at] === 0n ? 1n : 0n, waits[at])));
  }

  #hold([count = "", ttlMs = "", id = "", ...words]: readonly string[]): unknown[] {
    const groups = groupsOf(count, words);
    const waits = groups.map((group) => this.#look(group, { pool: true }).holdWaitMs(id, up(group[3])));
    const replies = groups.map((group, at) => {
      const view = this.#look(group, { pool: true });
      const amount = up(group[3]);
      if (!waits.every((waitMs) => waitMs === 0n)) return view.reply(waits[at] === 0n ? 1n : 0n, waits[at]);
      view.hold(id, amount, this.#now + BigInt(ttlMs) * 1000n);
      this.#keep(view);
      return view.reply(1n);
    });
    return joint(replies);
  }

  #renew([count = "", ttlMs = "", id = "", ...words]: readonly string[]): unknown[] {
    const groups = groupsOf(count, words, 3);
    const amounts = groups.map((group) => this.#look(group, { pool: true }).held(id)?.amount);
    const replies = groups.map((group, at) => {
      const view = this.#look(group, { pool: true });
      const amount = amounts[at];
      if (amount === undefined) return view.reply(0n, NEVER);
      if (!amounts.includes(undefined)) view.hold(id, amount, this.#now + BigInt(ttlMs) * 1000n);
      this.#keep(view);
      return view.reply(1n);
    });
    return joint(replies);
  }

  #settle([count = "", id = "", ...words]: readonly string[]): unknown[] {
    const replies = groupsOf(count, words).map((group) => {
      const view = this.#look(group, { pool: true });
      if (!view.held(id)) return view.reply(0n, NEVER);
      view.settle(id, up(group[3]));
      this.#keep(view);
      return view.reply(1n, view.debtFreeMs());
    });
    return joint(replies);
  }
}

/** Returns the local limiter of a server. Buckets outlive an outage, so that all outages together cost one bucket. */
export function localLimiter(): LocalLimiter {
  return new LocalLimiter(nowUs, MOST_BUCKETS);
}

/** Reads a clock that never steps back. */
function nowUs(): bigint {
  return BigInt(Math.round((performance.timeOrigin + performance.now()) * 1000));
}

/** A bucket as it is now under the limit of one call. */
class View {
  /** Before anything flowed in: where waits are counted from, until something is moved. */
  #from: { level: bigint; at: bigint };
  level: bigint;
  /** A refill seldom ends on a whole millionth: the rest is dated back. */
  #at: bigint;
  readonly #holds: Holds;
  /** What the holds have returned that have ended and are still there. */
  #returned: bigint;

  constructor(
    readonly key: string,
    readonly capacity: bigint,
    readonly flow: Refill,
    readonly now: bigint,
    stored: Stored | undefined,
  ) {
    const level = min(stored?.level ?? capacity, capacity);
    const at = stored?.at ?? now;
    this.#from = { level, at };
    this.#holds = stored?.holds ?? new Holds();
    this.#returned = this.#holds.sumUntil(now);
    const flowed = flow.between(at, now);
    this.level = level + flowed.amount + this.#returned;
    this.#at = flowed.at;
    this.#cap();
  }

  /** Returns what is to be kept. */
  get stored(): Stored {
    this.#dropEnded();
    const endsAt = Number(this.#holds.endsAt);
    const fullAt = Math.max(Number(this.#reachesAt(this.capacity) ?? Infinity), endsAt);
    return { level: this.level, at: this.#at, holds: this.#holds, fullAt };
  }

  get isFull(): boolean {
    return this.level >= this.capacity && this.#holds.endsAt <= this.now;
  }

  held(id: string): Held | undefined {
    const held = this.#holds.get(id);
    return held && held.endsAt > this.now ? held : undefined;
  }

  move(amount: bigint): void {
    this.level += amount;
    this.#cap();
    // From now on, waits are counted from what is there now.
    this.#from = { level: this.level - this.#returned, at: this.#at };
  }

  /** Sets what is held under `id`: takes what that needs more, gives back what it needs less. */
  hold(id: string, amount: bigint, endsAt: bigint): void {
    const held = this.#end(id);
    if (amount > 0n) this.#holds.set({ id, amount, endsAt });
    this.move(held - amount);
  }

  settle(id: string, used: bigint): void {
    this.move(this.#end(id) - used);
  }

  /** How long until a hold of `amount` could be had, counting on all holds but this one. */
  holdWaitMs(id: string, amount: bigint): bigint {
    const held = this.held(id);
    const lacking = amount - (held?.amount ?? 0n);
    if (lacking <= 0n || lacking <= this.level) return 0n;
    if (lacking > this.capacity) return NEVER;
    const waitMs = this.#msUntil(lacking, held);
    const comesTooLate = amount > this.capacity && held && this.now + waitMs * 1000n >= held.endsAt;
    return comesTooLate ? NEVER : waitMs;
  }

  /** Returns how long until `cost` may be taken if no other call acts; never if it is above the capacity. */
  waitMs(cost: bigint): bigint {
    return cost > this.capacity ? NEVER : this.#msUntil(cost);
  }

  debtFreeMs(): bigint {
    return this.level >= 0n ? 0n : this.#msUntil(0n);
  }

  reply(allowed: bigint, waitMs = 0n): number[] {
    return [allowed, floorDiv(this.level, MICRO), waitMs, this.#msUntil(this.capacity)].map(Number);
  }

  #dropEnded(): void {
    this.#holds.deleteUntil(this.now);
    this.#from.level += this.#returned;
    this.#returned = 0n;
  }

  /** Ends a hold, and returns its amount. */
  #end(id: string): bigint {
    this.#dropEnded();
    const held = this.#holds.get(id)?.amount ?? 0n;
    this.#holds.delete(id);
    return held;
  }

  #cap(): void {
    if (this.level < this.capacity) return;
    this.level = this.capacity;
    this.#at = this.now;
  }

  #msUntil(level: bigint, without?: Held): bigint {
    const reached = this.#reachesAt(level, without);
    if (reached === undefined) return NEVER;
    return reached <= this.now ? 0n : (reached - this.now + 999n) / 1000n;
  }

  /** Returns when there is so much, because it has flowed in or because holds have ended. */
  #reachesAt(level: bigint, without?: Held): bigint | undefined {
    const { at } = this.#from;
    const missing = level - this.#from.level;
    if (missing <= 0n) return at;
    const { held, before } = this.#holds.first(
      ({ endsAt }, sum) => sum + this.flow.between(at, endsAt).amount >= missing,
      without,
    );
    const flows = this.flow.reaches(at, missing - before);
    return held && (flows === undefined || held.endsAt < flows) ? held.endsAt : flows;
  }
}

/** Millionths per microsecond are tokens per second. */
function flowOf(rate: string): Refill {
  const { count, period, periodMs, isCalendar } = rateParts(rate);
  if (isCalendar) return calendar(down(count), rate);
  const [tokens, scale] = exactly(count);
  const [periods, periodScale] = exactly(period);
  const gain = tokens * periodScale * 1000n;
  const us = scale * periods * BigInt(periodMs);
  const isTooSlow = gain > 0n && CENTURY_US * gain < us * MICRO;
  if (isTooSlow) throw new BadArgument("ERR rate must be at least 1 token in 100 years");
  return continuous(gain, us);
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
  const value = Number(text);
  if (!isDecimal(text) || value > MOST_TOKENS) {
    throw new BadArgument(`ERR '${text}' must be a decimal number of tokens from 0 to 1e12`);
  }
  if (/^\d+$/.test(text)) return BigInt(text) * MICRO;
  if (value < LEAST_TOKENS) return /[1-9]/.test(text.split(/e/i)[0]!) ? more : 0n;
  const [numerator, denominator] = exactly(text);
  const millionths = numerator * MICRO;
  const meant = (2n * millionths + denominator) / (2n * denominator);
  const off = millionths - meant * denominator;
  if (meant > 0n && (off < 0n ? -off : off) * MICRO <= denominator) return meant;
  return (millionths + more * (denominator - 1n)) / denominator;
}

function groupsOf(count: string, words: readonly string[], size = 4): string[][] {
  return Array.from({ length: Number(count) }, (_, at) => words.slice(size * at, size * at + size));
}

/** The four numbers of the bucket that binds, and each bucket's own. */
function joint(each: number[][]): unknown[] {
  const column = (at: number) => each.map((reply) => reply[at] ?? 0);
  const worst = (waits: number[]) => (waits.includes(-1) ? -1 : Math.max(...waits));
  return [Math.min(...column(0)), Math.min(...column(1)), worst(column(2)), worst(column(3)), each];
}

function min(a: bigint, b: bigint): bigint {
  return a < b ? a : b;
}
