/** Clients of every library and shape that the package accepts. */

import type * as ioredis5 from "ioredis-5";
import type * as redis from "redis";
import type { Client } from "tokenbucket-redis";

export interface Place {
  url?: string;
  cluster?: string[];
  sentinel?: { nodes: string[]; master: string };
}

/** What all that connect by a call have in common. */
interface Connecting {
  on(event: "error", listener: () => void): unknown;
  connect(): Promise<unknown>;
}

async function connected(client: Connecting): Promise<unknown> {
  client.on("error", () => {});
  const connecting = client.connect().catch(() => {});
  // A server that is not there yet is no reason not to make a limiter.
  await Promise.race([connecting, new Promise((done) => setTimeout(done, 2000))]);
  return client;
}

function quiet(client: Pick<Connecting, "on">): unknown {
  client.on("error", () => {});
  return client;
}

function sentinels({ nodes }: { nodes: string[] }): { host: string; port: number }[] {
  return nodes.map((node) => ({ host: node.split(":")[0]!, port: Number(node.split(":")[1]) }));
}

type Make = (place: Place) => unknown;

/** By a release of node-redis. */
function byNodeRedis(of: Pick<typeof redis, "createClient" | "createCluster" | "createSentinel">): Make {
  return ({ url, cluster, sentinel }) => {
    if (cluster) return connected(of.createCluster({ rootNodes: cluster.map((node) => ({ url: node })) }));
    if (!sentinel) return connected(of.createClient({ url }));
    return connected(of.createSentinel({ name: sentinel.master, sentinelRootNodes: sentinels(sentinel) }));
  };
}

/** By the pool of a release of node-redis. */
function pooled(of: Pick<typeof redis, "createClientPool">): Make {
  return ({ url }) => connected(of.createClientPool({ url }));
}

/** By a release of ioredis, or iovalkey. */
function byIoredis(of: Pick<typeof ioredis5, "Redis" | "Cluster">): Make {
  return ({ url, cluster, sentinel }) => {
    if (cluster) return quiet(new of.Cluster(cluster));
    if (!sentinel) return quiet(new of.Redis(url!));
    return quiet(new of.Redis({ sentinels: sentinels(sentinel), name: sentinel.master }));
  };
}

/** Each library is loaded when a scenario asks for it, so that a driver starts soon. */
const CLIENTS: Record<string, () => Promise<Make>> = {
  "node-redis": async () => byNodeRedis(await import("redis")),
  ioredis: async () => byIoredis((await import("ioredis")) as never),
  iovalkey: async () => byIoredis((await import("iovalkey")) as never),
  "node-redis-pool": async () => pooled(await import("redis")),
  "node-redis-5": async () => byNodeRedis((await import("redis-5")) as never),
  "node-redis-5-pool": async () => pooled((await import("redis-5")) as never),
  "node-redis-4": async () => byNodeRedis((await import("redis-4")) as never),
  "ioredis-5": async () => byIoredis(await import("ioredis-5")),
};

export const LIBRARIES = Object.keys(CLIENTS);

export async function clientFor(library: string, place: Place): Promise<Client> {
  const make = await CLIENTS[library]?.();
  if (!make) throw new Error(`no client '${library}'`);
  return (await make(place)) as Client;
}
