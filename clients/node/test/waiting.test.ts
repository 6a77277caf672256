/** Calls with `maxWaitMs`: they wait their turn in the server, and keep nobody else waiting. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { Redis } from "ioredis";
import { BadArgument, Denied, JointLimiter, Limiter, ModuleMissing, type ShareOptions } from "tokenbucket-redis";
import { FakeServer } from "tokenbucket-redis/testing";

import {
  ask,
  clientFor,
  CLUSTER_LIBRARIES,
  clusterClientFor,
  clusterFor,
  LIBRARIES,
  patient,
  serverFor,
  sharedServer,
  STILL,
  until,
  type Server,
} from "./servers.js";

const LONG = { maxWaitMs: 60_000 };
const ONE = { capacity: 1, rate: STILL };
const server = await sharedServer({ clock: false });

async function setUp(t: TestContext, library = "ioredis") {
  const connected = await clientFor(t, server, library);
  await connected.send("FLUSHALL");
  return { ...connected, limiter: new Limiter(connected.buckets, ONE, { onError: "throw" }) };
}

async function waiting(at: Server): Promise<number> {
  return Number(/tokenbucket_waiting:(\d+)/.exec(String(await ask(at, "INFO", "everything")))?.[1]);
}

async function untilWaiting(count: number, at = server): Promise<void> {
  await until(async () => (await waiting(at)) === count);
}

for (const library of Object.keys(LIBRARIES)) {
  test(`${library}: a take waits until somebody gives back, and keeps nobody else`, async (t) => {
    const { limiter } = await setUp(t, library);
    assert.equal((await limiter.take("a", 1, LONG)).allowed, true);
    const waits = limiter.take("a", 1, LONG);
    await untilWaiting(1);
    assert.equal((await limiter.take("b")).allowed, true);
    await limiter.give("a", 1);
    const { allowed, remaining, degraded } = await waits;
    assert.deepEqual([allowed, remaining, degraded], [true, 0, false]);
  });

  test(`${library}: a caller who leaves is out of the queue`, async (t) => {
    const { limiter } = await setUp(t, library);
    await limiter.take("a");
    const leaving = new AbortController();
    const waits = limiter.take("a", 1, { ...LONG, signal: leaving.signal });
    await untilWaiting(1);
    leaving.abort(new Error("left"));
    await assert.rejects(waits, /left/);
    await untilWaiting(0);
    await limiter.give("a", 1);
    assert.equal((await limiter.take("a")).allowed, true);
  });
}

test("when the time is over the call is denied", async (t) => {
  const { limiter } = await setUp(t);
  await limiter.take("a");
  const began = performance.now();
  const { allowed, degraded, retryAfterMs } = await limiter.take("a", 1, { maxWaitMs: 300 });
  assert.ok(performance.now() - began >= 299);
  assert.deepEqual([allowed, degraded], [false, false]);
  assert.ok(retryAfterMs > 300_000);
});

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

test("fifty who wait are served in order", async (t) => {
  const { limiter, buckets } = await setUp(t);
  const wide = new Limiter(buckets, { capacity: 50, rate: STILL }, { onError: "throw" });
  await wide.take("a", 50);
  const served: number[] = [];
  const waits: Promise<unknown>[] = [];
  for (let at = 0; at < 50; at++) {
    waits.push(wide.take("a", 1, LONG).then(({ allowed }) => allowed && served.push(at)));
    await untilWaiting(at + 1);
  }
  assert.equal((await limiter.take("b")).allowed, true);
  for (let count = 1; count <= 50; count++) {
    await wide.give("a", 1);
    await until(() => served.length === count);
  }
  await Promise.all(waits);
  assert.deepEqual(served, [...served.keys()]);
});

/** Begins calls of these shares, each once the one before waits; then gives a token at a time, and notes whom it served. */
async function served(limiter: Limiter, op: "take" | "hold", shares: ShareOptions[]): Promise<(string | undefined)[]> {
  const order: (string | undefined)[] = [];
  await limiter.take("a");
  const waits = [];
  for (const share of shares) {
    waits.push(limiter[op]("a", 1, { ...LONG, ...share }).then(({ allowed }) => allowed && order.push(share.share)));
    await untilWaiting(waits.length);
  }
  for (let count = 1; count <= shares.length; count++) {
    await limiter.give("a", 1);
    await until(() => order.length === count);
  }
  await Promise.all(waits);
  return order;
}

