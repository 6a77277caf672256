/** The little that limiters need of a client library, and an adapter for each. */

/** What limiters ask of a connection; the fake of `tokenbucket-redis/testing` is one. */
export interface Connection {
  readonly isReady: boolean;
  /** Called whenever the connection is, or is again, ready to be used. */
  onReady(listener: () => void): void;
  /** Called with why it could not connect, or was disconnected. */
  onError(listener: (error: unknown) => void): void;
  send(words: readonly string[]): Promise<unknown>;
  /** All of the commands with nobody in between (MULTI/EXEC); rejects if one of them fails. */
  transaction(commands: readonly (readonly string[])[]): Promise<unknown[]>;
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
  readonly options?: { readonly keyPrefix?: string | undefined };
  call(command: string, ...args: string[]): Promise<unknown>;
  multi(commands: unknown[][]): { exec(): Promise<[error: Error | null, result: unknown][] | null> };
  connect(): Promise<unknown>;
  on(event: "ready" | "error", listener: (error?: unknown) => void): unknown;
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

export type Client = Connection | IoredisClient | NodeRedisClient;

export function connectionOf(client: Client): Connection {
  if ("onReady" in client) return client;
  // Before node-redis: ioredis has a sendCommand as well, which is another.
  if ("call" in client) return overIoredis(client);
  if ("sendCommand" in client) return overNodeRedis(client);
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
    async transaction(commands) {
      const results = await client.multi(commands.map((words) => ["call", ...words])).exec();
      return (results ?? []).map(([error, result]) => {
        if (error) throw error;
        return result;
      });
    },
    wake() {
      // What comes of it is told by the next call.
      if (client.status === "wait") client.connect().catch(() => {});
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
