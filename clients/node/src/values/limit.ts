/** Limits: capacity and rate. */

import { BadArgument } from "./errors.js";

export interface Limit {
  /** The most tokens a bucket holds; 0 denies every call. */
  readonly capacity: Amount;
  /**
   * Tokens per second (`5`, `0.25`), a count per period (`"100/m"`, `"10/10s"`) or a count at each
   * boundary of the calendar (`"1000@d"`, `"1000@mo+14d+09:00"`). 0 is a pool: its tokens come back only
   * from holds.
   */
  readonly rate: Amount;
}

/** No bucket holds more. */
export const MOST_TOKENS = 1e12;

/** Returns the capacity nearest to so many tokens. */
export function capacityOf(tokens: number): number {
  return Math.min(Math.max(tokens, 0), MOST_TOKENS);
}

/** Tokens; sent to the server as JavaScript prints them. */
export type Amount = number | string;

const NUMBER = String.raw`\+?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?`;
const AMOUNT = new RegExp(`^${NUMBER}$`);
const RATE = new RegExp(
  `^(?<count>${NUMBER})(?:/(?<period>${NUMBER})?(?<unit>ms|s|m|h|d)` +
    String.raw`|@(?<multiple>\d+(?=ms|m(?!o)|[shd]))?(?<boundary>ms|3?mo|[smhdwy])` +
    String.raw`(?:(?<=w)\+(?<day>0?[0-6])d|(?<=mo)\+(?<date>[0-2]?\d|30)d)?(?<offset>[+-]\d\d:\d\d)?)?$`,
);
const UNIT_MS: Record<string, number> = {
  ms: 1,
  s: 1000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
  w: 7 * 86_400_000,
  mo: 30 * 86_400_000,
  "3mo": 90 * 86_400_000,
  y: 365 * 86_400_000,
};

/** Throws a BadArgument that says what is wrong with a limit; the server alone knows every bound. */
export function checkLimit(limit: Limit): void {
  if (typeof limit !== "object" || limit === null) {
    throw new BadArgument(`limit: ${String(limit)} is not like { capacity: 10, rate: "5/s" }`);
  }
  const { capacity, rate } = limit;
  checkAmount("capacity", capacity);
  const parts = RATE.exec(String(rate))?.groups;
  if (!parts || Number(parts.period ?? parts.multiple ?? 1) === 0) {
    throw new BadArgument(
      `rate: '${rate}' must be tokens per second (5, 0.25), count/period in ms, s, m, h or d (100/m, 10/15s), or count@period (1000@d)`,
    );
  }
}

export function isDecimal(text: string): boolean {
  return AMOUNT.test(text);
}

export function isAmount(amount: Amount): boolean {
  return (typeof amount === "number" ? amount >= 0 : isDecimal(amount)) && Number(amount) <= MOST_TOKENS;
}

/** Returns whether the server reads the amount as 0. */
export function isNothing(amount: Amount): boolean {
  return Number(amount) <= 1e-12;
}

export function checkAmount(name: string, amount: Amount): void {
  if (!isAmount(amount)) throw new BadArgument(`${name}: ${amount} is not a number from 0 to 1e12`);
}

/** Throws for a missing name: all calls without one would share a bucket. */
export function checkName(name: unknown, of = ""): void {
  if (typeof name === "string" || Number.isFinite(name)) return;
  throw new BadArgument(`name: ${String(name)}${of} is not a string`);
}

export function checkCount(name: string, count: number): void {
  if (!Number.isSafeInteger(count) || count < 0) {
    throw new BadArgument(`${name}: ${count} is not a whole number of at least 0`);
  }
}

/** Throws unless that is a number within the bounds: Node fires a timer at once that is too long. */
export function checkBetween(name: string, value: number, least: number, most: number): void {
  if (typeof value === "number" && value >= least && value <= most) return;
  throw new BadArgument(`${name}: ${String(value)} is not a number from ${least} to ${most}`);
}

/** Reads `"20 10/s"`: capacity and rate, as TB.TAKE takes them. */
export function parseLimit(text: string): Limit {
  const [capacity, rate, ...more] = text.trim().split(/\s+/);
  if (!capacity || !rate || more.length > 0) {
    throw new BadArgument(`'${text}' is not a capacity and a rate, like '20 10/s'`);
  }
  const limit = { capacity, rate };
  checkLimit(limit);
  return limit;
}

/** Returns the parts of a rate as they are written, and the length of its unit, of a calendar's on average. */
export function rateParts(rate: Amount) {
  const parts = RATE.exec(String(rate))?.groups ?? {};
  const { count = "0", period, unit, multiple, boundary, day, date, offset = "" } = parts;
  const name = unit ?? boundary ?? "s";
  return {
    count,
    period: period ?? multiple ?? "1",
    unit: name,
    periodMs: UNIT_MS[name]!,
    /** By how many days it begins later. */
    days: Number(day ?? date ?? 0),
    offset,
    isCalendar: boundary !== undefined,
  };
}

/** Returns whether nothing flows in: tokens come back only from holds. */
export function isPool({ rate }: Limit): boolean {
  return Number(rateParts(rate).count) === 0;
}

/** Returns how many milliseconds `tokens` take to flow in; for calendar rates an average, with months of 30 days. */
export function flowMs({ rate }: Limit, tokens: number): number {
  const { count, period, periodMs } = rateParts(rate);
  return Number(count) === 0 ? Infinity : (tokens * Number(period) * periodMs) / Number(count);
}
