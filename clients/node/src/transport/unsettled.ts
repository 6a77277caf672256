/** Holds in doubt, and settlements that could not be sent: they are settled by their ids once the server answers. */

import type { Command } from "./command.js";
import { clearTimeout, setTimeout } from "./time.js";
import { MOST_UNSETTLED_HOLDS, SETTLED_AGAIN_AFTER_MS } from "../values/constants.js";
import { Undecided } from "../values/errors.js";

const LEAST_RETRY_MS = 50;

export class Unsettled {
  /** Those under way, the oldest first, and their timers. What is taken out is not sent again. */
  readonly #open = new Map<Command, NodeJS.Timeout | undefined>();

  constructor(
    readonly ask: (command: Command) => Promise<unknown>,
    readonly retryEveryMs: number,
  ) {}

  /**
   * Sends the settlement in so many milliseconds, and again until the server has replied or the hold has ended. Calls
   * `onSettled` after each reply. `sentMs`: when a call was sent that may take the hold late.
   */
  async settle(
    command: Command,
    ttlMs: number,
    inMs: number,
    sentMs = performance.now(),
    onSettled: () => void,
  ): Promise<void> {
    const untilMs = performance.now() + ttlMs;
    const [oldest = command] = this.#open.set(command, undefined).keys();
    if (this.#open.size > MOST_UNSETTLED_HOLDS) this.#forget(oldest);
    let pauseMs = inMs;
    // A cancelled hold may still be in a socket, so it is settled once more; and again after as long as it has been there,
    // since the system's pauses between two tries double. Its use was charged: that comes back whole.
    for (const words of [command, withoutUse(command), withoutUse(command)]) {
      for (let isSettled = false; !isSettled; ) {
        if (!this.#open.has(command)) return;
        const leftMs = Math.max(untilMs - performance.now(), 0);
        await new Promise((passed) => {
          this.#open.set(command, setTimeout(passed, Math.min(pauseMs, leftMs)).unref());
        });
        const isRefused = (error: unknown) => !(error instanceof Undecided);
        isSettled = await this.ask(words).then(() => true, isRefused);
        if (isSettled) onSettled();
        pauseMs = Math.max(this.retryEveryMs, LEAST_RETRY_MS);
        if (performance.now() >= untilMs) this.#open.delete(command);
      }
      pauseMs = words === command ? SETTLED_AGAIN_AFTER_MS : performance.now() - sentMs;
    }
    this.#open.delete(command);
  }

  clear(): void {
    for (const command of this.#open.keys()) this.#forget(command);
  }

  #forget(command: Command): void {
    clearTimeout(this.#open.get(command));
    this.#open.delete(command);
  }
}

function withoutUse([name = "", count = "", id = "", ...groups]: Command): Command {
  return [name, count, id, ...groups.map((word, at) => (at % 4 === 3 ? "0" : word))];
}
