/** The state of one server: whether it is away, and whether it has the module. */

import { textOf } from "../values/errors.js";

/** Gets a line when the server goes, and when it returns. */
export type Log = (line: string) => void;

const MS_BETWEEN_REFUSALS_LOGGED = 60_000;
const MS_BETWEEN_LOOKS_FOR_THE_MODULE = 60_000;

export class Circuit {
  isAway = false;
  #nextProbe = 0;
  #nextRefusalLogged = 0;
  /** When to look for the module again; undefined if it is there, as far as is known. */
  #scriptUntil: number | undefined;
  /** Why the server last counted as away. */
  lastError: unknown;

  constructor(
    readonly who: string,
    readonly retryEveryMs: number,
    readonly log: Log,
  ) {}

  /** Returns whether to check if the server is back; true once in each interval. */
  isTimeToProbe(): boolean {
    const now = performance.now();
    if (now < this.#nextProbe) return false;
    this.#nextProbe = now + this.retryEveryMs;
    return true;
  }

  answered(): void {
    if (!this.isAway) return;
    this.isAway = false;
    this.log(`tokenbucket: ${this.who} is back, limiting again`);
  }

  failed(error: unknown): void {
    this.lastError = error;
    this.#nextProbe = performance.now() + this.retryEveryMs;
    if (this.isAway) return;
    this.isAway = true;
    this.log(`tokenbucket: cannot ask ${this.who}, each limit does as its onError says: ${textOf(error)}`);
  }

  /** The server is there, and refused to decide this call. */
  refused(error: unknown): void {
    this.lastError = error;
    const now = performance.now();
    if (now < this.#nextRefusalLogged) return;
    this.#nextRefusalLogged = now + MS_BETWEEN_REFUSALS_LOGGED;
    this.log(`tokenbucket: ${this.who} refuses, onError decides such calls: ${textOf(error)}`);
  }
  /** Returns whether the Lua script replaces the commands. */
  get usesScript(): boolean {
    return this.#scriptUntil !== undefined && performance.now() < this.#scriptUntil;
  }

  hasNoModule(): void {
    if (this.#scriptUntil === undefined) {
      this.log(`tokenbucket: ${this.who} has no module, the script decides until it has`);
    }
    this.#scriptUntil = performance.now() + MS_BETWEEN_LOOKS_FOR_THE_MODULE;
  }

  hasModule(): void {
    if (this.#scriptUntil === undefined) return;
    this.#scriptUntil = undefined;
    this.log(`tokenbucket: ${this.who} has the module, the script decides no longer`);
  }

  /** Lets the next call try the module again: the server may be another. */
  lookForModule(): void {
    if (this.#scriptUntil !== undefined) this.#scriptUntil = 0;
  }
}
