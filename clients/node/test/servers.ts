/** Real servers whose clock a test sets, and clients of each library. */

import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { closeSync, existsSync, mkdtempSync, openSync, readFileSync, rmSync, writeSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after, type TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Cluster as IoredisCluster, Redis } from "ioredis";
import { Cluster as IovalkeyCluster, Redis as Valkey } from "iovalkey";
import * as ioredis5 from "ioredis-5";
import { createClient, createClientPool, createCluster, type RedisClientType } from "redis";
import * as redis4 from "redis-4";
import * as redis5 from "redis-5";
import { Server as Buckets, type Client, type ServerOptions as BucketsOptions } from "tokenbucket-redis";

const HERE = resolve(import.meta.dirname, "..");
const SERVER = resolve(HERE, process.env.SERVER ?? "../../target/engines/redis-7.0.15/server");
export const MODULE = resolve(HERE, process.env.MODULE ?? "../../target/release/libtokenbucket.so");

/** What lets a server load modules while it runs; older ones do so anyway. */
export const MAY_LOAD_MODULES = majorVersion() < 7 ? [] : ["--enable-module-command", "yes"];

/** One token in six minutes: nothing flows in while a test runs. */
export const STILL = "10/h";

interface ServerOptions {
  module?: boolean;
  args?: string[];
  /** Whether its time passes by itself, as the nodes of a cluster need it among themselves. */
  realTime?: boolean;
}

/** What is left when a test program ends early ends with it. */
const running = new Set<Server>();
process.once("exit", () => running.forEach((server) => server.abandon()));

/** A server on a port and in a folder of its own, on which the time stands still; ended by its own pid. */
export class Server {
  #child: ChildProcess | undefined;
  #nowUs = 1_767_225_600_000_007n;
  readonly #folder = mkdtempSync(join(tmpdir(), "tokenbucket-node-"));
  readonly #clock = openSync(join(this.#folder, "clock"), "w");

  private constructor(
    readonly port: number,
    readonly args: string[],
    readonly realTime: boolean,
  ) {
    this.advance(0);
    running.add(this);
  }

