/** Calls with `maxWaitMs`: they wait their turn in the server, and keep nobody else waiting. */

import assert from "node:assert/strict";
import { connect, createServer, type Socket } from "node:net";
import { test, type TestContext } from "node:test";

import { Redis } from "ioredis";
import { Limiter } from "tokenbucket-redis";
import { FakeServer } from "tokenbucket-redis/testing";

import { portOf } from "./apps.js";
import {
  ask,
  clientFor,
  clusterFor,
  emptiedClientFor,
  LIBRARIES,
  ownServerFor,
  patient,
  sharedServer,
  STILL,
  until,
  type Server,
} from "./servers.js";

const LONG = { maxWaitMs: 60_000 };
const ONE = { capacity: 1, rate: STILL };
const server = await sharedServer({ clock: false });

async function setUp(t: TestContext, library = "ioredis") {
  const connected = await emptiedClientFor(t, server, { library });
  return { ...connected, limiter: new Limiter(connected.buckets, ONE, { onError: "throw" }) };
}

async function waiting(at: Server): Promise<number> {
  return Number(/tokenbucket_waiting:(\d+)/.exec(String(await ask(at, "INFO", "everything")))?.[1]);
}

const untilWaiting = (count: number, at = server) => until(async () => (await waiting(at)) === count);

for (const library of Object.keys(LIBRARIES).filter((library) => /\d|pool|iovalkey/.test(library))) {
  test(`${library}: a take waits until somebody gives back, or its caller leaves; others go on`, async (t) => {
    const { limiter } = await setUp(t, library);
    assert.equal((await limiter.take("a", 1, LONG)).allowed, true);
    const waits = limiter.take("a", 1, LONG);
    await untilWaiting(1);
    assert.equal((await limiter.take("b")).allowed, true);
    await limiter.give("a", 1);
    const { allowed, remaining, degraded } = await waits;
    assert.deepEqual([allowed, remaining, degraded], [true, 0, false]);

    const leaving = new AbortController();
    const left = limiter.take("a", 1, { ...LONG, signal: leaving.signal });
    await untilWaiting(1);
    leaving.abort(new Error("left"));
    await assert.rejects(left, /left/);
    await untilWaiting(0);
  });
}

test("a wait outlasts the timeouts of the server and of the client", async (t) => {
  const { send } = await setUp(t);
  const client = new Redis(server.url, { commandTimeout: 50, socketTimeout: 50 });
  client.on("error", () => {});
  t.after(() => client.disconnect());
  const buckets = patient(client, { timeoutMs: 50 });
  const limiter = new Limiter(buckets, ONE, { onError: "closed" });
  await until(async () => !(await limiter.take("a")).degraded);
  const before = buckets.degradedCount;
  const waits = limiter.take("a", 1, LONG);
  await untilWaiting(1);
  await new Promise((passed) => setTimeout(passed, 4 * 50));
  assert.equal(await waiting(server), 1);
  await send("TB.GIVE", "tb:a", "1", STILL, "1");
  assert.deepEqual([(await waits).allowed, buckets.degradedCount], [true, before]);
});

test("by the script a caller who waits may leave", async (t) => {
  const { buckets } = await ownServerFor(t, { clock: false, module: false }, { by: "script" });
  const limiter = new Limiter(buckets, ONE, { onError: "throw" });
  await limiter.take("a");
  const signal = AbortSignal.timeout(50);
  await assert.rejects(limiter.take("a", 1, { maxWaitMs: 3_600_000, signal }), { name: "TimeoutError" });
});

test("a call that waits leaves no connection behind", async (t) => {
  const { buckets, send } = await ownServerFor(t, { clock: false });
  const limiter = new Limiter(buckets, ONE, { onError: "throw" });
  const connections = async () => Number(/connected_clients:(\d+)/.exec(String(await send("INFO", "clients")))?.[1]);
  await limiter.take("a");
  const before = await connections();
  await Promise.all(Array.from({ length: 5 }, () => limiter.take("a", 1, { maxWaitMs: 100 })));
  await until(async () => (await connections()) === before);
});

test("a hold that the server grants to lost connections is settled, though its caller was denied", async (t) => {
  await setUp(t);
  const opened: Socket[] = [];
  // What breaks on the client's side stays open on the server's.
  const relay = createServer((near) => {
    const far = connect(server.port, "127.0.0.1");
    opened.push(near.on("error", () => {}));
    near.on("data", (data) => far.write(data));
    far.on("error", () => {}).on("data", (data) => near.write(data));
    t.after(() => far.destroy());
  });
  const client = new Redis(await portOf(t, relay));
  t.after(() => client.disconnect());
  const limiter = new Limiter(patient(client), { capacity: 1, rate: 0 }, { onError: "throw" });
  const first = await limiter.hold("a", 1);
  const denied = limiter.hold("a", 1, { maxWaitMs: 10_000 });
  for (const count of [1, 2]) {
    await untilWaiting(count);
    opened.at(-1)!.destroy();
  }
  assert.equal((await denied).allowed, false);
  await first.settle();
  await until(async () => ((await ask(server, "TB.HOLDS", "tb:a")) as unknown[]).length === 0);
});

test("in a fake the wait takes its time", async () => {
  const fake = new FakeServer();
  const limiter = new Limiter(fake, { capacity: 1, rate: "1/s" });
  await limiter.take("a");
  assert.equal((await limiter.take("a", 1, { maxWaitMs: 1000 })).allowed, true);
  assert.equal(fake.clock.now(), 1000);
  assert.equal((await limiter.take("a", 1, { maxWaitMs: 999 })).allowed, false);
  assert.equal(fake.clock.now(), 1000);
});

test("a failover of the node sends those who wait to the new master", async (t) => {
  const cluster = await clusterFor(t);
  const { buckets } = await clientFor(t, cluster);
  const limiter = new Limiter(buckets, ONE, { onError: "throw" });
  const [name = ""] = await cluster.names();
  const master = await cluster.nodeOf(`tb:${name}`);
  const replica = await cluster.replicaOf(master);
  assert.equal((await limiter.take(name)).allowed, true);
  await until(async () => (await ask(replica, "DBSIZE")) === 1);
  const waits = limiter.take(name, 1, LONG);
  await untilWaiting(1, master);
  await cluster.takeOver(replica);
  await untilWaiting(1, replica);
  await limiter.give(name, 1);
  const { allowed, degraded } = await waits;
  assert.deepEqual([allowed, degraded], [true, false]);
});
