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

/** A server, and a client of it for whatever a test asks past its limiters. */
export async function sharedRedis(): Promise<{ server: Server; redis: ioredis.Redis }> {
  const server = await sharedServer();
  const redis = new ioredis.Redis(server.url).on("error", () => {});
  after(() => redis.disconnect());
  return { server, redis };
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

const socket = { reconnectStrategy: 50 };

export const LIBRARIES: Record<string, (url: string) => Promise<Connected>> = {
  "node-redis, a pool": (url) => overNodeRedis(redis.createClientPool({ url, socket })),
};
/** By the URL of one node. */
export const CLUSTER_LIBRARIES: typeof LIBRARIES = {};

for (const [library, { Redis, Cluster }] of Object.entries(IOREDIS)) {
  LIBRARIES[library] = async (url) => overIoredis(new Redis(url, { retryStrategy: () => 50 }));
  CLUSTER_LIBRARIES[library] = async (url) => {
    const client = new Cluster([url]);
    const connected = overIoredis(client);
    await until(() => client.status === "ready");
    return connected;
  };
}
for (const [library, { createClient, createCluster }] of Object.entries(NODE_REDIS)) {
  LIBRARIES[library] = (url) => overNodeRedis(createClient({ url, socket }));
  CLUSTER_LIBRARIES[library] = (url) => overNodeRedis(createCluster({ rootNodes: [{ url }], defaults: { socket } }));
}

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
    send: (...words) => (client as redis.RedisClientType).sendCommand(words),
    // Version 5 renamed it.
    close: () => (client.destroy ? client.destroy() : (client as AnyNodeRedis).disconnect!().catch(() => {})),
  };
}

function overIoredis(client: Client & { disconnect(): void }): Connected {
  (client as ioredis.Redis).on("error", () => {});
  return {
    client,
    buckets: patient(client),
    send: (...words) => (client as ioredis.Redis).call(...(words as [string, ...string[]])),
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

/** The same, and the server has no keys. */
export async function emptiedClientFor(t: TestContext, server: Server, library?: string): Promise<Connected> {
  const connected = await clientFor(t, server, library);
  await connected.send("FLUSHALL");
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

  /** All slots of a node that has no keys. */
  async moveSlots(from: Server, to: Server): Promise<void> {
    const [id, port] = [String(await ask(to, "CLUSTER", "MYID")), from.port];
    const ranges = (await ask(from, "CLUSTER", "SLOTS")) as [number, number, [string, number]][];
    const slots = ranges.flatMap(([first, last, [, owner]]) =>
      owner === port ? Array.from({ length: last - first + 1 }, (_, at) => first + at) : [],
    );
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

/** A client of the cluster for one test. */
export async function clusterClientFor(t: TestContext, cluster: Cluster, library: string): Promise<Client> {
  const { client, close } = await CLUSTER_LIBRARIES[library]!(cluster.nodes[0]!.url);
  t.after(close);
  return client;
}
