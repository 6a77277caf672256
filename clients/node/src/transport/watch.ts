/**
 * Judges whether a server is silent: the one clock for replies, connecting and waiting.
 *
 * A busy event loop cannot hear the server, so time is counted in ticks: rounds of the event loop in which this process
 * could have read a reply.
 */

import type { Connection } from "./driver.js";
import { clearInterval, setImmediate, setInterval } from "./timers.js";

/** The longest time for connecting, and the least silence after which a connection is closed. */
export const CONNECT_MS = 1000;
const TICKS_PER_TIMEOUT = 5;
const LONGEST_TICK_MS = 100;

/** Something that the server owes. */
export class Due {
  /** The tick in which it began. */
  since = 0;
  /** True once it came. */
  isOver = false;
  /** True once `onSilence` was called. */
  isTold = false;

  constructor(
    /** Where it comes from; undefined as long as there is no connection. */
    public connection: Connection | undefined,
    /** Called once if it does not come. `isAway`: nothing else came from the server either. */
    readonly onSilence: (isAway: boolean) => void,
    /** How many ticks it may take, whatever else comes; undefined of replies, which may take as long as others come. */
    readonly mostTicks?: number,
  ) {}
}

export class Watch {
  readonly tickMs: number;
  readonly #timeoutTicks: number;
  /** After so many ticks of silence a connection is closed, even if the server answers on others. */
  readonly #closeTicks: number;
  /** Those that are over leave it with the next tick. */
  #due: Due[] = [];
  #tick = 0;
  #heardTick = 0;
  #timer: NodeJS.Timeout | undefined;

  constructor(timeoutMs: number) {
    this.tickMs = Math.min(Math.max(timeoutMs / TICKS_PER_TIMEOUT, 1), LONGEST_TICK_MS);
    this.#timeoutTicks = this.ticks(timeoutMs);
    this.#closeTicks = this.ticks(Math.max(10 * timeoutMs, CONNECT_MS));
  }

  ticks(ms: number): number {
    return Math.ceil(ms / this.tickMs);
  }

  /** Returns how long a connection may be silent. */
  get longestSilenceMs(): number {
    return this.#closeTicks * this.tickMs;
  }

  add<D extends Due>(due: D): D {
    due.since = this.#tick;
    this.#due.push(due);
    this.#timer ??= setInterval(() => this.#onTick(), this.tickMs);
    return due;
  }

  heard(connection: Connection): void {
    this.#heardTick = connection.heardTick = this.#tick;
  }

  #onTick(): void {
    this.#tick++;
    // Timers run before the event loop reads what has arrived, and this runs after.
    setImmediate(() => this.#judge());
  }

  #judge(): void {
    this.#due = this.#due.filter(({ isOver }) => !isOver);
    if (this.#due.length === 0) {
      clearInterval(this.#timer);
      this.#timer = undefined;
      return;
    }
    for (const due of this.#due) this.#judgeOne(due);
  }

  #judgeOne(due: Due): void {
    if (due.isOver) return;
    const { since, connection, mostTicks } = due;
    const ticks = this.#tick - since;
    if (mostTicks !== undefined) {
      if (ticks > mostTicks) this.#tell(due, true);
      return;
    }
    const silentTicks = connection ? this.#tick - Math.max(since, this.#heardTick) : ticks;
    const isClosing = connection !== undefined && this.#tick - Math.max(since, connection.heardTick) > this.#closeTicks;
    if (silentTicks > this.#timeoutTicks) this.#tell(due, true);
    else if (isClosing) this.#tell(due, false);
    if (isClosing) connection.close();
  }

  #tell(due: Due, isAway: boolean): void {
    if (due.isTold) return;
    due.isTold = true;
    due.onSilence(isAway);
  }
}
