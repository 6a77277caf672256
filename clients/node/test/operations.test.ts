/** Every operation, through every client library, on a real server whose clock the test sets. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  BadArgument,
  JointLimiter,
  Limiter,
  TokenBucketError,
  type Hold,
  type Decision,
  type Limit,
  type OnDecision,
  type Server,
} from "tokenbucket-redis";
import { FakeServer } from "tokenbucket-redis/testing";

import { clientFor, emptiedClientFor, patient, serverFor, sharedServer, until } from "./servers.js";

const server = await sharedServer();
const LIMIT: Limit = { capacity: 10, rate: "5/s" };

test("takeAll is of known limits, by one name or one for each", async () => {
  const joint = new JointLimiter(new FakeServer(), { requests: LIMIT, tokens: { capacity: 1000, rate: "1000/m" } });
  for (const name of ["ada", { requests: "{ada}", tokens: "{ada}:model" }]) {
    assert.equal((await joint.takeAll(name, { requests: 1, tokens: 800 })).each.tokens?.remaining, 200);
  }
  for (const which of ["words", "constructor"]) {
    await assert.rejects(joint.takeAll("ada", { [which]: 1 }), /' is none of the limits requests, tokens/);
  }
  await assert.rejects(joint.takeAll("ada", {}), /^BadArgument: amounts: /);
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

test("what cannot be a limiter is refused when it is made", async (t) => {
  const { client } = await clientFor(t, server);
  const wrong =
    (limit: object, options: object = {}) =>
    () =>
      new Limiter(client, { ...LIMIT, ...limit }, options);
  for (const capacity of [-1, NaN, Infinity, "ten", undefined]) {
    assert.throws(wrong({ capacity }), /^BadArgument: capacity: /);
  }
  for (const rate of ["", "fast", "10/", "10/w", "/s", "10/s/s", -1, "10/0s", "1 /s", "10@", "10@d+9"]) {
    assert.throws(wrong({ rate }), /^BadArgument: rate: /);
  }
  assert.throws(
    wrong({ rate: "10/min" }),
    /^BadArgument: rate: '10\/min' must be .*count\/period in ms, s, m, h or d /,
  );
  for (const limit of [undefined, null, "10 5/s"]) {
    assert.throws(() => new Limiter(client, limit as never), /^BadArgument: limit: .* is not like { capacity: 10, /);
  }
  assert.throws(wrong({}, { onError: "maybe" }), /^BadArgument: onError: 'maybe'/);
  assert.throws(wrong({}, { shadow: "false" }), /^BadArgument: shadow: 'false'/);
  for (const ms of [-1, NaN, Infinity, 2 ** 31, "100", null] as number[]) {
    assert.throws(() => patient(client, { timeoutMs: ms }), /^BadArgument: timeoutMs: /);
    assert.throws(() => patient(client, { retryEveryMs: ms }), /^BadArgument: retryEveryMs: /);
  }
  assert.throws(() => patient(client, { by: "lua" as never }), /^BadArgument: by: 'lua'/);
  assert.throws(wrong({}, { onerror: "closed" }), /^BadArgument: onerror: unknown option, known are prefix, onError/);
  assert.throws(() => patient(client, { timeout: 5 } as object), /^BadArgument: timeout: unknown option/);
  assert.throws(() => new JointLimiter(client, { a: LIMIT }, { batch: 5 } as object), /^BadArgument: batch: /);
  assert.throws(wrong({}, { rememberDenials: 0.5 }), /^BadArgument: rememberDenials: /);
  assert.throws(wrong({}, { batch: -1 }), /^BadArgument: batch: /);
  for (const client of [{}, null, Promise.resolve(), new Map()]) {
    assert.throws(() => new Limiter(client as never, LIMIT), /^BadArgument: client: /);
  }
  assert.throws(wrong({ capacity: -1 }), (error) => error instanceof TokenBucketError && error instanceof BadArgument);
  assert.throws(wrong({}, { onError: 1 }), BadArgument);
});

test("callers without a name share no bucket, and an option of a call that does not exist is refused", async () => {
  const fake = new FakeServer();
  const limiter = new Limiter(fake, LIMIT) as Limiter & Record<string, (...words: unknown[]) => Promise<unknown>>;
  const joint = new JointLimiter(fake, { a: LIMIT });
  for (const name of [undefined, null, NaN, {}, ["a"]] as never[]) {
    for (const call of ["take", "peek", "charge", "give", "takeUpTo", "hold", "reset"]) {
      await assert.rejects(limiter[call]!(name, ...(call === "reset" ? [] : [1])), /^BadArgument: name: /);
    }
    await assert.rejects(limiter.wait(name, 1, { maxWaitMs: 1 }), /^BadArgument: name: /);
    await assert.rejects(joint.takeAll(name, { a: 1 }), /^BadArgument: name: /);
    await assert.rejects(joint.hold({ a: name }, { a: 1 }), /^BadArgument: name: .* for 'a' is not a string/);
  }
  for (const cost of [NaN, -1, Infinity, "many"]) {
    await assert.rejects(limiter.take("a", cost), /^BadArgument: cost: /);
  }
  for (const options of [{ maxwaitMs: 5 }, { ttlMs: 5 }, { Limit: LIMIT }]) {
    await assert.rejects(limiter.take("a", 1, options as object), /^BadArgument: .*: unknown option/);
  }
  await assert.rejects(joint.takeAll("a", { a: 1 }, { limit: LIMIT } as object), /^BadArgument: limit: unknown option/);
  assert.equal((await limiter.take(42 as never)).remaining, (await limiter.peek("42", 0)).remaining);
});

test("a wait that this process has booked gives nothing back to the server", async (t) => {
  const own = await serverFor(t);
  const { client } = await clientFor(t, own);
  const limiter = new Limiter(patient(client, { timeoutMs: 500, retryEveryMs: 50 }), { capacity: 1, rate: "10/h" });
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

test("a keyPrefix of ioredis is refused: it does not reach every key", async () => {
  const { Redis } = await import("ioredis");
  const client = new Redis(server.url, { keyPrefix: "app:", lazyConnect: true });
  assert.throws(() => new Limiter(client, LIMIT), /^BadArgument: client: has a keyPrefix/);
});

test("the caller's mistakes are thrown by the script, too", async (t) => {
  const { client, send } = await clientFor(t, await serverFor(t, { module: false }));
  const limiter = new Limiter(patient(client, { by: "script" }), { capacity: 1e10, rate: "1000/s" });
  await assert.rejects(limiter.take("a"), /ERR capacity/);
  await send("LPUSH", "tb:list:script", "1");
  await assert.rejects(limiter.take("list", 1, { limit: LIMIT }), /WRONGTYPE/);
});
