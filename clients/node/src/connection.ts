/** The little that limiters need of a client library, and an adapter for each. */

import slotOf from "cluster-key-slot";

import { keyOf, type Command } from "./command.js";
import { isRedirection } from "./errors.js";

/** What limiters ask of a connection; the fake of `tokenbucket-redis/testing` is one. */
export interface Connection {
  readonly isReady: boolean;
  /** Called whenever the connection is, or is again, ready to be used. */
  onReady(listener: () => void): void;
  /** Called with why it could not connect, or was disconnected. */
  onError(listener: (error: unknown) => void): void;
  send(words: Command): Promise<unknown>;
  /** All of the commands with nobody in between (MULTI/EXEC); rejects if one of them fails. */
  transaction(commands: readonly Command[]): Promise<unknown[]>;
  /** The name of the node of a cluster that has the key, as far as is known. */
  nodeOf?(key: string): string | undefined;
  /** Connects, where the library waits for the first command. */
  wake?(): void;
  /** The time by which limiters remember and wait; the machine's unless given. */
  readonly clock?: Clock;
}

export interface Clock {
  /** Milliseconds since whenever; never steps back. */
  now(): number;
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
}

/** `Redis` of ioredis, or of iovalkey, which is made from it. */
export interface IoredisClient {
  readonly status: string;
  readonly options?: {
    readonly keyPrefix?: string | undefined;
    readonly host?: string | undefined;
    readonly port?: number | undefined;
  };
  call(command: string, ...args: string[]): Promise<unknown>;
  multi(commands: unknown[][]): { exec(): Promise<[error: Error | null, result: unknown][] | null> };
  connect(): Promise<unknown>;
  on(event: "ready" | "error", listener: (error?: unknown) => void): unknown;
}

/** `Cluster` of either. */
export interface IoredisCluster extends IoredisClient {
  /** Of each slot the names of its nodes, the master's first. */
  readonly slots: readonly (readonly string[])[];
  nodes(role: "master"): IoredisClient[];
}

/** What `createClient` of node-redis makes. */
export interface NodeRedisClient {
  readonly isReady: boolean;
  sendCommand(words: readonly string[]): Promise<unknown>;
  multi(): NodeRedisMulti;
  on(event: "ready" | "error", listener: (error?: unknown) => void): unknown;
}

interface NodeRedisMulti {
  addCommand(words: string[]): unknown;
  exec(): Promise<unknown>;
}

/** What `createCluster` of node-redis makes. */
export interface NodeRedisCluster {
  readonly isReady: boolean;
  readonly slots: readonly { readonly master: NodeRedisNode }[];
  sendCommand(firstKey: string, isReadonly: boolean, words: string[]): Promise<unknown>;
  multi(): NodeRedisClusterMulti;
  on(event: "connect" | "error" | "node-error", listener: (error?: unknown) => void): unknown;
}

interface NodeRedisNode {
  readonly address: string;
  readonly client?: { readonly isReady: boolean } | undefined;
}

interface NodeRedisClusterMulti {
  addCommand(firstKey: string, isReadonly: boolean, words: string[]): unknown;
  exec(): Promise<unknown>;
}

export type Client = Connection | IoredisClient | IoredisCluster | NodeRedisClient | NodeRedisCluster;

export function connectionOf(client: Client): Connection {
  if ("onReady" in client) return client;
  // Before node-redis: ioredis has a sendCommand as well, which is another.
  if ("call" in client) return "nodes" in client ? overIoredisCluster(client) : overIoredis(client);
  if ("sendCommand" in client) return "slots" in client ? overNodeRedisCluster(client) : overNodeRedis(client);
  throw new TypeError("client: is neither of ioredis nor of iovalkey nor of node-redis");
}

function overIoredis(client: IoredisClient): Connection {
  if (client.options?.keyPrefix) {
    throw new TypeError("client: has a keyPrefix, which ioredis does not put before all keys; use `prefix`");
  }
  return {
    get isReady() {
      return client.status === "ready";
    },
    onReady: (listener) => client.on("ready", listener),
    onError: (listener) => client.on("error", listener),
    send: ([command = "", ...args]) => client.call(command, ...args),
    transaction: (commands) => overIoredisTransaction(client, commands),
    wake() {
      // What comes of it is told by the next call.
      if (client.status === "wait") client.connect().catch(() => {});
    },
  };
}

