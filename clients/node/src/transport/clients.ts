/** Which driver made a client. */

import { BadArgument } from "../values/errors.js";
import type { Connection, InProcess, Route } from "./driver.js";
import { ioredis, ioredisCluster, type IoredisClient, type IoredisCluster } from "./ioredis.js";
import * as redis from "./node-redis.js";

export type Client =
  | InProcess
  | IoredisClient
  | IoredisCluster
  | redis.NodeRedisClient
  | redis.NodeRedisCluster
  | redis.NodeRedisPool
  | redis.NodeRedisSentinel;

/** The properties by which each kind of client is known. */
const KINDS: [names: string[], route: (client: never) => Route][] = [
  [["clock", "send"], inProcess],
  [["slots", "nodes", "status"], ioredisCluster],
  [["call", "duplicate", "status"], ioredis],
  [["slots", "masters", "nodeClient"], redis.nodeRedisCluster],
  [["execute", "totalClients"], redis.nodeRedisPool],
  [["getMasterNode", "acquire"], redis.nodeRedisSentinel],
  [["sendCommand", "duplicate", "isReady"], redis.nodeRedis],
];

export function routeOf(client: Client): Route {
  const { keyPrefix } = (client as { options?: { keyPrefix?: unknown } } | undefined)?.options ?? {};
  if (keyPrefix) throw new BadArgument("client: has a keyPrefix, which does not reach every key; use `prefix`");
  const isObject = client !== null && typeof client === "object";
  for (const [names, route] of KINDS) {
    if (isObject && names.every((name) => name in client)) return route(client as never);
  }
  const what =
    isObject && "then" in client ? "is a promise: await it" : "is neither of ioredis nor of iovalkey nor of node-redis";
  throw new BadArgument(`client: ${what}`);
}

/** Nothing comes between the commands of a transaction there. */
const OF_A_SERVER = new Set(["PING", "MULTI", "EXEC"]);

function inProcess(client: InProcess): Route {
  const connection: Connection = {
    isOpen: true,
    connect: async () => {},
    send: async (words) => (OF_A_SERVER.has(words[0]!) ? [] : client.send(words)),
    close() {},
  };
  return { clock: client.clock, addressOf: () => "", connectionTo: () => connection };
}
