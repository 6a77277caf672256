/** Clients of every library and shape that the package accepts. */

import * as ioredis from "ioredis";
import * as ioredis5 from "ioredis-5";
import { Redis as Valkey } from "iovalkey";
import * as redis from "redis";
import * as redis4 from "redis-4";
import * as redis5 from "redis-5";
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

/** By a release of ioredis. */
function byIoredis(of: Pick<typeof ioredis5, "Redis" | "Cluster">): Make {
  return ({ url, cluster, sentinel }) => {
    if (cluster) return quiet(new of.Cluster(cluster));
    if (!sentinel) return quiet(new of.Redis(url!));
    return quiet(new of.Redis({ sentinels: sentinels(sentinel), name: sentinel.master }));
  };
}

export const CLIENTS: Record<string, Make> = {
  "node-redis": byNodeRedis(redis),
  ioredis: byIoredis(ioredis as never),
  iovalkey: (place) => quiet(new Valkey(place.url!)),
  "node-redis-pool": (place) => connected(redis.createClientPool({ url: place.url })),
  "node-redis-5": byNodeRedis(redis5 as never),
  "node-redis-5-pool": (place) => connected(redis5.createClientPool({ url: place.url })),
  "node-redis-4": byNodeRedis(redis4 as never),
  "ioredis-5": byIoredis(ioredis5),
};

export async function clientFor(library: string, place: Place): Promise<Client> {
  const make = CLIENTS[library];
  if (!make) throw new Error(`no client '${library}'`);
  return (await make(place)) as Client;
}