for (const op of ["take", "hold"] as const) {
  test(`${op}: a tenant with one call is served second beside one with many`, async (t) => {
    const { limiter } = await setUp(t);
    const loud = { share: "loud" };
    const order = await served(limiter, op, [loud, loud, loud, loud, { share: "quiet" }]);
    assert.deepEqual(order, ["loud", "quiet", "loud", "loud", "loud"]);
  });

  test(`${op}: tenants are served in proportion to their weights`, async (t) => {
    const { limiter } = await setUp(t);
    const both = [
      { share: "heavy", weight: 2.5 },
      { share: "light", weight: 0.5 },
    ];
    const order = await served(limiter, op, [...both, ...both, ...both, ...both, ...both, ...both]);
    assert.equal(order.slice(0, 6).filter((share) => share === "heavy").length, 5);
  });
}

test("calls without a share are one tenant", async (t) => {
  const { limiter } = await setUp(t);
  const order = await served(limiter, "take", [{}, {}, {}, { share: "quiet" }]);
  assert.deepEqual(order, [undefined, "quiet", undefined, undefined]);
});

test("a hold with a share reports its limit, renews and settles as any other", async (t) => {
  const { buckets } = await setUp(t);
  const limiter = new Limiter(buckets, { capacity: 5, rate: STILL }, { onError: "throw" });
  const hold = await limiter.hold("a", 3, { ...LONG, share: "acme", weight: 0.001 });
  assert.deepEqual([hold.allowed, hold.decision.remaining, hold.decision.each[""]?.remaining], [true, 2, 2]);
  assert.equal((await hold.renew()).remaining, 2);
  assert.equal((await hold.settle(1)).remaining, 4);
});

test("a caller with a share who leaves is out of the queue", async (t) => {
  const { limiter } = await setUp(t);
  for (const op of ["take", "hold"] as const) {
    await limiter.reset("a");
    await limiter.take("a");
    const leaving = new AbortController();
    const waits = limiter[op]("a", 1, { ...LONG, share: "acme", signal: leaving.signal });
    await untilWaiting(1);
    leaving.abort(new Error("left"));
    await assert.rejects(waits, /left/);
    await untilWaiting(0);
  }
});

test("a share that cannot be is an error", async (t) => {
  const { limiter, buckets } = await setUp(t);
  const ofWeight = [0, -1, 0.0009, 1000.001, NaN, Infinity].map((weight) => ({ share: "acme", weight }));
  const ofShare = ["", "é".repeat(65), 7 as never].map((share) => ({ share }));
  for (const maxWaitMs of [0, 60_000]) {
    for (const [named, options] of [...ofWeight, { weight: 2 }, ...ofShare].map(
      (one) => [new RegExp(`^${"weight" in one ? "weight" : "share"}: `), { maxWaitMs, ...one }] as const,
    )) {
      const isNamed = (error: unknown) => error instanceof BadArgument && named.test(error.message);
      await assert.rejects(limiter.take("a", 1, options), isNamed);
      await assert.rejects(limiter.hold("a", 1, options), isNamed);
    }
  }
  const joint = new JointLimiter(buckets, { a: ONE });
  const shared = { ...LONG, share: "acme" };
  await assert.rejects(joint.takeAll("a", { a: 1 }, shared), /^BadArgument: share: calls of several limits/);
  await assert.rejects(joint.hold("a", { a: 1 }, shared), /^BadArgument: share: calls of several limits/);
  assert.equal((await limiter.take("a", 1, { ...LONG, share: "é".repeat(64), weight: 1000 })).allowed, true);
});

