/** A server in memory, for tests of your own. */

import { LocalLimiter } from "./local-limiter.js";
import type { Clock, InProcess } from "../transport/driver.js";

/**
 * An in-memory server whose clock moves only when you advance it. It takes the place of a client, and decides as the module
 * does. Its clock begins at midnight UTC on January 1st, 2026, or at `now`.
 *
 * ```ts
 * import { Limiter } from "tokenbucket-redis";
 * import { FakeServer } from "tokenbucket-redis/testing";
 *
 * const server = new FakeServer();
 * const limiter = new Limiter(server, { capacity: 1, rate: "1/s" });
 * console.log((await limiter.take("user:42")).allowed); // true
 * console.log((await limiter.take("user:42")).allowed); // false
 * server.advance(1000);
 * console.log((await limiter.take("user:42")).allowed); // true
 * ```
 */
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
  readonly #buckets = new LocalLimiter(() => this.#now, Infinity);

  constructor(now = new Date("2026-01-01T00:00:00Z")) {
    this.#began = this.#now = BigInt(now.getTime()) * 1000n;
  }

  /** Lets time pass, for buckets and for what limiters remember; kept to the microsecond. */
  advance(ms: number): void {
    this.#now += BigInt(Math.round(ms * 1000));
  }

  async send(words: readonly string[]): Promise<unknown> {
    return this.#buckets.run(words);
  }
}
