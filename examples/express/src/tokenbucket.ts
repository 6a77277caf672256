/**
 * TB.TAKE as a typed ioredis command.
 *
 *     const redis = connect("redis://127.0.0.1:6379");
 *     const decision = await redis["tb.take"]("user:42", { capacity: 10, rate: "5/s" });
 */

import { Command, Redis, type Result } from "ioredis";

export interface Limit {
  /** The most tokens a bucket holds; 0 lets nobody through. */
  readonly capacity: number;
  /** Tokens per second (`5`, `0.25`) or a count per period (`"100/m"`, `"10/10s"`). */
  readonly rate: number | string;
}

export interface Decision {
  readonly allowed: boolean;
  /** Whole tokens left. */
  readonly remaining: number;
  /** 0 when allowed; -1 when waiting does not help, because the cost is above the capacity. */
  readonly retryAfterMs: number;
  /** Until the bucket is full. */
  readonly resetAfterMs: number;
}

declare module "ioredis" {
  interface RedisCommander<Context> {
    /** Takes `cost` tokens (default 1) of the bucket at `key` if it holds them, else nothing. */
    "tb.take"(key: string, limit: Limit, cost?: number): Result<Decision, Context>;
  }
}

Command.setArgumentTransformer("tb.take", (args) => {
  const [key, limit, cost = 1] = args as [string, Limit, number?];
  return [key, limit.capacity, limit.rate, cost];
});

Command.setReplyTransformer("tb.take", (reply: [number, number, number, number]): Decision => {
  const [allowed, remaining, retryAfterMs, resetAfterMs] = reply;
  return { allowed: allowed === 1, remaining, retryAfterMs, resetAfterMs };
});

/** A client that suits a limiter: it answers now or fails now, and reconnects on its own. */
export function connect(url: string, { timeoutMs = 100 } = {}): Redis {
  const redis = new Redis(url, {
    // Requests that wait for Redis to come back would pile up, and then all be counted at once.
    enableOfflineQueue: false,
    // A take that got no reply may have happened: do not send it again.
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
    commandTimeout: timeoutMs,
    // For a server that accepts and says nothing: leave it after a second, try again.
    connectTimeout: 1000,
    socketTimeout: 1000,
    // Without end and without growing, to be limiting again within a second of its return.
    retryStrategy: () => 200,
  });
  redis.addBuiltinCommand("tb.take");
  return redis;
}

const NUMBER = String.raw`\+?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?`;
const RATE = new RegExp(`^(${NUMBER})(?:/(${NUMBER})?(?:ms|s|m|h|d))?$`);
const MOST_TOKENS = 1e12;

/** Throws a RangeError that says what is wrong with a limit; the server has the last word. */
export function checkLimit({ capacity, rate }: Limit): void {
  if (!(capacity >= 0 && capacity <= MOST_TOKENS)) {
    throw new RangeError(`capacity: ${capacity} is not a number from 0 to ${MOST_TOKENS}`);
  }
  const [, count, period] = RATE.exec(String(rate)) ?? [];
  if (!(Number(count) > 0) || Number(period ?? 1) === 0) {
    throw new RangeError(`rate: '${rate}' is neither tokens per second above 0 nor like '100/m'`);
  }
}
