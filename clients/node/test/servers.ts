/** Real servers whose clock a test sets, and clients of each library. */

import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { after, type TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import * as ioredis from "ioredis";
import * as ioredis5 from "ioredis-5";
import * as iovalkey from "iovalkey";
import * as redis from "redis";
import * as redis4 from "redis-4";
import * as redis5 from "redis-5";
import { Server as Buckets, type Client, type ServerOptions as BucketsOptions } from "tokenbucket-redis";

const LAUNCHER = resolve(import.meta.dirname, "../../../testing/launch.py");
export const MODULE = resolve(process.env.MODULE ?? "../../target/release/libtokenbucket.so");

/** One token in six minutes: nothing flows in while a test runs. */
export const STILL = "10/h";

interface ServerOptions {
  module?: boolean;
  /** False: its time is the machine's. */
  clock?: boolean;
  args?: string[];
}

interface Node {
  node: number;
  port: number;
  pid: number;
}

/** testing/launch.py, which says how it works: it starts servers, and ends them when its input ends. */
class Launcher {
  readonly #child: ChildProcess;
  readonly #lines: AsyncIterator<string>;
  #last: Promise<unknown> = Promise.resolve();

  private constructor(options: string[]) {
    this.#child = spawn("python3", [LAUNCHER, "serve", ...options], { stdio: ["pipe", "pipe", "inherit"] });
    this.#lines = createInterface(this.#child.stdout!)[Symbol.asyncIterator]();
  }

  static async start(kind: "--clock" | "--cluster" | "", { module = true, args = [] }: ServerOptions) {
    const launcher = new Launcher([...(kind ? [kind] : []), ...(module ? [] : ["--without-module"]), "--", ...args]);
    const { folder, nodes } = (await launcher.#read()) as { folder: string; nodes: Omit<Node, "node">[] };
    return { launcher, folder, nodes: nodes.map((one, node) => ({ node, ...one })) };
  }

  /** Its reply, in the order of the calls. */
  tell(...words: unknown[]): Promise<unknown> {
    this.#child.stdin!.write(`${JSON.stringify(words)}\n`);
    const reply = this.#last.then(async () => {
      const { reply, error } = (await this.#read()) as { reply?: unknown; error?: string };
      if (error !== undefined) throw new Error(`${words.join(" ")}: ${error}`);
      return reply;
    });
    this.#last = reply.catch(() => {});
    return reply;
  }

  async #read(): Promise<unknown> {
    const { value, done } = await this.#lines.next();
    if (done) throw new Error("no server was started: run the tests with `make test`");
    return JSON.parse(value);
  }

  async end(): Promise<void> {
    this.#child.stdin!.end();
    if (this.#child.exitCode === null) await once(this.#child, "exit");
  }
}

/** A server on which the time stands still, or a node of a cluster. */
export class Server {
  #nowUs = 1_767_225_600_000_007n;
  /** The file that has its time. */
  readonly clock: string | undefined;
  readonly port: number;
  readonly node: number;
  #pid: number;

  constructor(
    readonly launcher: Launcher,
    { node, port, pid }: Node,
    folder?: string,
  ) {
    [this.node, this.port, this.#pid] = [node, port, pid];
    if (folder === undefined) return;
    this.clock = join(folder, "clock");
    this.advance(0);
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  /** Starts it again, on the same port and empty. */
  async start(): Promise<void> {
    this.#pid = (await this.launcher.tell("start", this.node)) as number;
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
    writeFileSync(this.clock!, bytes, { flag: "r+" });
  }

  signal(signal: NodeJS.Signals): void {
    process.kill(this.#pid, signal);
  }

  async stop(): Promise<void> {
    await this.launcher.tell("stop", this.node);
  }
}

/** What a server lasts as long as: a test, or all tests of a file. */
interface Scope {
  after(end: () => Promise<void>): void;
}

export async function serverFor(scope: Scope, options: ServerOptions = {}): Promise<Server> {
  const { clock = true } = options;
  const { launcher, folder, nodes } = await Launcher.start(clock ? "--clock" : "", options);
  scope.after(() => launcher.end());
  return new Server(launcher, nodes[0]!, clock ? folder : undefined);
}

export const sharedServer = (options?: ServerOptions) => serverFor({ after }, options);

/** A server, a client of it for whatever a test asks past its limiters, and the step that lets its time pass. */
export async function sharedRedis() {
  const server = await sharedServer();
  const redis = new ioredis.Redis(server.url).on("error", () => {});
  after(() => redis.disconnect());
  const advance = (ms: number) => () => Promise.resolve(server.advance(ms));
  return { server, redis, advance };
}

/** What the clients of all libraries have in common, as far as tests use it. */
type AnyClient = Client & {
  on(event: "error", listener: () => void): unknown;
  connect(): Promise<unknown>;
  call?(...words: string[]): Promise<unknown>;
  sendCommand?(words: string[]): Promise<unknown>;
  destroy?(): unknown;
  disconnect(): Promise<unknown> | undefined;
};

/** Makes clients that have not connected. */
interface Library {
  single(url: string, tls?: object): unknown;
  /** By the URL of one node, and where the others are reached instead. */
  cluster?(url: string, at?: Record<string, { host: string; port: number }>): unknown;
}

/** Every library, and of those that are widespread the versions before. */
export const IOREDIS = {
  ioredis,
  "ioredis 5": ioredis5 as never as typeof ioredis,
  iovalkey: iovalkey as never as typeof ioredis,
};
export const NODE_REDIS = {
  "node-redis": redis,
  "node-redis 5": redis5 as never as typeof redis,
  "node-redis 4": redis4 as never as typeof redis,
};

const lazily = { lazyConnect: true, retryStrategy: () => 50 };
// A copy for each: node-redis writes into it.
const socket = { reconnectStrategy: 50 };

export const LIBRARIES: Record<string, Library> = {
  "node-redis, a pool": { single: (url) => redis.createClientPool({ url, socket: { ...socket } }) },
};
for (const [library, { Redis, Cluster }] of Object.entries(IOREDIS)) {
  LIBRARIES[library] = {
    single: (url, tls) => new Redis(url, { ...lazily, ...(tls && { tls }) }),
    cluster: (url, natMap) => new Cluster([url], { lazyConnect: true, ...(natMap && { natMap }) }),
  };
}
for (const [library, { createClient, createCluster }] of Object.entries(NODE_REDIS)) {
  LIBRARIES[library] = {
    single: (url, tls) => createClient({ url, socket: { ...socket, ...tls } }),
    cluster: (url, at) =>
      createCluster({ rootNodes: [{ url }], defaults: { socket: { ...socket } }, ...(at && { nodeAddressMap: at }) }),
  };
}
export const CLUSTER_LIBRARIES = Object.keys(LIBRARIES).filter((library) => LIBRARIES[library]!.cluster);

interface ClientOptions extends BucketsOptions {
  library?: string;
  /** Where nodes of a cluster are reached. */
  at?: Record<string, { host: string; port: number }>;
}

/** A client for one test, and where its limiters go: the same, with time for a loaded machine. */
export async function clientFor(t: TestContext, server: Server | Cluster, options: ClientOptions = {}) {
  const { library = "ioredis", at, ...rest } = options;
  const { single, cluster } = LIBRARIES[library]!;
  const made = server instanceof Cluster ? cluster!(server.nodes[0]!.url, at) : single(server.url);
  const client = made as AnyClient;
  client.on("error", () => {});
  await client.connect();
  // Version 5 of node-redis renamed it.
  t.after(() => (client.destroy ? client.destroy() : client.disconnect()?.catch(() => {})));
  /** Any command, past the limiters. */
  const send = (...words: string[]) => (client.call ? client.call(...words) : client.sendCommand!(words));
  return { buckets: patient(client, rest), send };
}

/** The same, and the server has no keys. */
export async function emptiedClientFor(t: TestContext, server: Server, options?: ClientOptions) {
  const connected = await clientFor(t, server, options);
  await connected.send("FLUSHALL");
  return connected;
}

/** A server for one test, and a client of it. */
export async function ownServerFor(t: TestContext, options?: ServerOptions, ofClient?: ClientOptions) {
  const own = await serverFor(t, options);
  return { own, ...(await clientFor(t, own, ofClient)) };
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

/** Three masters, and whatever a test adds. */
export class Cluster {
  constructor(
    readonly launcher: Launcher,
    readonly nodes: readonly Server[],
  ) {}

  /** The node that has the key, as the slots were dealt. */
  async nodeOf(key: string): Promise<Server> {
    return this.nodes[(await this.launcher.tell("node_of", key)) as number]!;
  }

  /** A name with a hash tag on each node. */
  async names(): Promise<string[]> {
    const names = new Map<Server, string>();
    for (let at = 0; names.size < 3; at++) names.set(await this.nodeOf(`{${at}}`), `{${at}}`);
    return this.nodes.map((node) => names.get(node)!);
  }

  /** All slots, as they were dealt, of a node that has no keys. */
  async moveSlots(from: Server, to: Server): Promise<void> {
    const id = String(await ask(to, "CLUSTER", "MYID"));
    const ranges = (await ask(from, "CLUSTER", "SLOTS")) as [number, number, [string, number]][];
    const [first, last] = ranges.find(([, , [, port]]) => port === from.port)!;
    const slots = Array.from({ length: last - first + 1 }, (_, at) => first + at);
    for (const node of [to, ...this.nodes.filter((node) => node !== to)]) {
      const client = new ioredis.Redis(node.url);
      await client.pipeline(slots.map((slot) => ["cluster", "setslot", slot, "node", id])).exec();
      client.disconnect();
    }
  }

  /** A replica that has all that its master has. */
  async replicaOf(master: Server): Promise<Server> {
    return new Server(this.launcher, (await this.launcher.tell("replica", master.node)) as Node);
  }

  /** Makes it a master in place of its own, and waits until those that are left know. */
  async takeOver(replica: Server): Promise<void> {
    await this.launcher.tell("take_over", replica.node);
  }
}

/** A node's own answer. */
export const ask = (node: Server, ...words: string[]) => node.launcher.tell("ask", node.node, ...words);

export async function clusterFor(scope: Scope, options: ServerOptions = {}): Promise<Cluster> {
  const { launcher, nodes } = await Launcher.start("--cluster", options);
  scope.after(() => launcher.end());
  const servers = nodes.map((node) => new Server(launcher, node));
  return new Cluster(launcher, servers);
}

export const sharedCluster = (options?: ServerOptions) => clusterFor({ after }, options);
