/** Calls of one of several alternatives: what is held where, whatever becomes of the reply. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { JointLimiter, type Limit } from "tokenbucket-redis";
import { FakeServer } from "tokenbucket-redis/testing";

import { emptiedClientFor, patient, sharedServer, STILL, until } from "./servers.js";

const server = await sharedServer();
const LIMITS = {
  common: { capacity: 100, rate: STILL },
  "a:slots": { capacity: 1, rate: 0 },
  "a:tokens": { capacity: 10, rate: STILL },
  "b:slots": { capacity: 1, rate: 0 },
  "b:tokens": { capacity: 10, rate: STILL },
};
const EITHER = [
  { common: 1, "a:slots": 1, "a:tokens": 4 },
  { common: 1, "b:slots": 1, "b:tokens": 4 },
];

async function setUp(t: TestContext) {
  const { buckets, send } = await emptiedClientFor(t, server);
  /** The holds of all limits. */
  const held = async () => {
    const holds = Object.keys(LIMITS).map((which) => send("TB.HOLDS", `tb:{x}:${which}`));
    return (await Promise.all(holds)).flat();
  };
  return { buckets, held };
}

test("the parts of what is taken are reported, and of a denial every bucket, once, also where shadow mode lets it pass", async (t) => {
  const { buckets, held } = await setUp(t);
  for (const shadow of [false, true]) {
    const reported: string[] = [];
    const onDecision = (_: string, limit: Limit) =>
      reported.push(Object.entries(LIMITS).find(([, one]) => one === limit)![0]);
    const limiter = new JointLimiter(buckets, LIMITS, { onDecision, shadow });
    const either = ["a:tokens", "b:tokens"].map((which) => ({ common: 1, [which]: 4 }));
    if (!shadow) for (let i = 0; i < 4; i++) await limiter.takeAny("x", either);
    const { shadowed, granted } = await limiter.takeAny("x", either);
    assert.deepEqual([shadowed, granted], [shadow, Number(shadow)]);
    const passed = ["common", "a:tokens", "common", "a:tokens", "common", "b:tokens", "common", "b:tokens"];
    assert.deepEqual(reported, [...(shadow ? [] : passed), "common", "a:tokens", "b:tokens"]);
    if (shadow) await (await limiter.holdAny("x", EITHER)).settle();
  }
  assert.deepEqual(await held(), []);
});

test("a hold of an alternative that wants nothing is settled", async (t) => {
  const { buckets } = await setUp(t);
  const hold = await new JointLimiter(buckets, LIMITS).holdAny("x", [{ "a:slots": 0 }, { "b:slots": 1 }]);
  assert.deepEqual([hold.decision.granted, (await hold.settle()).allowed], [1, true]);
});

test("without a server the policy decides", async (t) => {
  const fake = new FakeServer();
  t.mock.method(fake, "send", () => Promise.reject(new Error("unplugged")));
  for (const [onError, granted] of Object.entries({ open: 1, closed: 0 } as const)) {
    const limiter = new JointLimiter(patient(fake), LIMITS, { onError: onError as "open" });
    const decision = await limiter.takeAny("x", [{ "a:tokens": 6 }, { "b:tokens": 6 }]);
    assert.deepEqual([decision.granted, decision.degraded, decision.each], [granted, true, {}]);
    const hold = await limiter.holdAny("x", EITHER);
    assert.equal(hold.decision.granted, granted);
    await hold.settle();
  }
});

