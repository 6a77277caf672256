/** The state of one server: until when it is away. */

import { textOf, Undecided } from "../values/errors.js";

/** Gets a line when an outage begins, and when a call is answered again. */
export type Log = (line: string) => void;

const MS_BETWEEN_REFUSALS_LOGGED = 60_000;

export class Circuit {
  /** Why the server last did not decide. */
  #lastError: unknown;
  /** An outage is this number alone: no call asks before that moment. Undefined unless the server is away. */
  #awayUntilMs: number | undefined;
  #isLogged = false;
  #nextRefusalLogged = 0;

  constructor(
    readonly who: string,
    readonly retryEveryMs: number,
    readonly log: Log,
  ) {}

  get isAway(): boolean {
    return this.#awayUntilMs !== undefined;
  }

  /** Returns whether to try a server that is away; moves the moment of the next try. */
  isTimeToAsk(): boolean {
    const now = performance.now();
    if (now < this.#awayUntilMs!) return false;
    this.#awayUntilMs = now + this.retryEveryMs;
    return true;
  }

  /** Begins an outage, or lets it last. */
  failed(error: unknown): void {
    this.#lastError = error;
    this.#awayUntilMs = performance.now() + this.retryEveryMs;
    if (this.#isLogged) return;
    this.#isLogged = true;
    this.log(`tokenbucket: cannot ask ${this.who}, each limit does as its onError says: ${textOf(error)}`);
  }

  /** Lets calls ask again. */
  reached(): void {
    this.#awayUntilMs = undefined;
  }

  /** Notes that the server has replied to a call. */
  answered(): void {
    if (!this.#isLogged || this.isAway) return;
    this.#isLogged = false;
    this.log(`tokenbucket: ${this.who} is back, limiting again`);
  }

  /** Returns the error of a call that a server refused which answers others. */
  refused(error: unknown): Undecided {
    const now = performance.now();
    if (now >= this.#nextRefusalLogged) {
      this.#nextRefusalLogged = now + MS_BETWEEN_REFUSALS_LOGGED;
      this.log(`tokenbucket: ${this.who} refuses, onError decides such calls: ${textOf(error)}`);
    }
    return new Undecided(this.who, error);
  }

  /** Returns the error of a call that the server does not decide; by default, because it is away. */
  undecided(sent: boolean, error?: unknown): Undecided {
    return new Undecided(this.who, this.isAway ? this.#lastError : error, sent);
  }
}
