/** How tokens come to buckets in memory: continuously or by the calendar. In millionths of tokens and microseconds. */

import { rateParts, type Amount } from "../values/limit.js";

const MS_US = 1000n;
const MINUTE_MS = 60_000;
const DAY_MS = 86_400_000;
/** No bucket takes longer to fill: 100 years. */
export const CENTURY_US = 3_155_760_000_000n * MS_US;
/** The first day of 1970 was a Thursday. */
const FIRST_MONDAY_MS = 4 * DAY_MS;
const MONTHS: Record<string, number> = { mo: 1, "3mo": 3, y: 12 };
/** What the module counts in place of a longer wait. */
const LONGEST_US = 2n ** 62n;
/** Counted from the year 0. A Date knows months until September of 275760. */
const LATEST_MONTH = 275_760 * 12;

export interface Refill {
  /** True if nothing ever flows in. */
  readonly isPool: boolean;
  /** Returns what flows in between, and the time from which the next refill counts. */
  between(since: bigint, until: bigint): { amount: bigint; at: bigint };
  /** Returns when that amount has flowed in; 146,000 years later at the latest. */
  reaches(since: bigint, amount: bigint): bigint;
}

/** Refills `gain` millionths in `us` microseconds. A refill seldom ends on a whole one: the rest is dated back. */
export function continuous(gain: bigint, us: bigint): Refill {
  return {
    isPool: gain === 0n,
    between(since, until) {
      const flowed = (until - since) * gain;
      return { amount: flowed / us, at: gain === 0n ? until : until - (flowed % us) / gain };
    },
    reaches: (since, amount) => since + (gain === 0n ? LONGEST_US : min(divideUp(amount * us, gain), LONGEST_US)),
  };
}

/** Returns how long a calendar rate's period is in bounds, where a month is the 1,200th part of a century. */
export function usualUs(rate: Amount): bigint {
  const { unit, period, periodMs } = rateParts(rate);
  const months = MONTHS[unit];
  return months ? (BigInt(months) * CENTURY_US) / 1200n : BigInt(period) * BigInt(periodMs) * MS_US;
}

/** Refills `gain` millionths at each boundary. */
export function calendar(gain: bigint, rate: Amount): Refill {
  const { unit, period, periodMs, days, offset } = rateParts(rate);
  const months = MONTHS[unit];
  const lengthMs = unit === "w" ? periodMs : Number(period) * periodMs;
  const firstMs = unit === "w" ? FIRST_MONDAY_MS : 0;
  // A week that begins days later is one of a clock that is as many days behind.
  const aheadMs = offsetMs(offset) - (months ? 0 : days * DAY_MS);

  /** Returns the number of the period in which a moment lies, on that clock. */
  function number(at: bigint): number {
    const localMs = Number(floorDiv(at, MS_US)) + aheadMs;
    if (months === undefined) return Math.floor((localMs - firstMs) / lengthMs);
    const day = new Date(localMs);
    const month = day.getUTCFullYear() * 12 + day.getUTCMonth();
    return Math.floor((localMs < beginIn(month) ? month - 1 : month) / months);
  }

  /** Returns when a period begins in a month: on its last day if it has no such day. */
  function beginIn(month: number): number {
    const last = new Date(Date.UTC(Math.floor(month / 12), (month % 12) + 1, 0)).getUTCDate();
    return Date.UTC(Math.floor(month / 12), month % 12, Math.min(days + 1, last));
  }

  function beginOf(number: number): bigint {
    const month = Math.min(number * (months ?? 0), LATEST_MONTH);
    const localMs = months ? beginIn(month) : number * lengthMs + firstMs;
    return BigInt(localMs - aheadMs) * MS_US;
  }

  return {
    isPool: false,
    between: (since, until) => ({ amount: gain * BigInt(number(until) - number(since)), at: until }),
    reaches: (since, amount) => min(beginOf(number(since) + Number(divideUp(amount, gain))), since + LONGEST_US),
  };
}

/** `+09:00` or `-03:30`; "" is UTC. */
function offsetMs(offset: string): number {
  const [hours = 0, minutes = 0] = offset.slice(1).split(":").map(Number);
  return (offset.startsWith("-") ? -1 : 1) * (hours * 60 + minutes) * MINUTE_MS;
}

export function floorDiv(a: bigint, b: bigint): bigint {
  return a >= 0n ? a / b : -((-a + b - 1n) / b);
}

export function divideUp(a: bigint, b: bigint): bigint {
  return (a + b - 1n) / b;
}

export function min(a: bigint, b: bigint): bigint {
  return a < b ? a : b;
}
