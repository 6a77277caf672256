/** What this package needs of a driver, the user's client library, and what each driver's clients look like. */

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

/** `Redis` of ioredis, or of iovalkey, which is made from it. */
export interface IoredisClient extends Emitter {
  readonly status: string;
  readonly options?: object;
  call(command: string, ...args: string[]): Promise<unknown>;
  connect(): Promise<unknown>;
  disconnect(): void;
  duplicate(options?: object): IoredisClient;
}

/** `Cluster` of either. */
export interface IoredisCluster extends Emitter {
  readonly status: string;
  /** The names of each slot's nodes, the master's first. */
  readonly slots: readonly (readonly string[])[];
  nodes(): IoredisClient[];
  connect(): Promise<unknown>;
  once(event: string, listener: (error?: unknown) => void): unknown;
}

/** What `createClient` of node-redis makes. */
export interface NodeRedisClient extends Emitter {
  readonly isReady: boolean;
  readonly options?: object | undefined;
  sendCommand(words: string[]): Promise<unknown>;
  connect(): Promise<unknown>;
  disconnect(): Promise<unknown>;
  unref(): void;
  duplicate(options?: object): NodeRedisClient;
}

/** What `createCluster` of node-redis makes. */
export interface NodeRedisCluster extends Emitter {
  readonly slots: readonly unknown[];
  readonly masters: readonly unknown[];
  nodeClient(node: never): unknown;
}

/** What `createClientPool` of node-redis makes. */
export interface NodeRedisPool extends Emitter {
  readonly totalClients: number;
  execute(work: never): Promise<unknown>;
}

/** What `createSentinel` of node-redis makes. */
export interface NodeRedisSentinel extends Emitter {
  readonly isReady: boolean;
  _execute(isReadonly: never, work: never): Promise<unknown>;
}

export type Client =
  | InProcess
  | IoredisClient
  | IoredisCluster
  | NodeRedisClient
  | NodeRedisCluster
  | NodeRedisPool
  | NodeRedisSentinel;
