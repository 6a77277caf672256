/**
 * Our own connections to the server behind a client. The client's library makes them, with the client's options.
 *
 * The client's connection belongs to the application: it may queue while disconnected, resend commands, or wait behind
 * a blocking command. Ours do none of that. Each is used until it ends, and its pending commands then fail at once.
 */

import slotOf from "cluster-key-slot";

import type { Command } from "./command.js";
import { BadArgumentType } from "../values/errors.js";
import { clearTimeout, setTimeout } from "./timers.js";

/** The deadline for connecting, and the shortest silence after which a connection is dropped. */
export const CONNECT_MS = 1000;

/** One connection. */
export interface Line {
  readonly isOpen: boolean;
  /** False in this process, where no server can vanish behind it. */
  readonly canGoStale: boolean;
  /** Undefined if the library hides its socket. */
  readonly bytesRead: number | undefined;
  connect(): Promise<void>;
  send(words: Command): Promise<unknown>;
  /** All commands in MULTI/EXEC; rejects if one of them fails. */
  transaction(commands: readonly Command[]): Promise<unknown[]>;
  close(): void;
}

/** Where the nodes are, and how to get a line to each. */
export interface Route {
  readonly isCluster: boolean;
  /** Whether there is no server that calls could wait in. */
  readonly isInProcess?: boolean;
  readonly clock: Clock;
  /** `host:port` of the node that has the key; "" while that is unknown. */
  addressOf(key: string): string;
  lineTo(address: string): Line;
  /** Calls the listener when the application closes its client. */
  onEnd(listener: () => void): void;
  /** Cluster only: the slot has moved to this address. */
  learn?(slot: number, address: string): void;
  /** Cluster only: all nodes with slots. */
  addresses?(): Set<string>;
  /** Cluster only: takes the reply to CLUSTER SLOTS of the node at `from`. */
  learnAll?(slots: unknown, from: string): void;
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

/** `Redis` of ioredis, or of iovalkey, which is made from it. */
export interface IoredisClient {
  readonly status: string;
  readonly options?: object;
  call(command: string, ...args: string[]): Promise<unknown>;
  multi(commands: unknown[][]): { exec(): Promise<[error: Error | null, result: unknown][] | null> };
  connect(): Promise<unknown>;
  disconnect(): void;
  duplicate(options?: object): IoredisClient;
  on(event: string, listener: (error?: unknown) => void): unknown;
}

/** `Cluster` of either. */
export interface IoredisCluster {
  readonly isCluster: boolean;
  readonly status: string;
  /** Of each slot the names of its nodes, the master's first. */
  readonly slots: readonly (readonly string[])[];
  nodes(): IoredisClient[];
  connect(): Promise<unknown>;
  once(event: string, listener: (error?: unknown) => void): unknown;
  on(event: string, listener: (error?: unknown) => void): unknown;
}

/** What `createClient` of node-redis makes. */
export interface NodeRedisClient {
  readonly isReady: boolean;
  readonly options?: object | undefined;
  sendCommand(words: string[]): Promise<unknown>;
  multi(): { addCommand(words: string[]): unknown; exec(): Promise<unknown> };
  connect(): Promise<unknown>;
  disconnect(): Promise<unknown>;
  unref(): void;
  duplicate(options?: object): NodeRedisClient;
  on(event: string, listener: (error?: unknown) => void): unknown;
}

/** What `createCluster` of node-redis makes. */
export interface NodeRedisCluster {
  readonly slots: readonly unknown[];
  readonly masters: readonly unknown[];
  nodeClient(node: never): unknown;
  on(event: string, listener: (error?: unknown) => void): unknown;
}

/** What `createClientPool` of node-redis makes. */
export interface NodeRedisPool {
  readonly totalClients: number;
  execute(work: never): Promise<unknown>;
  on(event: string, listener: (error?: unknown) => void): unknown;
}

/** What `createSentinel` of node-redis makes. */
export interface NodeRedisSentinel {
  readonly isReady: boolean;
  _execute(isReadonly: never, work: never): Promise<unknown>;
  on(event: string, listener: (error?: unknown) => void): unknown;
}

export type Client =
  | InProcess
  | IoredisClient
  | IoredisCluster
  | NodeRedisClient
  | NodeRedisCluster
  | NodeRedisPool
  | NodeRedisSentinel;

/** Any client: its properties tell which library made it. */
type Unknown = Record<string, unknown>;

export function routeOf(client: Client): Route {
  const { keyPrefix } = ((client as unknown as Unknown | undefined)?.options ?? {}) as Unknown;
  if (keyPrefix) throw new BadArgumentType("client: has a keyPrefix, which does not reach every key; use `prefix`");
  const route = inProcess(client) ?? ioredis(client) ?? nodeRedis(client);
  if (route) return route;
  const isPromise = client !== null && typeof client === "object" && "then" in client;
  const what = isPromise ? "is a promise: await it" : "is neither of ioredis nor of iovalkey nor of node-redis";
  throw new BadArgumentType(`client: ${what}`);
}

/** Whether the client has all of these properties. */
function has<T>(client: unknown, ...names: string[]): client is T {
  return client !== null && typeof client === "object" && names.every((name) => name in client);
}

function inProcess(client: Client): Route | undefined {
  if (!has<InProcess>(client, "clock", "send")) return undefined;
  const { clock } = client;
  const lineTo = () => new InProcessLine(client);
  return { isCluster: false, isInProcess: true, clock, addressOf: () => "", lineTo, onEnd() {} };
}

function ioredis(client: Client): Route | undefined {
  if (has<IoredisCluster>(client, "slots", "nodes", "status")) return ioredisCluster(client);
  if (!has<IoredisClient>(client, "call", "duplicate", "status")) return undefined;
  const address = addressIn(client.options);
  return single(client, address, () => new IoredisLine(() => client.duplicate(IOREDIS_OPTIONS)));
}

function nodeRedis(client: Client): Route | undefined {
  if (has<NodeRedisCluster>(client, "slots", "masters", "nodeClient")) return nodeRedisCluster(client);
  if (has<NodeRedisPool>(client, "execute", "totalClients")) {
    const { execute } = client as unknown as { execute(work: (one: NodeRedisClient) => unknown): Promise<unknown> };
    return single(
      client,
      "",
      templated(() => execute.call(client, (one) => one) as Promise<NodeRedisClient>),
    );
  }
  if (has<NodeRedisSentinel>(client, "_execute", "acquire")) {
    const { _execute } = client as unknown as {
      _execute(isReadonly: boolean, work: (one: NodeRedisClient) => Promise<unknown>): Promise<unknown>;
    };
    const make = () => _execute.call(client, false, async (one) => duplicateOf(one)) as Promise<NodeRedisClient>;
    return single(client, "", () => new NodeRedisLine(make));
  }
  if (!has<NodeRedisClient>(client, "sendCommand", "duplicate", "isReady")) return undefined;
  const address = addressIn((client.options as Unknown | undefined)?.socket ?? client.options);
  return single(client, address, () => new NodeRedisLine(() => duplicateOf(client)));
}

/** Borrows one client of a pool as the template, once: later the pool may have none to spare. */
function templated(borrow: () => Promise<NodeRedisClient>): () => Line {
  let known: NodeRedisClient | undefined;
  return () => new NodeRedisLine(async () => duplicateOf((known ??= await borrow())));
}

function single(client: { on: IoredisClient["on"] }, address: string, lineTo: () => Line): Route {
  return {
    isCluster: false,
    clock: MACHINES_CLOCK,
    addressOf: () => address,
    lineTo,
    onEnd: (listener) => listenToEnd(client, listener),
  };
}

const endings = new WeakMap<object, (() => void)[]>();

/** Adds one listener to the client, however many servers are made from it: Node warns of more than ten. */
function listenToEnd(client: { on: IoredisClient["on"] }, listener: () => void): void {
  const listeners = endings.get(client) ?? [];
  listeners.push(listener);
  if (listeners.length > 1) return;
  endings.set(client, listeners);
  client.on("end", () => listeners.forEach((listener) => listener()));
}

/** The address in a client's options, for messages. */
function addressIn(options: unknown): string {
  const { path, host, port, sentinels, name } = (options ?? {}) as Unknown;
  if (Array.isArray(sentinels)) return String(name);
  return path ? String(path) : `${host ?? "localhost"}:${port ?? 6379}`;
}

const IOREDIS_OPTIONS = {
  lazyConnect: true,
  retryStrategy: null,
  reconnectOnError: null,
  autoResendUnfulfilledCommands: false,
  enableOfflineQueue: false,
  enableReadyCheck: false,
  enableAutoPipelining: false,
  maxRetriesPerRequest: null,
  commandTimeout: undefined,
  socketTimeout: undefined,
  monitor: false,
  readOnly: false,
};

const NODE_REDIS_OPTIONS = {
  disableOfflineQueue: true,
  pingInterval: undefined,
  legacyMode: false,
  readonly: false,
  clientSideCache: undefined,
  emitInvalidate: undefined,
  commandOptions: { timeout: undefined },
};

function duplicateOf(client: NodeRedisClient, to?: { host: string; port: number }): NodeRedisClient {
  const { socket } = (client.options ?? {}) as Unknown;
  return client.duplicate({
    ...NODE_REDIS_OPTIONS,
    ...(to && { url: undefined }),
    socket: { ...(socket as object), ...to, reconnectStrategy: false, socketTimeout: undefined },
  });
}

const SLOTS = 16_384;

/** Knows which node has a slot, from redirections and CLUSTER SLOTS, else from the library. */
abstract class ClusterRoute implements Route {
  readonly isCluster = true;
  readonly clock = MACHINES_CLOCK;
  readonly #addresses: (string | undefined)[] = [];

