/**
 * A server in memory, whose clock moves only when you advance it: for your tests.
 *
 *     const server = new FakeServer();
 *     const limiter = new Limiter(server, { capacity: 1, rate: "1/s" });
 *     (await limiter.take("a")).allowed;    // true
 *     (await limiter.take("a")).allowed;    // false
 *     server.advance(1000);
 *     (await limiter.take("a")).allowed;    // true
 *
 * It decides as the module does. Its calendar begins at midnight UTC of January 1st, 2026, or at the time that you pass:
 * `new FakeServer(new Date("2026-12-31T23:59Z"))`.
 */

import { LocalLimiter } from "./local-limiter.js";
import type { Clock, InProcess } from "../transport/driver.js";

export class FakeServer implements InProcess {
  readonly clock: Clock = {
    now: () => Number(this.#now - this.#began) / 1000,
    // Waits end at once, because the time has passed.
    sleep: async (ms, signal) => {
      signal?.throwIfAborted();
      this.advance(ms);
    },
  };
  readonly #began: bigint;
  #now: bigint;
  readonly #buckets = new LocalLimiter(() => this.#now);

  constructor(now = new Date("2026-01-01T00:00:00Z")) {
    this.#began = this.#now = BigInt(now.getTime()) * 1000n;
  }

  /** Lets time pass, for buckets and for what limiters remember; kept to the microsecond. */
  advance(ms: number): void {
    this.#now += BigInt(Math.round(ms * 1000));
  }

  /** Makes every bucket full. */
  reset(): void {
    this.#buckets.clear();
  }

  async send(words: readonly string[]): Promise<unknown> {
    return this.#buckets.run(words);
  }
}