async function overIoredisTransaction(client: IoredisClient, commands: readonly Command[]): Promise<unknown[]> {
  const results = await client.multi(commands.map((words) => ["call", ...words])).exec();
  return (results ?? []).map(([error, result]) => {
    if (error) throw error;
    return result;
  });
}

/**
 * It does not know which words of a module's commands are keys, and would send them anywhere to be told where to. So
 * the node is asked that has the slot, and the cluster only where that has changed.
 */
function overIoredisCluster(client: IoredisCluster): Connection {
  const nodeOf = (key: string) => client.slots[slotOf(key)]?.[0];
  const masterOf = (key: string) => {
    const name = nodeOf(key);
    return client.nodes("master").find(({ options }) => `${options?.host}:${options?.port}` === name);
  };
  return {
    ...overIoredis(client),
    get isReady() {
      return client.status === "ready";
    },
    onError: (listener) => client.on("error", (error) => listener(ofNode(error))),
    nodeOf,
    async send([command = "", ...args]) {
      const master = masterOf(keyOf([command, ...args]));
      if (!master) return client.call(command, ...args);
      try {
        return await master.call(command, ...args);
      } catch (error) {
        if (!isRedirection(error)) throw error;
      }
      return client.call(command, ...args);
    },
    async transaction(commands) {
      const master = masterOf(keyOf(commands[0] ?? []));
      if (!master) throw new Error("no node has the slot");
      return overIoredisTransaction(master, commands);
    },
  };
}

/** What a node said when the cluster's client could connect to none. */
function ofNode(error: unknown): unknown {
  return error instanceof Error && "lastNodeError" in error ? (error.lastNodeError ?? error) : error;
}

function overNodeRedisCluster(client: NodeRedisCluster): Connection {
  const masterOf = (key: string) => client.slots[slotOf(key)]?.master;
  /** To a node that is not connected the library would send it long after the policy has answered. */
  const assertConnected = (key: string) => {
    const master = masterOf(key);
    if (master?.client && !master.client.isReady) throw new Error(`not connected to ${master.address}`);
  };
  return {
    get isReady() {
      return client.isReady;
    },
    onReady: (listener) => client.on("connect", listener),
    onError(listener) {
      client.on("error", listener);
      client.on("node-error", listener);
    },
    nodeOf: (key) => masterOf(key)?.address,
    async send(words) {
      const key = keyOf(words);
      assertConnected(key);
      return client.sendCommand(key, false, [...words]);
    },
    async transaction(commands) {
      assertConnected(keyOf(commands[0] ?? []));
      const multi = client.multi();
      for (const words of commands) multi.addCommand(keyOf(words), false, [...words]);
      return (await multi.exec()) as unknown[];
    },
  };
}

function overNodeRedis(client: NodeRedisClient): Connection {
  return {
    get isReady() {
      return client.isReady;
    },
    onReady: (listener) => client.on("ready", listener),
    onError: (listener) => client.on("error", listener),
    send: (words) => client.sendCommand(words),
    async transaction(commands) {
      const multi = client.multi();
      for (const words of commands) multi.addCommand([...words]);
      return (await multi.exec()) as unknown[];
    },
  };
}

const MACHINES_CLOCK: Clock = {
  now: () => performance.now(),
  sleep: (ms, signal) =>
    new Promise((done, aborted) => {
      signal?.throwIfAborted();
      const timer = setTimeout(() => {
        signal?.removeEventListener("abort", abort);
        done();
      }, ms);
      function abort() {
        clearTimeout(timer);
        aborted(signal?.reason as Error);
      }
      signal?.addEventListener("abort", abort, { once: true });
    }),
};

export function clockOf(client: Client): Clock {
  return ("onReady" in client && client.clock) || MACHINES_CLOCK;
}