  constructor(readonly client: { on: IoredisClient["on"] }) {}

  abstract lineTo(address: string): Line;
  abstract addressInLibrary(slot: number): string | undefined;

  addressOf(key: string): string {
    return this.#addressOfSlot(slotOf(key));
  }

  addresses(): Set<string> {
    const addresses = new Set<string>();
    for (let slot = 0; slot < SLOTS; slot++) addresses.add(this.#addressOfSlot(slot));
    return addresses;
  }

  #addressOfSlot(slot: number): string {
    return this.#addresses[slot] ?? this.addressInLibrary(slot) ?? "";
  }

  learn(slot: number, address: string): void {
    this.#addresses[slot] = this.reachable(address);
  }

  learnAll(slots: unknown, from: string): void {
    for (const [first, last, [host, port]] of slots as [number, number, [string | null, number]][]) {
      const address = `${host || hostAndPort(from).host}:${port}`;
      for (let slot = Number(first); slot <= Number(last); slot++) this.learn(slot, address);
    }
  }

  onEnd(listener: () => void): void {
    listenToEnd(this.client, listener);
  }

  /** Translates a node's address as the cluster knows it (NAT). */
  reachable(address: string): string {
    return address;
  }
}

function ioredisCluster(client: IoredisCluster): Route {
  let ready: Promise<void> | undefined;
  const { natMap } = ((client as unknown as Unknown).options ?? {}) as { natMap?: Record<string, object> };
  class Of extends ClusterRoute {
    addressInLibrary(slot: number): string | undefined {
      return client.slots[slot]?.[0];
    }
    lineTo(address: string): Line {
      return new IoredisLine(async () => {
        if (client.status !== "ready") await (ready ??= readiness(client).finally(() => (ready = undefined)));
        const [one] = client.nodes();
        if (!one) throw new Error("no node of the cluster is known");
        return one.duplicate({ ...IOREDIS_OPTIONS, ...(address && hostAndPort(address)) });
      });
    }
    override reachable(address: string): string {
      const mapped = natMap?.[address];
      return mapped ? addressIn(mapped) : address;
    }
  }
  return new Of(client);
}

function readiness(client: IoredisCluster): Promise<void> {
  return new Promise((ready, failed) => {
    client.once("ready", () => ready());
    client.once("end", () => failed(new Error("the cluster client is closed")));
    if (client.status === "wait") client.connect().catch(failed);
  });
}

function nodeRedisCluster(client: NodeRedisCluster): Route {
  class Of extends ClusterRoute {
    addressInLibrary(slot: number): string | undefined {
      return (client.slots[slot] as { master: { address: string } } | undefined)?.master.address;
    }
    lineTo(address: string): Line {
      return new NodeRedisLine(async () => {
        const [one] = client.masters;
        if (!one) throw new Error("the cluster client is not connected: call its connect()");
        const node = (await client.nodeClient(one as never)) as NodeRedisClient;
        return duplicateOf(node, address ? hostAndPort(address) : undefined);
      });
    }
  }
  return new Of(client);
}

/** The port follows the last colon, also of an IPv6 address. */
function hostAndPort(address: string): { host: string; port: number } {
  const at = address.lastIndexOf(":");
  return { host: address.slice(0, at), port: Number(address.slice(at + 1)) };
}

class InProcessLine implements Line {
  readonly isOpen = true;
  readonly canGoStale = false;
  readonly bytesRead = undefined;
  readonly #client: InProcess;

