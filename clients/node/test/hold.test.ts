/** Holds: on a real server, whose clock the test sets. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { Denied, HoldLost, JointLimiter, Limiter, Server, type Hold } from "tokenbucket-redis";
import { FakeServer } from "tokenbucket-redis/testing";

import { clientFor, emptiedClientFor, patient, serverFor, sharedServer, STILL, until } from "./servers.js";

const server = await sharedServer();
const LIMIT = { capacity: 100, rate: STILL };
const SLOT = { capacity: 1, rate: 0 };

async function setUp(t: TestContext) {
  const { buckets, send } = await emptiedClientFor(t, server);
  const limiter = new Limiter(buckets, LIMIT);
  const left = async () => (await limiter.peek("a", 0)).remaining;
  const held = async () => ((await send("TB.HOLDS", "tb:a")) as [string, string, number][]).length;
  return { buckets, send, limiter, left, held };
}

test("work that fails settles what it used so far, which may be more than it held", async (t) => {
  const { limiter, left, held } = await setUp(t);
  for (const [used, remaining] of [
    [5, 95],
    [120, -25],
  ]) {
    const work = limiter.withHold("a", 50, (hold) => {
      hold.used = used;
      throw new Error("broken");
    });
    await assert.rejects(work, /broken/);
    assert.deepEqual([await left(), await held()], [remaining, 0]);
  }
});

test("a wrong `used` masks no error of the work, and the hold is charged", async (t) => {
  const { limiter, left, held } = await setUp(t);
  const failing = limiter.withHold("a", 10, (hold) => {
    hold.used = -1;
    throw new Error("the work failed");
  });
  await assert.rejects(failing, /the work failed/);
  assert.deepEqual([await left(), await held()], [90, 0]);
  const wrong = limiter.withHold("a", 10, (hold) => void (hold.used = { tokens: 1 }));
  await assert.rejects(wrong, /BadArgument: used/);
  assert.deepEqual([await left(), await held()], [80, 0]);
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
  let begun = false;
  const work = limiter.withHold("a", 50, () => (begun = true));
  await assert.rejects(work, (error) => {
    assert.ok(error instanceof Denied);
    assert.equal(error.decision.retryAfterMs, 30 * 360_000);
    return true;
  });
  const hold = await limiter.hold("a", 50);
  assert.deepEqual([begun, hold.allowed], [false, false]);
  await hold.settle(50);
  assert.deepEqual([await left(), await held()], [20, 0], "there is nothing to settle");
});

class Unplugged extends FakeServer {
  isAway = false;

  override async send(words: readonly string[]): Promise<unknown> {
    if (this.isAway) throw new Error("unplugged");
    return super.send(words);
  }
}

/** Renews it once the server decides again. */
async function isRenewed(hold: Hold): Promise<boolean> {
  await until(async () => !(await hold.renew()).degraded);
  return hold.allowed;
}

function onFake() {
  const fake = new Unplugged();
  const limits = new Server(fake, { retryEveryMs: 0, log: () => {} });
  return { fake, slots: new Limiter(limits, SLOT), others: new Limiter(fake, SLOT) };
}

test("a hold outlasts an outage that is shorter than its ttl, and others of this process respect it", async () => {
  const { fake, slots, others } = onFake();
  const hold = await slots.hold("a", 1, { ttlMs: 60_000 });
  fake.isAway = true;
  fake.advance(59_000);
  assert.deepEqual([(await hold.renew()).degraded, hold.lost], [true, false]);
  assert.equal((await slots.hold("a", 1)).allowed, false);
  fake.isAway = false;
  assert.deepEqual([await isRenewed(hold), hold.lost], [true, false]);
  fake.isAway = true;
  fake.advance(60_000);
  assert.deepEqual([(await hold.renew()).degraded, hold.lost], [true, false], "only the server knows");
  fake.isAway = false;
  assert.deepEqual([await isRenewed(hold), hold.lost], [false, true]);
  assert.ok(hold.signal.reason instanceof HoldLost);
  assert.equal((await others.hold("a", 1)).allowed, true);
});

test("a hold of nothing in one of its limits is not lost", async () => {
  const joint = new JointLimiter(new FakeServer(), { slots: SLOT, tokens: LIMIT });
  const hold = await joint.hold("ada", { slots: 1, tokens: 0 });
  assert.deepEqual([(await hold.renew()).allowed, hold.lost], [true, false]);
  const nothing = await joint.hold("bob", { tokens: "0" });
  assert.deepEqual([(await nothing.renew()).allowed, nothing.lost], [true, false]);
});

test("several limits are held and settled together: pools get their slots back, what is not named was used", async (t) => {
  const { buckets, send } = await setUp(t);
  const joint = new JointLimiter(buckets, { requests: LIMIT, tokens: LIMIT, running: { capacity: 1, rate: "0" } });
  const amounts = { requests: 1, tokens: 60, running: 1 };
  const first = await joint.hold("ada", amounts);
  assert.equal(first.allowed, true);
  const { allowed, decision } = await joint.hold("ada", { tokens: 10, running: 1 });
  assert.deepEqual([allowed, decision.each.tokens?.allowed, decision.each.running?.allowed], [false, true, false]);
  await assert.rejects(first.settle(5), /BadArgument: used: 5 does not say of which limit/);
  await first.settle({ tokens: 20 });
  const { each } = await joint.takeAll("ada", { requests: 0, tokens: 0 });
  assert.deepEqual([each.requests?.remaining, each.tokens?.remaining], [99, 80]);
  const wrong = joint.withHold("ada", amounts, (hold) => void (hold.used = { running: 1 }));
  await assert.rejects(wrong, /BadArgument: used: 1 of a pool/);
  assert.equal(await send("EXISTS", "tb:{ada}:running"), 0, "the slot is free");
});

test("renewals that fail during an outage log no lines of their own", async (t) => {
  const own = await serverFor(t);
  const { client } = await clientFor(t, own);
  const lines: string[] = [];
  const buckets = patient(client, { log: (line) => lines.push(line) });
  const hold = await new Limiter(buckets, SLOT, { onError: "throw" }).hold("a", 1, { ttlMs: 30 });
  await own.stop();
  await until(() => buckets.degradedCount >= 5);
  assert.deepEqual([lines.length, hold.lost], [1, false], lines.join("\n"));
  await assert.rejects(hold.settle(), /ServerAway/);
});

test("a ttl that cannot be is refused", async (t) => {
  const { limiter } = await setUp(t);
  for (const ttlMs of [0, -1, NaN, 31 * 86_400_000, "500"] as number[]) {
    await assert.rejects(limiter.hold("a", 1, { ttlMs }), /BadArgument: ttlMs: /);
  }
});
