/** The state of one server: whether it is away, and whether it has the module. */

import { textOf } from "../values/errors.js";

/** Gets a line when the server goes, and when it returns. */
export type Log = (line: string) => void;

const MS_BETWEEN_REFUSALS_LOGGED = 60_000;
const MS_BETWEEN_LOOKS_FOR_THE_MODULE = 60_000;

/** Keeps calls from waiting for a server that is away. */
export class Circuit {
  isAway = false;
  #nextProbe = 0;
  #nextRefusalLogged = 0;
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
}

/** Remembers that a server has no module, so that the Lua script replaces the commands. */
export class Script {
  #until = 0;
  #isNeeded = false;

  constructor(
    readonly who: string,
    readonly log: Log,
  ) {}

  get isInUse(): boolean {
    return this.#isNeeded && performance.now() < this.#until;
  }

  begin(): void {
    this.#until = performance.now() + MS_BETWEEN_LOOKS_FOR_THE_MODULE;
    if (!this.#isNeeded) this.log(`tokenbucket: ${this.who} has no module, the script decides until it has`);
    this.#isNeeded = true;
  }

  end(): void {
    if (this.#isNeeded) this.log(`tokenbucket: ${this.who} has the module, the script decides no longer`);
    this.#isNeeded = false;
  }

  /** Lets the next call try the module again: the server may be another. */
  lookForModule(): void {
    this.#until = 0;
  }
}