  static async start({ module = true, args = [], realTime = false }: ServerOptions = {}): Promise<Server> {
    for (const needed of [SERVER, MODULE]) {
      if (!existsSync(needed)) throw new Error(`there is no ${needed}: set SERVER and MODULE`);
    }
    return new Server(await freePort(), [...args, ...(module ? ["--loadmodule", MODULE] : [])], realTime).start();
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  /** Starts it, again if need be, on the same port and empty. */
  async start(): Promise<this> {
    const settings = { port: String(this.port), bind: "127.0.0.1", save: "", appendonly: "no" };
    const args = Object.entries(settings).flatMap(([name, value]) => [`--${name}`, value]);
    const log = openSync(join(this.#folder, "log"), "a");
    this.#child = spawn(SERVER, [...args, ...this.args], {
      cwd: this.#folder,
      env: this.realTime ? process.env : { ...process.env, ...fakeClock(join(this.#folder, "clock")) },
      stdio: ["ignore", log, log],
    });
    closeSync(log);
    this.#child.on("error", () => {});
    await until(async () => {
      if (this.#ended) throw new Error(`the server did not start\n${readFileSync(join(this.#folder, "log"), "utf8")}`);
      return answers(this.port);
    });
    return this;
  }

  /** Its time, from a whole millisecond on. */
  wholeMs(): Date {
    this.advance(Number(-this.#nowUs % 1000n) / 1000 + 1);
    return new Date(Number(this.#nowUs / 1000n));
  }

  advance(ms: number): void {
    this.#nowUs += BigInt(Math.round(ms * 1000));
    const bytes = Buffer.alloc(8);
    bytes.writeBigInt64BE(this.#nowUs);
    writeSync(this.#clock, bytes, 0, 8, 0);
  }

  signal(signal: NodeJS.Signals): void {
    this.#child?.kill(signal);
  }

  async stop(): Promise<void> {
    // Its time stands still, so it would wait for ever for what it wants to finish in time.
    this.signal("SIGKILL");
    await until(() => this.#ended);
  }

  async remove(): Promise<void> {
    await this.stop();
    this.abandon();
  }

  /** As remove, but waits for nothing. */
  abandon(): void {
    this.signal("SIGKILL");
    running.delete(this);
    closeSync(this.#clock);
    rmSync(this.#folder, { recursive: true, force: true });
  }

  get #ended(): boolean {
    return !this.#child?.pid || this.#child.exitCode !== null || this.#child.signalCode !== null;
  }
}

function fakeClock(path: string): Record<string, string> {
  return { LD_PRELOAD: join(HERE, "build/fakeclock.so"), FAKECLOCK: path };
}

/** A server for one test. */
export async function serverFor(t: TestContext, options?: ServerOptions): Promise<Server> {
  const server = await Server.start(options);
  t.after(() => server.remove());
  return server;
}

/** A server for all tests of a file. */
export async function sharedServer(options?: ServerOptions): Promise<Server> {
  const server = await Server.start(options);
  after(() => server.remove());
  return server;
}

export interface Connected {
  client: Client;
  /** Where limiters go: the same, with time for a loaded machine. */
  buckets: Buckets;
  /** Any command, past the limiters. */
  send(...words: string[]): Promise<unknown>;
  close(): void;
}

/** Every library, and of those that are widespread the versions before. */
export const LIBRARIES: Record<string, (url: string) => Promise<Connected>> = {
  ioredis: async (url) => overIoredis(new Redis(url, { retryStrategy: () => 50 })),
  "ioredis 5": async (url) => overIoredis(new ioredis5.Redis(url, { retryStrategy: () => 50 })),
  iovalkey: async (url) => overIoredis(new Valkey(url, { retryStrategy: () => 50 })),
  "node-redis": (url) => overNodeRedis(createClient({ url, socket: { reconnectStrategy: 50 } })),
  "node-redis 5": (url) => overNodeRedis(redis5.createClient({ url, socket: { reconnectStrategy: 50 } })),
  "node-redis 4": (url) => overNodeRedis(redis4.createClient({ url, socket: { reconnectStrategy: 50 } })),
  "node-redis, a pool": (url) => overNodeRedis(createClientPool({ url, socket: { reconnectStrategy: 50 } })),
};

interface AnyNodeRedis {
  on(event: "error", listener: () => void): unknown;
  connect(): Promise<unknown>;
  sendCommand?: unknown;
  destroy?(): unknown;
  disconnect?(): Promise<unknown>;
}

async function overNodeRedis(client: Client & AnyNodeRedis): Promise<Connected> {
  client.on("error", () => {});
  await client.connect();
  return {
    client,
    buckets: patient(client),
    send: (...words) => (client as RedisClientType).sendCommand(words),
    close: () => closeNodeRedis(client),
  };
}

/** Called `disconnect` before version 5. */
function closeNodeRedis(client: AnyNodeRedis): void {
  if (client.destroy) client.destroy();
  else void client.disconnect!().catch(() => {});
}

function overIoredis(client: Redis | ioredis5.Redis | Valkey): Connected {
  client.on("error", () => {});
  return {
    client,
    buckets: patient(client),
    send: (...words) => (client as Redis).call(...(words as [string, ...string[]])),
    close: () => client.disconnect(),
  };
}

/** A client for one test. */
export async function clientFor(t: TestContext, server: Server, library = "ioredis"): Promise<Connected> {
  const connected = await LIBRARIES[library]!(server.url);
  t.after(() => connected.close());
  // Connecting takes what it takes; the deadlines of limiters are about calls.
  await connected.send("PING");
  return connected;
}

/** Waits long enough for a loaded machine, and tells nobody. */
export function patient(client: Client, options: BucketsOptions = {}): Buckets {
  return new Buckets(client, { timeoutMs: 5000, log: () => {}, ...options });
}

export async function until(condition: () => Promise<boolean> | boolean, withinMs = 20_000): Promise<void> {
  const deadline = performance.now() + withinMs;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`not within ${withinMs} ms: ${condition}`);
    await sleep(10);
  }
}

function majorVersion(): number {
  const version = execFileSync(SERVER, ["--version"], { encoding: "utf8" });
  return Number(/ v=(\d+)/.exec(version)?.[1]);
}

/** A port below those that connections get from the system; a node of a cluster also takes the one 10,000 above it. */
async function freePort(): Promise<number> {
  for (;;) {
    const port = 10_000 + Math.floor(Math.random() * 12_000);
    if ((await isFree(port)) && (await isFree(port + 10_000))) return port;
  }
}

function isFree(port: number): Promise<boolean> {
  return new Promise((done) => {
    const server = createServer();
    server.once("error", () => done(false));
    server.listen({ port, host: "127.0.0.1" }, () => server.close(() => done(true)));
  });
}

function answers(port: number): Promise<boolean> {
  return new Promise((done) => {
    const socket = connect({ port, host: "127.0.0.1" });
    socket.once("error", () => done(false));
    socket.once("connect", () => {
      socket.destroy();
      done(true);
    });
  });
}

const SLOTS = 16_384;
const SHARE = Math.ceil(SLOTS / 3);
// A node that is away takes its slots with it, and leaves the others at work.
const NODE_OPTIONS = "--cluster-enabled yes --cluster-require-full-coverage no --repl-diskless-sync-delay 0".split(" ");

/** Three masters, and whatever a test adds. */
export class Cluster {
  private constructor(
    readonly nodes: readonly Server[],
    readonly options: ServerOptions,
  ) {}

  static async start({ module = true, args = [] }: ServerOptions = {}): Promise<Cluster> {
    const options = { module, args: [...NODE_OPTIONS, ...args], realTime: true };
    const cluster = new Cluster(await Promise.all([1, 2, 3].map(() => Server.start(options))), options);
    for (const [at, node] of cluster.nodes.entries()) {
      await ask(node, "CLUSTER", "SET-CONFIG-EPOCH", String(at + 1));
      const slots = Array.from({ length: Math.min(SHARE, SLOTS - at * SHARE) }, (_, slot) => String(at * SHARE + slot));
      await ask(node, "CLUSTER", "ADDSLOTS", ...slots);
      await cluster.#meet(node);
    }
    for (const node of cluster.nodes) {
      await until(async () => {
        const info = String(await ask(node, "CLUSTER", "INFO"));
        return info.includes("cluster_state:ok") && info.includes(`cluster_slots_ok:${SLOTS}`);
      });
    }
    return cluster;
  }

  async #meet(node: Server): Promise<void> {
    await ask(node, "CLUSTER", "MEET", "127.0.0.1", String(this.nodes[0]!.port));
  }

  async remove(): Promise<void> {
    await Promise.all(this.nodes.map((node) => node.remove()));
  }

  /** The node that has the key, as the slots were dealt. */
  async nodeOf(key: string): Promise<Server> {
    const slot = Number(await ask(this.nodes[0]!, "CLUSTER", "KEYSLOT", key));
    return this.nodes[Math.floor(slot / SHARE)]!;
  }

  /** A name with a hash tag on each node. */
  async names(): Promise<string[]> {
    const names = new Map<Server, string>();
    for (let at = 0; names.size < 3; at++) names.set(await this.nodeOf(`{${at}}`), `{${at}}`);
    return this.nodes.map((node) => names.get(node)!);
  }

  /** Moves a slot in which there is nothing yet. */
  async moveSlotOf(key: string, to: Server): Promise<void> {
    const slot = String(await ask(to, "CLUSTER", "KEYSLOT", key));
    const owner = await this.nodeOf(key);
    const set = async (node: Server, how: string, other: Server) =>
      ask(node, "CLUSTER", "SETSLOT", slot, how, String(await ask(other, "CLUSTER", "MYID")));
    // Else an owner of a later epoch might have it back.
    await set(to, "IMPORTING", owner);
    await set(owner, "MIGRATING", to);
    for (const node of [to, ...this.nodes.filter((one) => one !== to)]) await set(node, "NODE", to);
  }

  /** A replica that has all that its master has. */
  async replicaOf(t: TestContext, master: Server): Promise<Server> {
    const replica = await serverFor(t, this.options);
    await this.#meet(replica);
    const id = String(await ask(master, "CLUSTER", "MYID"));
    await until(async () => String(await ask(replica, "CLUSTER", "NODES")).includes(id));
    await ask(replica, "CLUSTER", "REPLICATE", id);
    await until(async () => String(await ask(replica, "INFO", "replication")).includes("master_link_status:up"));
    // Or it would take over before it knows which slots its master has.
    await until(async () => String(await ask(replica, "CLUSTER", "INFO")).includes(`cluster_slots_assigned:${SLOTS}`));
    return replica;
  }

  /** Makes it a master in place of its own, and waits until those that are left know. */
  async takeOver(replica: Server, left: readonly Server[]): Promise<void> {
    await ask(replica, "CLUSTER", "FAILOVER", "TAKEOVER");
    for (const node of left) {
      await until(async () =>
        new RegExp(`:${replica.port}@.* master `).test(String(await ask(node, "CLUSTER", "NODES"))),
      );
    }
  }
}

/** A node's own answer. */
export async function ask(node: Server, ...words: [string, ...string[]]): Promise<unknown> {
  const client = new Redis(node.url);
  try {
    return await client.call(...words);
  } finally {
    client.disconnect();
  }
}

export async function clusterFor(t: TestContext, options?: ServerOptions): Promise<Cluster> {
  const cluster = await Cluster.start(options);
  t.after(() => cluster.remove());
  return cluster;
}

/** A cluster for all tests of a file. */
export async function sharedCluster(options?: ServerOptions): Promise<Cluster> {
  const cluster = await Cluster.start(options);
  after(() => cluster.remove());
  return cluster;
}

const CLUSTER_DEFAULTS = { socket: { reconnectStrategy: 50 } };

export const CLUSTER_LIBRARIES: Record<string, (cluster: Cluster) => Promise<{ client: Client; close(): void }>> = {
  ioredis: async ({ nodes }) => overIoredisCluster(new IoredisCluster([nodes[0]!.url])),
  iovalkey: async ({ nodes }) => overIoredisCluster(new IovalkeyCluster([nodes[0]!.url])),
  "node-redis": ({ nodes }) =>
    overNodeRedis(createCluster({ rootNodes: [{ url: nodes[0]!.url }], defaults: CLUSTER_DEFAULTS })),
  "node-redis 5": ({ nodes }) =>
    overNodeRedis(redis5.createCluster({ rootNodes: [{ url: nodes[0]!.url }], defaults: CLUSTER_DEFAULTS })),
  "node-redis 4": ({ nodes }) =>
    overNodeRedis(redis4.createCluster({ rootNodes: [{ url: nodes[0]!.url }], defaults: CLUSTER_DEFAULTS })),
};

async function overIoredisCluster(client: IoredisCluster | IovalkeyCluster) {
  client.on("error", () => {});
  await until(() => client.status === "ready");
  return { client, close: () => client.disconnect() };
}

/** A client of the cluster for one test. */
export async function clusterClientFor(t: TestContext, cluster: Cluster, library: string): Promise<Client> {
  const { client, close } = await CLUSTER_LIBRARIES[library]!(cluster);
  t.after(close);
  return client;
}
