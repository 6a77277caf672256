/** Clusters of three real nodes, by the cluster clients of ioredis, iovalkey and node-redis. */

import assert from "node:assert/strict";
import { connect, createServer } from "node:net";
import { pipeline } from "node:stream";
import { test } from "node:test";

import { CrossSlot, JointLimiter, Limiter } from "tokenbucket-redis";
import { TokenBucketStorage } from "tokenbucket-redis/nestjs";
import { RateLimiterTokenBucket } from "tokenbucket-redis/rate-limiter-flexible";

import { portOf } from "./apps.js";
import { ask, clientFor, CLUSTER_LIBRARIES, clusterFor, sharedCluster, type Server, STILL, until } from "./servers.js";

const LIMIT = { capacity: 10, rate: STILL };
const STRICT = { onError: "throw" as const };

const withModule = await sharedCluster();
const withoutModule = await sharedCluster({ module: false });
const names = await withModule.names();

for (const library of CLUSTER_LIBRARIES) {
  const own = (name: string) => `${library}:${name}`;

  test(`${library}: several names share a node by a hash tag alone`, async (t) => {
    const { buckets } = await clientFor(t, withModule, { library });
    const joint = new JointLimiter(buckets, { x: LIMIT, y: LIMIT }, { ...STRICT, prefix: own("joint:") });
    const [one = "", other = ""] = names;
    assert.equal((await joint.takeAll({ x: one, y: one }, { x: 1, y: 2 })).remaining, 8);
    const across = { x: one, y: other };
    await assert.rejects(joint.takeAll(across, { x: 1, y: 2 }), /^CrossSlot: .*share a hash tag/);
    await assert.rejects(joint.hold(across, { x: 1, y: 2 }), CrossSlot);
  });

  test(`${library}: a node is reached where the client's map of addresses has it`, async (t) => {
    const [ports, at] = [new Set<number>(), {} as Record<string, { host: string; port: number }>];
    for (const { port } of withModule.nodes) {
      const relay = createServer((near) => {
        const far = connect(port, "127.0.0.1", () => ports.add(far.localPort!));
        pipeline(near, far, near, () => {});
      });
      at[`127.0.0.1:${port}`] = { host: "127.0.0.1", port: await portOf(t, relay) };
    }
    const { buckets } = await clientFor(t, withModule, { library, at });
    for (const name of names) await new Limiter(buckets, LIMIT, STRICT).take(`nat:${name}`);
    for (const node of withModule.nodes) {
      const clients = String(await ask(node, "CLIENT", "LIST"));
      const from = [...clients.matchAll(/ addr=\S+:(\d+) .* cmd=tb.take /gi)].map(([, port]) => Number(port));
      const isRelayed = from.some((port) => ports.has(port));
      assert.ok(isRelayed, `${node.port}: ${clients}`);
    }
  });
}

test("a node whose slots are all with others is forgotten, though no other is new", async (t) => {
  const cluster = await clusterFor(t);
  const { buckets } = await clientFor(t, cluster);
  const limiter = new Limiter(buckets, LIMIT, STRICT);
  const [moving = "", staying = ""] = await cluster.names();
  for (const name of [moving, staying]) await limiter.take(name);
  const [old, other] = [await cluster.nodeOf(moving), await cluster.nodeOf(staying)];
  const isConnected = async () => /cmd=tb.take/i.test(String(await ask(old, "CLIENT", "LIST")));
  assert.equal(await isConnected(), true);

  await ask(old, "FLUSHALL");
  await cluster.moveSlots(old, other);
  await until(async () => {
    await limiter.take(moving);
    return !(await isConnected());
  });
});

test("while a slot moves, the script decides where its keys are", async (t) => {
  const cluster = await clusterFor(t, { module: false });
  const { buckets } = await clientFor(t, cluster, { by: "script" });
  const limiter = new Limiter(buckets, LIMIT, STRICT);
  const [name = "", other = ""] = await cluster.names();
  const [from, to] = [await cluster.nodeOf(name), await cluster.nodeOf(other)];
  const slot = String(await ask(from, "CLUSTER", "KEYSLOT", name));
  const set = async (node: Server, state: string, which: Server) =>
    ask(node, "CLUSTER", "SETSLOT", slot, state, String(await ask(which, "CLUSTER", "MYID")));
  await set(to, "IMPORTING", from);
  await set(from, "MIGRATING", to);
  for (const remaining of [9, 8]) assert.equal((await limiter.take(name)).remaining, remaining);
  assert.equal(await ask(to, "DBSIZE"), 1);
});

// Versions before differ in how they are asked, not in what.
for (const library of CLUSTER_LIBRARIES.filter((library) => !/\d/.test(library))) {
  const own = (name: string) => `${library}:${name}`;

  for (const [cluster, by] of [
    [withModule, "module"],
    [withoutModule, "script"],
  ] as const) {
    test(`${library}, by the ${by}: drop-ins keep to a slot`, async (t) => {
      const { buckets: storeClient } = await clientFor(t, cluster, { library, by });
      const keyPrefix = own("flexible");
      for (const key of [..."abc", "{tag}b"]) {
        const flexible = new RateLimiterTokenBucket({ storeClient, keyPrefix, points: 2, duration: 3600 });
        await flexible.consume(key, 2);
        await flexible.block(key, 10);
        const blocked = await flexible.get(key);
        assert.ok(blocked && blocked.msBeforeNext > 5000 && blocked.msBeforeNext <= 10_000, JSON.stringify(blocked));
        await flexible.set(key, 1, 10);
        assert.equal((await flexible.consume(key)).remainingPoints, 0);
        assert.equal(await flexible.delete(key), true);
      }
      const storage = new TokenBucketStorage(storeClient, { prefix: own("throttler:") });
      for (const key of "abc") {
        for (const blockedS of [0, 7200]) {
          const record = await storage.increment(key, 3_600_000, 1, 7_200_000, "default");
          assert.deepEqual([record.isBlocked, record.timeToBlockExpire], [blockedS > 0, blockedS]);
        }
      }
    });
  }
}
