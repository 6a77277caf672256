import type { Line } from "./lines.js";

/** Something that is sent to a node. */
export interface Message {
  /** Sent at most once. */
  readonly once: boolean;
  transmit(line: Line): Promise<unknown>;
  replied(reply: unknown): void;
  /** The server replied with an error. */
  failed(error: unknown): void;
  /** No reply in time, though one may still come. `lost`: it was sent, and must not be sent again. */
  undecided(lost: boolean): void;
}