test("a joint take waits for all or takes nothing", async (t) => {
  const { buckets, send } = await setUp(t);
  const both = { requests: { capacity: 2, rate: STILL }, tokens: { capacity: 10, rate: STILL } };
  const joint = new JointLimiter(buckets, both, { onError: "throw" });
  await joint.takeAll("a", { tokens: 10 });
  const waits = joint.takeAll("a", { requests: 1, tokens: 1 }, LONG);
  await untilWaiting(1);
  await send("TB.GIVE", "tb:{a}:tokens", "10", STILL, "1");
  const { allowed, each } = await waits;
  assert.deepEqual([allowed, each.requests?.remaining, each.tokens?.remaining], [true, 1, 0]);
  assert.equal((await joint.takeAll("a", { requests: 2 }, { maxWaitMs: 50 })).allowed, false);
});

test("a hold waits for the slot of another", async (t) => {
  const { buckets } = await setUp(t);
  const slots = new Limiter(buckets, { capacity: 1, rate: 0 }, { onError: "throw" });
  const first = await slots.hold("a", 1);
  const waits = slots.withHold("a", 1, () => "worked", LONG);
  await untilWaiting(1);
  await assert.rejects(
    slots.withHold("a", 1, () => assert.fail(), { maxWaitMs: 50 }),
    Denied,
  );
  await first.settle();
  assert.equal(await waits, "worked");
  assert.equal((await slots.peek("a")).allowed, true);
});

test("a call that waits asks the server whatever is batched or remembered", async (t) => {
  const { buckets, send } = await setUp(t);
  const limiter = new Limiter(buckets, ONE, { onError: "throw", batch: 5, rememberDenials: 10 });
  assert.equal((await limiter.take("a")).allowed, true);
  assert.equal((await limiter.take("a")).allowed, false);
  const waits = limiter.take("a", 1, LONG);
  await untilWaiting(1);
  await send("TB.GIVE", "tb:a", "1", STILL, "1");
  assert.equal((await waits).allowed, true);
});

test("a wait that cannot be is an error", async (t) => {
  const { limiter, buckets } = await setUp(t);
  const joint = new JointLimiter(buckets, { a: ONE });
  for (const maxWaitMs of [-1, Infinity, NaN, 31 * 86_400_000]) {
    await assert.rejects(limiter.take("a", 1, { maxWaitMs }), BadArgument);
    await assert.rejects(limiter.hold("a", 1, { maxWaitMs }), /maxWaitMs/);
    await assert.rejects(joint.takeAll("a", { a: 1 }, { maxWaitMs }), /maxWaitMs/);
  }
});

test("where too many wait the server decides at once", async (t) => {
  const { limiter, send } = await setUp(t);
  const isSet = await send("CONFIG", "SET", "tokenbucket.max-waiters", "1").catch(() => undefined);
  if (!isSet) return t.skip("Redis 6 has no CONFIG SET for modules");
  t.after(() => ask(server, "CONFIG", "SET", "tokenbucket.max-waiters", "1000"));
  await limiter.take("a");
  const waits = limiter.take("a", 1, LONG);
  await untilWaiting(1);
  assert.equal((await limiter.take("a", 1, LONG)).allowed, false);
  assert.equal((await limiter.take("b", 1, LONG)).allowed, true);
  await limiter.give("a", 1);
  assert.equal((await waits).allowed, true);
});

test("a server that ends meanwhile leaves the call to onError", async (t) => {
  const own = await serverFor(t, { clock: false });
  const { buckets } = await clientFor(t, own);
  const limiter = new Limiter(buckets, ONE, { onError: "closed" });
  assert.equal((await limiter.take("a")).allowed, true);
  const waits = limiter.take("a", 1, LONG);
  await untilWaiting(1, own);
  await own.stop();
  const { allowed, degraded } = await waits;
  assert.deepEqual([allowed, degraded], [false, true]);
});

test("a server that is silent is not taken for one that lets wait", async (t) => {
  const own = await serverFor(t, { clock: false });
  const { client } = await clientFor(t, own);
  const limiter = new Limiter(patient(client, { timeoutMs: 200 }), ONE);
  await until(async () => !(await limiter.take("a", 1, { maxWaitMs: 1 })).degraded);
  own.signal("SIGSTOP");
  const began = performance.now();
  const { allowed, degraded } = await limiter.take("b", 1, LONG);
  assert.ok(performance.now() - began < LONG.maxWaitMs / 2);
  assert.deepEqual([allowed, degraded], [true, true]);
  own.signal("SIGCONT");
  await untilWaiting(0, own);
});

