/** Clients of every library and shape that the package accepts. */

import { Cluster, Redis } from "ioredis";
import * as ioredis5 from "ioredis-5";
import { Redis as Valkey } from "iovalkey";
import { createClient, createClientPool, createCluster, createSentinel } from "redis";
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

async function connected<T extends Connecting>(client: T): Promise<T> {
  client.on("error", () => {});
  const connecting = client.connect().catch(() => {});
  // A server that is not there yet is no reason not to make a limiter.
  await Promise.race([connecting, new Promise((done) => setTimeout(done, 2000))]);
  return client;
}

function quiet<T extends { on(event: "error", listener: () => void): unknown }>(client: T): T {
  client.on("error", () => {});
  return client;
}

function nodes({ cluster = [] }: Place): { url: string }[] {
  return cluster.map((url) => ({ url }));
}

function sentinels({ nodes }: { nodes: string[] }): { host: string; port: number }[] {
  return nodes.map((node) => ({ host: node.split(":")[0]!, port: Number(node.split(":")[1]) }));
}

export const CLIENTS: Record<string, (place: Place) => Promise<unknown> | unknown> = {
  "node-redis": (place) => {
    if (place.cluster) return connected(createCluster({ rootNodes: nodes(place) }));
    if (!place.sentinel) return connected(createClient({ url: place.url }));
    const { master } = place.sentinel;
    return connected(createSentinel({ name: master, sentinelRootNodes: sentinels(place.sentinel) }));
  },
  ioredis: (place) => {
    if (place.cluster) return quiet(new Cluster(place.cluster));
    if (!place.sentinel) return quiet(new Redis(place.url!));
    return quiet(new Redis({ sentinels: sentinels(place.sentinel), name: place.sentinel.master }));
  },
  iovalkey: (place) => quiet(new Valkey(place.url!)),
  "node-redis-pool": (place) => connected(createClientPool({ url: place.url })),
  "node-redis-5": (place) => {
    if (place.cluster) return connected(redis5.createCluster({ rootNodes: nodes(place) }));
    if (!place.sentinel) return connected(redis5.createClient({ url: place.url }));
    const { master } = place.sentinel;
    return connected(redis5.createSentinel({ name: master, sentinelRootNodes: sentinels(place.sentinel) }));
  },
  "node-redis-5-pool": (place) => connected(redis5.createClientPool({ url: place.url })),
  "node-redis-4": (place) =>
    connected(
      place.cluster ? redis4.createCluster({ rootNodes: nodes(place) }) : redis4.createClient({ url: place.url }),
    ),
  "ioredis-5": (place) => {
    if (place.cluster) return quiet(new ioredis5.Cluster(place.cluster));
    if (!place.sentinel) return quiet(new ioredis5.Redis(place.url!));
    return quiet(new ioredis5.Redis({ sentinels: sentinels(place.sentinel), name: place.sentinel.master }));
  },
};

export async function clientFor(library: string, place: Place): Promise<Client> {
  const make = CLIENTS[library];
  if (!make) throw new Error(`no client '${library}'`);
  return (await make(place)) as Client;
}
