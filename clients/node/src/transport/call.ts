/** Calls on their way to a server. */

import type { Command } from "./command.js";
import type { Connection } from "./driver.js";

/** Learns what becomes of a call before the call itself. */
export interface Sender {
  silent(call: Call, isAway: boolean): void;
  /** The server has replied. */
  over(call: Call): void;
  /** The connection ended before the reply. */
  cutOff(call: Call, error: unknown): void;
}

export interface Call {
  /** The connection by which it was sent; undefined before there is one. */
  connection: Connection | undefined;
  /** What sends it. */
  sender: Sender | undefined;
  /** How often it was sent to this server. */
  sends: number;
  /** True if it must not happen twice. */
  readonly once: boolean;
  /** The tick in which it began to be due; the watch sets this and what follows. */
  sinceTick: number;
  /** True once its silence was reported. */
  isTold: boolean;
  /** Its place in the watch; -1 when the reply has come. */
  place: number;
  transmit(connection: Connection): Promise<unknown>;
  replied(reply: unknown): void;
  /** The server replied with an error. */
  failed(error: unknown): void;
  /** No reply in time, though one may still come. `lost`: it was sent, and must not be sent again. */
  undecided(lost: boolean): void;
  /** The caller has left, and the connection has ended before a reply: it is not known what happened. */
  ended(): void;
}

/** Returns a call of the transport itself, that no caller waits for. */
export function ownCall(commands: readonly Command[], hears: Partial<Call> = {}): Call {
  const transmit = (connection: Connection) => sendAll(connection, commands);
  const due = { connection: undefined, sinceTick: 0, isTold: false, place: -1 };
  const deaf = { replied() {}, failed() {}, undecided() {}, ended() {} };
  return { ...due, sender: undefined, sends: 0, once: false, transmit, ...deaf, ...hears };
}

/** Sends the commands in one write, and returns the reply to the last one. */
export function sendAll(connection: Connection, commands: readonly Command[]): Promise<unknown> {
  for (const words of commands.slice(0, -1)) connection.send(words).catch(() => {});
  return connection.send(commands.at(-1)!);
}
