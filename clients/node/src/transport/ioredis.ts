/** ioredis and iovalkey, which is made from it. */

import type { Writable } from "node:stream";

import { CONNECT_WITHIN_MS } from "../values/constants.js";
import { isReply, textOf } from "../values/errors.js";
import type { Command } from "./command.js";
import type { Connection, Emitter, Route } from "./driver.js";
import { addressIn, ClusterRoute, hostAndPort, single } from "./route.js";

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

/** Without them, the driver queues, reconnects, or counts a busy event loop as silence. */
const OPTIONS = {
  lazyConnect: true,
  connectTimeout: 0,
  retryStrategy: null,
  reconnectOnError: null,
  enableOfflineQueue: false,
  enableReadyCheck: false,
  enableAutoPipelining: false,
  commandTimeout: undefined,
  socketTimeout: undefined,
  monitor: false,
  readOnly: false,
};

export function ioredis(client: IoredisClient): Route {
  const { sentinels } = (client.options ?? {}) as { sentinels?: unknown[] };
  // Lets the driver ask one after the other while a call waits for its connection, though the first ones are silent.
  const ms = sentinels && Math.floor(CONNECT_WITHIN_MS / (sentinels.length + 1));
  const inTimeForAll = ms && { connectTimeout: ms, sentinelCommandTimeout: ms, sentinelRetryStrategy: null };
  const make = () => client.duplicate({ ...OPTIONS, ...inTimeForAll });
  return single(addressIn(client.options), () => new IoredisConnection(make));
}

export function ioredisCluster(client: IoredisCluster): Route {
  let ready: Promise<void> | undefined;
  const { natMap } = ((client as { options?: object }).options ?? {}) as { natMap?: Record<string, object> };
  const connectionTo = (address: string) =>
    new IoredisConnection(async () => {
      if (client.status !== "ready") await (ready ??= readiness(client).finally(() => (ready = undefined)));
      const [one] = client.nodes();
      if (!one) throw new Error("no node of the cluster is known");
      return one.duplicate({ ...OPTIONS, ...(address && hostAndPort(address)) });
    });
  const reachable = (address: string) => (natMap?.[address] ? addressIn(natMap[address]) : address);
  // ioredis returns to its first addresses when it can connect to no node, and it connects only for its own calls.
  const refresh = () => client.nodes().forEach((node) => void node.connect().catch(() => {}));
  return new ClusterRoute((slot) => client.slots[slot]?.[0], connectionTo, reachable, refresh);
}

function readiness(client: IoredisCluster): Promise<void> {
  return new Promise((ready, failed) => {
    client.once("ready", () => ready());
    client.once("end", () => failed(new Error("the cluster client is closed")));
    if (client.status === "wait") client.connect().catch(failed);
  });
}

/** Returns why a connection failed: of a sentinel what it has replied, which the driver puts behind a text of its own. */
function reasonOf(error: unknown, client: IoredisClient): unknown {
  delete (error as { command?: unknown } | undefined)?.command; // which has the password
  const [all, said] =
    /^All sentinels are unreachable and retry is disabled\.(?: Last error: (.*))?$/.exec(textOf(error)) ?? [];
  if (all === undefined || (said && !isReply(said))) return error;
  return new Error(said ?? `ERR no sentinel knows the master '${addressIn(client.options)}'`, { cause: error });
}

class IoredisConnection implements Connection {
  #client: (IoredisClient & { stream?: Writable & { unref(): void } }) | undefined;
  #isClosed = false;
  #reason: unknown;

  constructor(readonly make: () => IoredisClient | Promise<IoredisClient>) {}

  get isOpen(): boolean {
    const { status, stream } = this.#client ?? {};
    // The driver says "ready" until it has closed a connection that the server has ended.
    return status === "ready" && stream?.writable !== false && !this.#isClosed;
  }

  get refusal(): unknown {
    return isReply(this.#reason) ? this.#reason : undefined;
  }

  async connect(): Promise<void> {
    const client = (this.#client = await this.make());
    client.on("error", (error) => (this.#reason ??= reasonOf(error, client)));
    if (this.#isClosed) throw new Error("closed while it connected");
    await client.connect().catch((error: unknown) => {
      throw this.#reason ?? reasonOf(error, client);
    });
    // An idle connection keeps no process alive. While a reply is due, the time for it does.
    this.#client?.stream?.unref();
  }

  send(words: Command): Promise<unknown> {
    const { stream } = this.#client!;
    if (stream?.writableCorked === 0) {
      // Joins all commands of one turn of the event loop into one write.
      stream.cork();
      process.nextTick(() => stream.uncork());
    }
    return this.#client!.call(...(words as [string, ...string[]]));
  }

  close(): void {
    if (this.#isClosed) return; // the driver would add a listener each time
    this.#isClosed = true;
    this.#client?.disconnect();
    // Without this, the driver waits for the server to close its end.
    this.#client?.stream?.destroy();
  }
}
