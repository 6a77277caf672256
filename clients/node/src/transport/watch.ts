/**
 * Judges whether a server is silent: the one clock for replies, connecting and waiting.
 *
 * A busy event loop cannot hear the server, so time is counted in ticks: rounds of the event loop in which this process
 * could have read a reply.
 */

import type { Call } from "./call.js";
import type { Connection } from "./driver.js";
import { clearInterval, setImmediate, setInterval } from "./timers.js";

/** The longest time for connecting, and the least silence after which a connection is closed. */
export const CONNECT_MS = 1000;
const TICKS_PER_TIMEOUT = 5;
const LONGEST_TICK_MS = 100;

export class Watch {
  readonly tickMs: number;
  readonly #timeoutTicks: number;
  /** After so many ticks of silence a connection is closed, even if the server answers on others. */
  readonly #closeTicks: number;
  /** In no order. What has come leaves it at once, or the garbage collector would copy it. */
  readonly #due: Call[] = [];
  #tick = 0;
  #tickAtMs = 0;
  #heardTick = 0;
  /** When something last came, or up to a tick before that: to ask for the time would be a fifth of a call's cost. */
  heardAtMs = 0;
  #timer: NodeJS.Timeout | undefined;

  constructor(timeoutMs: number) {
    this.tickMs = Math.min(Math.max(timeoutMs / TICKS_PER_TIMEOUT, 1), LONGEST_TICK_MS);
    this.#timeoutTicks = this.#ticks(timeoutMs);
    this.#closeTicks = this.#ticks(Math.max(10 * timeoutMs, CONNECT_MS));
  }

  /** Returns how long a connection may be silent. */
  get longestSilenceMs(): number {
    return this.#closeTicks * this.tickMs;
  }

  /** Expects a reply within the timeout, or so much later. */
  add(due: Call, laterMs = 0): void {
    due.sinceTick = this.#tick + this.#ticks(laterMs);
    due.isTold = false;
    if (due.place < 0) due.place = this.#due.push(due) - 1;
    if (this.#timer) return;
    this.#tickAtMs = performance.now();
    this.#timer = setInterval(() => this.#onTick(), this.tickMs);
  }

  /** Takes out what has come. */
  remove(due: Call): void {
    if (due.place < 0) return;
    const last = this.#due.pop()!;
    last.place = due.place;
    if (last !== due) this.#due[due.place] = last;
    due.place = -1;
  }

  heard(connection: Connection): void {
    this.#heardTick = connection.heardTick = this.#tick;
    this.heardAtMs = this.#tickAtMs;
  }

  #ticks(ms: number): number {
    return Math.ceil(ms / this.tickMs);
  }

  #onTick(): void {
    this.#tick++;
    this.#tickAtMs = performance.now();
    // Timers run before the event loop reads what has arrived, and this runs after.
    setImmediate(() => this.#judge());
  }

  #judge(): void {
    if (this.#due.length === 0) {
      clearInterval(this.#timer);
      this.#timer = undefined;
    }
    for (const due of this.#due.slice()) {
      if (due.place < 0) continue;
      const { sinceTick, connection } = due;
      const heardTick = connection ? this.#heardTick : 0; // others bring no connection
      const isAway = this.#tick - Math.max(sinceTick, heardTick) > this.#timeoutTicks;
      const isClosing =
        connection !== undefined && this.#tick - Math.max(sinceTick, connection.heardTick) > this.#closeTicks;
      if ((isAway || isClosing) && !due.isTold) {
        due.isTold = true;
        due.sender!.silent(due, isAway);
      }
      if (isClosing) connection.close();
    }
  }
}
