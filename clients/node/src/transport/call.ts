/** A call: one command with its options, on its way to a server. */

import type { Command } from "./command.js";
import type { Connection } from "./driver.js";

export interface Call {
  /** Sent at most once. */
  readonly once: boolean;
  transmit(connection: Connection): Promise<unknown>;
  replied(reply: unknown): void;
  /** The server replied with an error. */
  failed(error: unknown): void;
  /** No reply in time, though one may still come. `lost`: it was sent, and must not be sent again. */
  undecided(lost: boolean): void;
  /** The caller has left, and the connection has ended before a reply: it is not known what happened. */
  ended(): void;
}

/** A call that waits in the server. */
export interface WaitingCall extends Call {
  /** How long it may wait from now on. */
  readonly leftMs: number;
  /** A write of the same name and key that changes nothing. */
  readonly nothing: Command;
}

type Outcomes = Partial<Pick<Call, "replied" | "failed" | "undecided">>;

/** A call of the transport itself. */
export class BackgroundCall implements Call {
  readonly once = false;
  readonly replied: Call["replied"];
  readonly failed: Call["failed"];
  readonly undecided: Call["undecided"];

  constructor(
    readonly words: Command,
    { replied = () => {}, failed = () => {}, undecided = () => {} }: Outcomes = {},
  ) {
    this.replied = replied;
    this.failed = failed;
    this.undecided = undecided;
  }

  transmit(connection: Connection): Promise<unknown> {
    return connection.send(this.words);
  }

  ended(): void {}
}
