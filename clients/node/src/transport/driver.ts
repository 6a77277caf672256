/** What this package needs of a driver, the user's client library. */

import type { Command } from "./command.js";

/** A connection that a driver has made, with the options of the user's client. */
export interface Connection {
  readonly isOpen: boolean;
  /** What the server has refused while it connected, such as the password or the database, if the driver goes on. */
  readonly refusal?: unknown;
  connect(): Promise<unknown>;
  send(words: Command): Promise<unknown>;
  close(): void;
}

/** Finds the node of a key, and makes connections to it. */
export interface Route {
  /** Only if the client decides in this process: then calls cannot wait in a server. */
  readonly clock?: Clock;
  /** Returns `host:port` of the node that has the key; "" while that is unknown. */
  addressOf(key: string): string;
  connectionTo(address: string): Connection;
}

export interface Clock {
  /** Milliseconds since whenever; never steps back. */
  now(): number;
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
}

/** Replaces a client and decides in this process: the fake of `tokenbucket-redis/testing`. */
export interface InProcess {
  send(words: Command): Promise<unknown>;
  /** The clock for everything that limiters remember and wait for. */
  readonly clock: Clock;
}

export interface Emitter {
  on(event: string, listener: (error?: unknown) => void): unknown;
}
