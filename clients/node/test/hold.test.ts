/** Holds: on a real server, whose clock the test sets. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import { type Denied, JointLimiter, Limiter } from "tokenbucket-redis";
import { FakeServer } from "tokenbucket-redis/testing";

import { Unsettled } from "../dist/transport/unsettled.js";
import { emptiedClientFor, ownServerFor, patient, sharedServer, STILL, until } from "./servers.js";

const server = await sharedServer();
const LIMIT = { capacity: 100, rate: STILL };
const SLOT = { capacity: 1, rate: 0 };

async function setUp(t: TestContext) {
  const { buckets, send } = await emptiedClientFor(t, server);
  const limiter = new Limiter(buckets, LIMIT);
  const left = async () => (await limiter.peek("a", 0)).remaining;
  const held = async () => ((await send("TB.HOLDS", "tb:a")) as [string, string, number][]).length;
  return { send, limiter, left, held };
}

test("work that fails settles what it used so far, which may be more than it held, or the whole hold", async (t) => {
  const { limiter, left, held } = await setUp(t);
  for (const [used, remaining] of [
    [5, 95],
    [120, -25],
    [-1, 50],
  ]) {
    const work = limiter.withHold("a", 50, (hold) => {
      hold.used = used;
      throw new Error("broken");
    });
    await assert.rejects(work, /broken/, "which no wrong use masks");
    assert.deepEqual([await left(), await held()], [remaining, 0]);
    if (used === 120) await limiter.reset("a");
  }
  const wrong = limiter.withHold("a", 10, (hold) => void (hold.used = { tokens: 1 }));
  await assert.rejects(wrong, /BadArgument: used/);
  assert.deepEqual([await left(), await held()], [40, 0]);
});

test("a hold that is settled stays so, whoever renews it", async (t) => {
  const { limiter, left, held } = await setUp(t);
  const hold = await limiter.hold("a", 50);
  const [settled, renewed] = await Promise.all([hold.settle(5), hold.renew()]);
  assert.deepEqual(renewed, settled);
  assert.deepEqual(await hold.renew(), settled);
  assert.deepEqual([await left(), await held()], [95, 0]);
});

test("a hold that is denied is not begun", async (t) => {
  const { limiter, left, held } = await setUp(t);
  await limiter.take("a", 80);
  const denied = await limiter.withHold("a", 50, () => assert.fail("begun")).catch((error: Denied) => error);
  assert.deepEqual([denied.name, denied.decision.retryAfterMs], ["Denied", 30 * 360_000]);
  await (await limiter.hold("a", 50)).settle(50);
  assert.deepEqual([await left(), await held()], [20, 0], "there is nothing to settle");
});

test("holds of an outage respect each other, and end in this process too when the server settles them", async (t) => {
  const fake = new FakeServer();
  const slots = new Limiter(patient(fake, { retryEveryMs: 0 }), SLOT);
  const unplug = () => t.mock.method(fake, "send", () => Promise.reject(new Error("unplugged"))).mock;
  const unplugged = unplug();
  const hold = await slots.hold("a", 1);
  assert.deepEqual([hold.allowed, (await slots.hold("a", 1)).allowed], [true, false]);
  unplugged.restore();
  await until(async () => !(await slots.peek("a", 0)).degraded);
  await hold.settle();
  unplug();
  assert.equal((await slots.hold("a", 1)).allowed, true);
});

test("a hold whose renewals are refused is lost when its time is over", async (t) => {
  const { limiter, send } = await setUp(t);
  const hold = await limiter.hold("a", 1, { ttlMs: 900 });
  const began = performance.now();
  await send("SET", "tb:a", "of another type");
  await until(() => hold.lost);
  assert.ok(performance.now() - began > 500, "the first refusal says nothing about the hold");
  await assert.rejects(hold.settle(), /WRONGTYPE/);
});

test("a late settlement ends a remembered denial", async (t) => {
  const fake = new FakeServer();
  const limiter = new Limiter(patient(fake, { retryEveryMs: 20 }), LIMIT, { rememberDenials: 10 });
  const hold = await limiter.hold("a", 100);
  const send = fake.send.bind(fake);
  const losing = t.mock.method(fake, "send", async (words: readonly string[]) => {
    if (words[0] === "TB.MSETTLE") throw new Error("the connection has ended");
    return send(words);
  });
  assert.equal((await hold.settle(0)).lost, true);
  assert.equal((await limiter.take("a")).allowed, false);
  losing.mock.restore();
  await until(async () => (await limiter.take("a")).allowed);
});

test("a hold in doubt is settled until its ttl is over, and forgotten when others take its place", async () => {
  const unsettled = new Unsettled(async () => [], 50);
  let settled = 0;
  const began = performance.now();
  await unsettled.settle(["TB.MSETTLE", "1", "old"], 2000, 0, began - 60_000, () => settled++);
  assert.equal(settled, 3, "the last at the end of its ttl, and not as late as its call was early");
  assert.ok(performance.now() - began < 30_000);
  const settleInAnHour = (id: number) => {
    const onSettled = () => {};
    void unsettled.settle(["TB.MSETTLE", "1", String(id)], 7_200_000, 3_600_000, began, onSettled);
    return new WeakRef(onSettled);
  };
  const oldest = settleInAnHour(0);
  for (let id = 1; id <= 1000; id++) settleInAnHour(id);
  await new Promise((turn) => setTimeout(turn)); // until then it is kept
  setFlagsFromString("--expose-gc");
  runInNewContext("gc")();
  assert.equal(oldest.deref(), undefined, "its timer has gone with it");
});

test("a hold of nothing in one of its limits is not lost", async () => {
  const joint = new JointLimiter(new FakeServer(), { slots: SLOT, tokens: LIMIT });
  const hold = await joint.hold("ada", { slots: 1, tokens: 0 });
  assert.deepEqual([(await hold.renew()).allowed, hold.lost], [true, false]);
  await assert.rejects(hold.settle(5), /BadArgument: used: 5 does not say of which limit/);
  const nothing = await joint.hold("bob", { tokens: "1e-12" });
  assert.deepEqual([(await nothing.renew()).allowed, nothing.lost], [true, false]);
});

test("renewals that fail during an outage log no lines of their own", async (t) => {
  const lines: string[] = [];
  const { own, buckets } = await ownServerFor(t, {}, { log: (line) => lines.push(line) });
  const hold = await new Limiter(buckets, SLOT, { onError: "throw" }).hold("a", 1, { ttlMs: 30 });
  await own.stop();
  await until(() => buckets.degradedCount >= 5);
  assert.deepEqual([lines.length, hold.lost], [1, false], lines.join("\n"));
  await assert.rejects(hold.settle(), /ServerAway/);
});
