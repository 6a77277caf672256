/** Every operation, through every client library, on a real server whose clock the test sets. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  JointLimiter,
  Limiter,
  type Hold,
  type Decision,
  type Limit,
  type OnDecision,
  type Server,
} from "tokenbucket-redis";
import { FakeServer } from "tokenbucket-redis/testing";

import { emptiedClientFor, ownServerFor, sharedServer, until } from "./servers.js";

const server = await sharedServer();
const LIMIT: Limit = { capacity: 10, rate: "5/s" };

test("takeAll is by one name or one for each", async () => {
  const joint = new JointLimiter(new FakeServer(), { requests: LIMIT, tokens: { capacity: 1000, rate: "1000/m" } });
  for (const name of ["ada", { requests: "{ada}", tokens: "{ada}:model" }]) {
    assert.equal((await joint.takeAll(name, { requests: 1, tokens: 800 })).each.tokens?.remaining, 200);
  }
});

test("wait sleeps until its turn, which may be later than a timer of Node can be", async (t) => {
  const { buckets } = await emptiedClientFor(t, server);
  const limiter = new Limiter(buckets, { capacity: 1, rate: "10/s" });
  await limiter.take("a");
  const began = performance.now();
  assert.equal((await limiter.wait("a", 1, { maxWaitMs: 1000 })).retryAfterMs, 100);
  assert.ok(performance.now() - began >= 99, "it has slept");

  const limit = { capacity: 1, rate: "1/30d" };
  await limiter.take("b", 1, { limit });
  const signal = AbortSignal.timeout(50);
  await assert.rejects(limiter.wait("b", 1, { maxWaitMs: 31 * 86_400_000, limit, signal }), /TimeoutError/);
});

test("onDecision hears of several limits what each decided, and of a hold in shadow mode once", async (t) => {
  const fake = new FakeServer();
  const heard: unknown[] = [];
  const onDecision: OnDecision = (name, _limit, { allowed, degraded, shadowed }) =>
    heard.push([name, allowed, degraded, shadowed]);
  const none = { capacity: 0, rate: "5/s" };
  const joint = new JointLimiter(fake, { none, many: LIMIT }, { onDecision });
  await joint.takeAll("a", { none: 1, many: 1 });
  await (await new Limiter(fake, none, { onDecision, shadow: true }).hold("a", 1)).settle();
  t.mock.method(fake, "send", () => Promise.reject(new Error("unplugged")));
  await joint.takeAll("a", { none: 1, many: 1 });
  assert.deepEqual(heard, [
    ["{a}:none", false, false, false],
    ["{a}:many", true, false, false],
    ["a", true, false, true],
    ["{a}:none", false, true, false],
    ["{a}:many", true, true, false],
  ]);
});

test("a name that is a number is one as its text", async () => {
  const limiter = new Limiter(new FakeServer(), LIMIT);
  assert.equal((await limiter.take(42 as never)).remaining, (await limiter.peek("42", 0)).remaining);
});

test("a wait that this process has booked gives nothing back to the server", async (t) => {
  const { own, buckets } = await ownServerFor(t, {}, { timeoutMs: 500, retryEveryMs: 50 });
  const limiter = new Limiter(buckets, { capacity: 1, rate: "10/h" });
  await limiter.take("a");
  own.signal("SIGSTOP");
  await limiter.take("a");
  const leaving = new AbortController();
  const waits = limiter.wait("a", 1, { maxWaitMs: 3_600_000, signal: leaving.signal });
  own.signal("SIGCONT");
  await until(async () => !(await limiter.peek("a", 0)).degraded);
  leaving.abort(new Error("left"));
  await assert.rejects(waits, /left/);
  assert.equal((await limiter.peek("a", 0)).remaining, 0);
});

type OfDecisions = keyof ConstructorParameters<typeof Decision>[0] | "headers" | "retryAfterS";
type OfHolds = "allowed" | "decision" | "id" | "lost" | "renew" | "settle" | "signal" | "used" | symbol;

test("editors show of a server, a hold and a decision what a program uses", () => {
  const strange: never[][] = [
    [] as Exclude<keyof Server, "close" | "degradedCount">[],
    [] as Exclude<keyof Hold, OfHolds>[],
    [] as Exclude<keyof Decision, OfDecisions>[],
  ];
  assert.deepEqual(strange.flat(), []); // the compiler has looked
});

test("the caller's mistakes are thrown by the script, too", async (t) => {
  const { buckets, send } = await ownServerFor(t, { module: false }, { by: "script" });
  const limiter = new Limiter(buckets, { capacity: 1e10, rate: "1000/s" });
  await assert.rejects(limiter.take("a"), /ERR capacity/);
  await send("LPUSH", "tb:list:script", "1");
  await assert.rejects(limiter.take("list", 1, { limit: LIMIT }), /WRONGTYPE/);
});