test("without the module the call comes back at the told moments", async (t) => {
  const bare = await serverFor(t, { clock: false, module: false });
  const { client } = await clientFor(t, bare);
  const flowing = { capacity: 1, rate: "5/s" };
  await assert.rejects(new Limiter(patient(client), flowing).take("a", 1, LONG), (error) => {
    assert.match((error as Error).message, /TB\.BTAKE/);
    return error instanceof ModuleMissing;
  });
  const limiter = new Limiter(patient(client, { fallback: "script" }), flowing, { onError: "throw" });
  for (let at = 0; at < 3; at++) assert.equal((await limiter.take("a", 1, LONG)).allowed, true);
  assert.equal((await limiter.take("a", 1, { maxWaitMs: 1 })).allowed, false);
  const stats = String(await ask(bare, "INFO", "commandstats"));
  const calls = Number(/cmdstat_evalsha:calls=(\d+)/.exec(stats)?.[1]);
  assert.ok(calls >= 5 && calls < 20, stats);
  const leaving = AbortSignal.timeout(50);
  const slow = new Limiter(patient(client, { fallback: "script" }), ONE, { onError: "throw" });
  await slow.take("b");
  await assert.rejects(slow.take("b", 1, { maxWaitMs: 3_600_000, signal: leaving }), { name: "TimeoutError" });
});

test("connections by which nobody waits are closed", async (t) => {
  const own = await serverFor(t, { clock: false });
  const { buckets, send } = await clientFor(t, own);
  const limiter = new Limiter(buckets, ONE, { onError: "throw" });
  const connections = async () => Number(/connected_clients:(\d+)/.exec(String(await send("INFO", "clients")))?.[1]);
  await limiter.take("a");
  const before = await connections();
  await Promise.all(Array.from({ length: 5 }, () => limiter.take("a", 1, { maxWaitMs: 100 })));
  assert.equal(await connections(), before + 5);
  await until(async () => (await connections()) === before);
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

test("what is granted while callers leave comes back", async (t) => {
  const { buckets, send } = await setUp(t);
  const limiter = new Limiter(buckets, { capacity: 20, rate: STILL }, { onError: "throw" });
  await limiter.take("a", 20);
  const callers = Array.from({ length: 20 }, () => new AbortController());
  const ends = Promise.allSettled(callers.map(({ signal }) => limiter.take("a", 1, { ...LONG, signal })));
  await untilWaiting(20);
  const giving = limiter.give("a", 20);
  for (const caller of callers) caller.abort(new Error("left"));
  await giving;
  const kept = (await ends).filter(({ status }) => status === "fulfilled").length;
  await until(async () => {
    const state = (await send("TB.STATE", "tb:a")) as [string] | null;
    return Number(state?.[0] ?? 20) === 20 - kept;
  });
});

for (const library of ["ioredis", "node-redis"]) {
  test(`${library}: a client that may not end waits by command closes the connection`, async (t) => {
    const { send } = await setUp(t, library);
    await send("ACL", "SETUSER", "narrow", "on", "nopass", "~*", "+@all", "-client");
    t.after(() => ask(server, "ACL", "DELUSER", "narrow"));
    const url = server.url.replace("//", "//narrow:x@");
    const { client, close } = await LIBRARIES[library]!(url);
    t.after(close);
    const limiter = new Limiter(patient(client), ONE, { onError: "throw" });
    await limiter.take("a");
    const leaving = new AbortController();
    const waits = limiter.take("a", 1, { ...LONG, signal: leaving.signal });
    await untilWaiting(1);
    leaving.abort(new Error("left"));
    await assert.rejects(waits, /left/);
    await untilWaiting(0);
  });
}

for (const library of Object.keys(CLUSTER_LIBRARIES)) {
  test(`${library}: a failover of the node sends those who wait to the new master`, async (t) => {
    const cluster = await clusterFor(t);
    const client = await clusterClientFor(t, cluster, library);
    const limiter = new Limiter(patient(client), ONE, { onError: "throw" });
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
}
