/** Holds in doubt, and settlements that could not be sent: they are settled by their ids once the server answers. */

import type { Command } from "../transport/command.js";
import type { Server } from "../transport/server.js";
import { clearTimeout, setTimeout } from "../transport/timers.js";
import { Undecided } from "../values/errors.js";

/** A cancelled hold may still be in a socket, so it is settled once more. */
export const SETTLED_AGAIN_AFTER_MS = 500;
export const MOST_UNSETTLED = 1000;
const LEAST_RETRY_MS = 50;

interface Settlement {
  readonly command: Command;
  /** When it is due, and when the hold has ended by itself. */
  readonly atMs: number;
  readonly untilMs: number;
  readonly isLast: boolean;
}

/** A list with one timer. */
export class Unsettled {
  #list: Settlement[] = [];
  #timer: NodeJS.Timeout | undefined;

  constructor(readonly server: Server) {}

  /** Sends the settlement in so many milliseconds, and again until the server has replied or the hold has ended. */
  add(command: Command, ttlMs: number, inMs = 0): void {
    const now = performance.now();
    this.#add({ command, atMs: now + inMs, untilMs: now + ttlMs, isLast: false });
  }

  clear(): void {
    this.#list = [];
    clearTimeout(this.#timer);
  }

  #add(one: Settlement): void {
    if (this.#list.length >= MOST_UNSETTLED) this.#list.shift();
    this.#list.push(one);
    this.#schedule();
  }

  #schedule(): void {
    clearTimeout(this.#timer);
    if (this.#list.length === 0) return;
    const first = Math.min(...this.#list.map(({ atMs }) => atMs));
    this.#timer = setTimeout(() => this.#settleDue(), Math.max(first - performance.now(), 0)).unref();
  }

  #settleDue(): void {
    const now = performance.now();
    const due = this.#list.filter(({ atMs }) => atMs <= now);
    this.#list = this.#list.filter(({ atMs }) => atMs > now);
    this.#schedule();
    for (const one of due) void this.#settle(one);
  }

  async #settle(one: Settlement): Promise<void> {
    const isSettled = await this.server.ask(one.command).then(
      () => true,
      (error: unknown) => !(error instanceof Undecided),
    );
    const now = performance.now();
    if (!isSettled && now < one.untilMs) {
      this.#add({ ...one, atMs: now + Math.max(this.server.retryEveryMs, LEAST_RETRY_MS) });
    } else if (isSettled && !one.isLast) {
      // Its use was charged: what a late hold takes comes back whole.
      const command = withoutUse(one.command);
      this.#add({ command, atMs: now + SETTLED_AGAIN_AFTER_MS, untilMs: one.untilMs, isLast: true });
    }
  }
}

function withoutUse([name = "", count = "", id = "", ...groups]: Command): Command {
  return [name, count, id, ...groups.map((word, at) => (at % 4 === 3 ? "0" : word))];
}
