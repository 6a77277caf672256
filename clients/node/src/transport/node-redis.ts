/** node-redis 4 to 6: a client, a pool, a cluster, Sentinel. */

import type { Command } from "./command.js";
import type { Connection, Emitter, Route } from "./driver.js";
import { addressIn, ClusterRoute, hostAndPort, single } from "./route.js";

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
  readonly nodeByAddress: ReadonlyMap<string, unknown>;
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

/** Without them, the driver queues, reconnects, refuses calls, or counts a busy event loop as silence. */
const OPTIONS = {
  disableOfflineQueue: true,
  commandsQueueMaxLength: undefined,
  pingInterval: undefined,
  legacyMode: false,
  readonly: false,
  clientSideCache: undefined,
  emitInvalidate: undefined,
  commandOptions: { timeout: undefined }, // version 6 has one by default
};
const SOCKET = { reconnectStrategy: false, socketTimeout: undefined, connectTimeout: 0 };

interface WithSocket {
  socket?: object;
}

export function nodeRedis(client: NodeRedisClient): Route {
  const address = addressIn((client.options as WithSocket | undefined)?.socket ?? client.options);
  return single(address, () => new NodeRedisConnection(() => duplicateOf(client)));
}

/** Borrows one client of a pool as the template, once: later the pool may have none to spare. */
export function nodeRedisPool(pool: NodeRedisPool): Route {
  let template: NodeRedisClient | undefined;
  const borrowed = (one: NodeRedisClient) => one;
  const make = async () => duplicateOf((template ??= (await pool.execute(borrowed as never)) as NodeRedisClient));
  return single("", () => new NodeRedisConnection(make));
}

/**
 * Asks for the client of the master each time. `_execute` is the one private name of a driver in this package: `use()`
 * and `acquire()` lend clients that neither show their options nor make duplicates, `getMasterNode()` knows no password,
 * and `sendCommand()` repeats calls whose reply was lost.
 */
export function nodeRedisSentinel(sentinel: NodeRedisSentinel): Route {
  const duplicate = async (one: NodeRedisClient) => duplicateOf(one);
  const make = () => sentinel._execute(false as never, duplicate as never) as Promise<NodeRedisClient>;
  return single("", () => new NodeRedisConnection(make));
}

export function nodeRedisCluster(client: NodeRedisCluster): Route {
  const connectionTo = (address: string) =>
    new NodeRedisConnection(async () => {
      // The client of a node that the driver knows is connected where `nodeAddressMap` says.
      const known = client.nodeByAddress.get(address);
      const node = known ?? client.masters[0];
      if (!node) throw new Error("the cluster client is not connected: call its connect()");
      const one = (await client.nodeClient(node as never)) as NodeRedisClient;
      return duplicateOf(one, known || !address ? undefined : hostAndPort(address));
    });
  const masterOf = (slot: number) => client.slots[slot] as { master: { address: string } } | undefined;
  return new ClusterRoute((slot) => masterOf(slot)?.master.address, connectionTo);
}

function duplicateOf(client: NodeRedisClient, to?: { host: string; port: number }): NodeRedisClient {
  const { socket } = (client.options ?? {}) as WithSocket;
  return client.duplicate({ ...OPTIONS, ...(to && { url: undefined }), socket: { ...socket, ...to, ...SOCKET } });
}

class NodeRedisConnection implements Connection {
  #client: NodeRedisClient | undefined;
  #isClosed = false;

  constructor(readonly make: () => NodeRedisClient | Promise<NodeRedisClient>) {}

  get isOpen(): boolean {
    return this.#client?.isReady === true && !this.#isClosed;
  }

  async connect(): Promise<void> {
    const client = (this.#client = await this.make());
    client.on("error", () => {}); // Pending commands fail by themselves.
    if (this.#isClosed) throw new Error("closed while it connected");
    await client.connect();
    client.unref();
  }

  send(words: Command): Promise<unknown> {
    return this.#client!.sendCommand(words as string[]);
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    const client = this.#client;
    // Version 5 renamed it to `destroy`. It throws if the client is closed already.
    void (async () => client?.disconnect())().catch(() => {});
  }
}
