/** Holds in doubt, and settlements that could not be sent: they are settled by their ids once the server answers. */

import type { Command } from "../transport/command.js";
import type { Server } from "../transport/server.js";
import { clearTimeout, setTimeout } from "../transport/time.js";
import { Undecided } from "../values/errors.js";

/** A cancelled hold may still be in a socket, so it is settled once more. */
export const SETTLED_AGAIN_AFTER_MS = 500;
export const MOST_UNSETTLED = 1000;
const LEAST_RETRY_MS = 50;

interface Settlement {
  readonly command: Command;
  /** When the hold has ended by itself. */
  readonly untilMs: number;
  readonly isLast: boolean;
}

/** Sends settlements again until the server has replied or their holds have ended. */
export class Unsettled {
  readonly #timers = new Set<NodeJS.Timeout>();

  constructor(readonly server: Server) {}

  /** Begins to send the settlement in so many milliseconds. */
  add(command: Command, ttlMs: number, inMs = 0): void {
    this.#settleIn(inMs, { command, untilMs: performance.now() + ttlMs, isLast: false });
  }

  clear(): void {
    for (const timer of this.#timers) clearTimeout(timer);
    this.#timers.clear();
  }

  #settleIn(ms: number, one: Settlement): void {
    const settle = () => {
      this.#timers.delete(timer);
      void this.#settle(one);
    };
    const timer = setTimeout(settle, ms).unref();
    this.#timers.add(timer);
    if (this.#timers.size <= MOST_UNSETTLED) return;
    const [oldest] = this.#timers;
    clearTimeout(oldest);
    this.#timers.delete(oldest!);
  }

  async #settle(one: Settlement): Promise<void> {
    const isSettled = await this.server.ask(one.command).then(
      () => true,
      (error: unknown) => !(error instanceof Undecided),
    );
    if (!isSettled && performance.now() < one.untilMs) {
      this.#settleIn(Math.max(this.server.retryEveryMs, LEAST_RETRY_MS), one);
    } else if (isSettled && !one.isLast) {
      // Its use was charged: what a late hold takes comes back whole.
      this.#settleIn(SETTLED_AGAIN_AFTER_MS, { ...one, command: withoutUse(one.command), isLast: true });
    }
  }
}

function withoutUse([name = "", count = "", id = "", ...groups]: Command): Command {
  return [name, count, id, ...groups.map((word, at) => (at % 4 === 3 ? "0" : word))];
}
