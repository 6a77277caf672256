/** A call: one command with its options, on its way to a server. */

import type { Command } from "./command.js";
import type { Connection } from "./driver.js";
import { NEW_DUE, type Due } from "./watch.js";

/** Learns what becomes of a call before the call itself. */
export interface Sender {
  silent(call: Call, isAway: boolean): void;
  /** The server has replied. */
  over(call: Call): void;
  /** The connection ended before the reply. */
  cutOff(call: Call, error: unknown): void;
}

export interface Call extends Due {
  /** The connection by which it was sent. */
  connection: Connection | undefined;
  /** What sends it. */
  sender: Sender | undefined;
  /** How often it was sent to this server. */
  sends: number;
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

/** Returns a call of the transport itself, that no caller waits for. */
export function backgroundCall(call: Pick<Call, "transmit"> & Partial<Call>): Call {
  const nothing = () => {};
  const hears = { replied: nothing, failed: nothing, undecided: nothing, ended: nothing };
  return { ...NEW_DUE, connection: undefined, sender: undefined, sends: 0, once: false, ...hears, ...call };
}

export const PING = (connection: Connection) => connection.send(["PING"]);
