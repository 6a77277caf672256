/** The cluster clients of ioredis and iovalkey, on a node that refuses calls across slots. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { Cluster } from "ioredis";
import { Cluster as ValkeyCluster } from "iovalkey";
import { JointLimiter, Limiter, type Client } from "tokenbucket-redis";
import { TokenBucketStorage } from "tokenbucket-redis/nestjs";
import { RateLimiterTokenBucket } from "tokenbucket-redis/rate-limiter-flexible";

import { clientFor, PATIENT, serverFor, STILL, until } from "./servers.js";

const LIMIT = { capacity: 10, rate: STILL };

const CLUSTERS: Record<string, (port: number) => Cluster | ValkeyCluster> = {
  ioredis: (port) => new Cluster([{ host: "127.0.0.1", port }]),
  iovalkey: (port) => new ValkeyCluster([{ host: "127.0.0.1", port }]),
};

async function clusterFor(t: TestContext, library: string, module: boolean): Promise<Client> {
  const server = await serverFor(t, {
    module,
    args: ["--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"],
  });
  const { send } = await clientFor(t, server);
  await send("CLUSTER", "ADDSLOTS", ...Array.from({ length: 16_384 }, (_, slot) => String(slot)));
  await until(async () => {
    // The state is looked at as time passes.
    server.advance(1000);
    return /cluster_state:ok/.test(String(await send("CLUSTER", "INFO")));
  });
  const client = CLUSTERS[library]!(server.port);
  client.on("error", () => {});
  t.after(() => client.disconnect());
  return client;
}

for (const library of Object.keys(CLUSTERS)) {
  for (const module of [true, false]) {
    test(`${library}, ${module ? "the module" : "the script"}: limiters and drop-ins keep to a slot`, async (t) => {
      const client = await clusterFor(t, library, module);
      const options = { ...PATIENT, fallback: "script" as const };
      assert.equal((await new Limiter(client, LIMIT, options).take("a")).remaining, 9);
      const joint = new JointLimiter(client, { x: LIMIT, y: LIMIT }, options);
      assert.equal((await joint.takeAll("a", { x: 1, y: 2 })).remaining, 8);

      for (const key of ["b", "{tag}b"]) {
        const flexible = new RateLimiterTokenBucket({ ...options, storeClient: client, points: 2, duration: 60 });
        await flexible.consume(key, 2);
        await flexible.block(key, 10);
        assert.equal((await flexible.get(key))?.msBeforeNext, 10_000);
        await flexible.set(key, 1, 10);
        assert.equal((await flexible.consume(key)).remainingPoints, 0);
        assert.equal(await flexible.delete(key), true);
      }
      const storage = new TokenBucketStorage(client, options);
      const records = [];
      for (let i = 0; i < 2; i++) records.push(await storage.increment("c", 20_000, 1, 30_000, "default"));
      assert.deepEqual(
        records.map(({ isBlocked, timeToBlockExpire }) => [isBlocked, timeToBlockExpire]),
        [
          [false, 0],
          [true, 30],
        ],
      );
    });
  }
}