  constructor(client: InProcess) {
    this.#client = client;
  }

  async connect(): Promise<void> {}

  send(words: Command): Promise<unknown> {
    return this.#client.send(words);
  }

  async transaction(commands: readonly Command[]): Promise<unknown[]> {
    const replies = [];
    for (const words of commands) replies.push(await this.#client.send(words));
    return replies;
  }

  close(): void {}
}

interface Stream {
  readonly bytesRead: number;
  unref(): void;
  destroy(): void;
  cork(): void;
  uncork(): void;
}

class IoredisLine implements Line {
  readonly canGoStale = true;
  #client: (IoredisClient & { stream?: Stream }) | undefined;
  #isClosed = false;
  #isCorked = false;

  constructor(readonly make: () => IoredisClient | Promise<IoredisClient>) {}

  get isOpen(): boolean {
    return this.#client?.status === "ready";
  }

  get bytesRead(): number | undefined {
    return this.#client?.stream?.bytesRead;
  }

  async connect(): Promise<void> {
    const client = (this.#client = await this.make());
    let reason: unknown;
    client.on("error", (error) => (reason ??= error));
    if (this.#isClosed) throw new Error("closed while it connected");
    await client.connect().catch((error: unknown) => {
      throw reason ?? error;
    });
    // An idle connection keeps no process alive. While a reply is due, the timer of the node does.
    this.#client?.stream?.unref();
  }

  send(words: Command): Promise<unknown> {
    this.#cork();
    return this.#client!.call(...(words as [string, ...string[]]));
  }

  async transaction(commands: readonly Command[]): Promise<unknown[]> {
    const results = await this.#client!.multi(commands.map((words) => ["call", ...words])).exec();
    return (results ?? []).map(([error, result]) => {
      if (error) throw error;
      return result;
    });
  }

  close(): void {
    this.#isClosed = true;
    this.#client?.disconnect();
    // Without this, the library waits for the server to close its end.
    this.#client?.stream?.destroy();
  }

  /** Joins all commands of one turn of the event loop into one write. */
  #cork(): void {
    const stream = this.#client?.stream;
    if (this.#isCorked || !stream) return;
    this.#isCorked = true;
    stream.cork();
    process.nextTick(() => {
      this.#isCorked = false;
      stream.uncork();
    });
  }
}

class NodeRedisLine implements Line {
  readonly canGoStale = true;
  readonly bytesRead = undefined;
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

  async transaction(commands: readonly Command[]): Promise<unknown[]> {
    const multi = this.#client!.multi();
    for (const words of commands) multi.addCommand([...words]);
    return (await multi.exec()) as unknown[];
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    const client = this.#client;
    // Version 5 renamed it to `destroy`. It throws if the client is closed already.
    void (async () => client?.disconnect())().catch(() => {});
  }
}

export const MACHINES_CLOCK: Clock = {
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