test("a hold that the server has elsewhere is ended there", async (t) => {
  // The server executes the call and grants the second; the reply is lost, and this process decides for the first.
  const fake = new FakeServer();
  const other = new JointLimiter(fake, LIMITS);
  const blocking = await other.holdAny("x", EITHER);
  const limiter = new JointLimiter(patient(fake, { timeoutMs: 50, retryEveryMs: 20 }), LIMITS);
  const send = fake.send.bind(fake);
  const losing = t.mock.method(fake, "send", async (words: readonly string[]) => {
    await send(words);
    throw new Error("the connection has ended");
  });
  const hold = await limiter.holdAny("x", EITHER, { ttlMs: 60_000 });
  assert.deepEqual([hold.decision.granted, hold.decision.degraded], [1, true]);
  const slotsAreFree = async (which: string) =>
    ((await send(["TB.PEEK", `tb:{x}:${which}`, "1", "0", "1"])) as number[])[0];
  assert.equal(await slotsAreFree("b:slots"), 0, "the hold of nobody");
  losing.mock.restore();
  await until(async () => (await slotsAreFree("b:slots")) === 1);
  assert.equal(await slotsAreFree("a:slots"), 0);
  await blocking.settle(0);
  await hold.settle(0);
  await until(async () => (await slotsAreFree("a:slots")) === 1);
});

test("a hold whose reply is lost ends if the call is sent again, and is denied or not decided", async () => {
  for (const again of [async () => [0, 0, 1000, 0], () => Promise.reject(new Error("LOADING the dataset"))]) {
    const fake = new FakeServer();
    const limiter = new JointLimiter(patient(fake, { retryEveryMs: 20 }), LIMITS, { onError: "closed" });
    const send = fake.send.bind(fake);
    let sent = 0;
    fake.send = async (words) => {
      if (words[0] !== "TB.HOLDANY") return send(words);
      if (sent++ > 0) return again();
      await send(words);
      throw new Error("the connection has ended");
    };
    assert.deepEqual([(await limiter.holdAny("x", EITHER)).allowed, sent], [false, 2]);
    await until(async () => ((await send(["TB.PEEK", "tb:{x}:a:slots", "1", "0", "1"])) as number[])[0] === 1);
  }
});

test("a hold that arrives after its settlement is ended", async (t) => {
  const [fake, others] = [new FakeServer(), new FakeServer()];
  const send = (others.send = fake.send.bind(fake));
  const [limiter, other] = [fake, others].map((one) => new JointLimiter(patient(one), LIMITS));
  const slotsAreFree = async () => ((await send(["TB.PEEK", "tb:{x}:a:slots", "1", "0", "1"])) as number[])[0];
  const holdTheOther = async () => {
    const first = await other!.hold("x", { "a:slots": 1 });
    return limiter!.holdAny("x", EITHER).finally(() => first.settle());
  };
  for (const hold of [() => limiter!.hold("x", EITHER[0]!), holdTheOther]) {
    const { mock } = t.mock.method(fake, "send", send);
    mock.mockImplementationOnce(() => Promise.reject(new Error("the connection has ended")));
    const repeated = await hold();
    assert.deepEqual([repeated.allowed, repeated.decision.degraded], [true, false]);
    await repeated.settle(0);
    await send(mock.calls[0]!.arguments[0]);
    assert.equal(await slotsAreFree(), 0, "the hold of nobody");
    await until(async () => (await slotsAreFree()) === 1);
  }
});

test("callers who leave at any moment leave nothing held", async (t) => {
  const { buckets, held } = await setUp(t);
  const limiter = new JointLimiter(buckets, LIMITS, { onError: "throw" });
  let left = 0;
  for (let turns = 0; turns < 150; turns++) {
    const controller = new AbortController();
    const { signal } = controller;
    const holds = [0, 1].map(() =>
      limiter.withHoldAny("x", EITHER, (hold) => (hold.used = 0), { signal, ttlMs: 600_000 }),
    );
    const ended = Promise.allSettled(holds);
    for (let turn = 0; turn < turns % 15; turn++) await (turn % 2 ? new Promise(setImmediate) : undefined);
    controller.abort();
    left += (await ended).filter(({ status }) => status === "rejected").length;
  }
  assert.ok(left > 20, `${left} left`);
  await until(async () => (await held()).length === 0);
});
