/**
 * What the README of rate-limiter-flexible promises, as lists of steps. Each is taken with its own RateLimiterRedis and
 * with RateLimiterTokenBucket, on the same server, and shows the same. Where the two differ, the case says what each
 * shows, and docs/rate-limiter-flexible.md has a row about it.
 */

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";

import {
  BurstyRateLimiter,
  RateLimiterMemory,
  RateLimiterUnion,
  type IRateLimiterStoreOptions,
  type RateLimiterRedis,
  type RateLimiterRes,
} from "rate-limiter-flexible";
import { FakeServer } from "tokenbucket-redis/testing";
import { RateLimiterTokenBucket } from "tokenbucket-redis/rate-limiter-flexible";

import { rowsAreCases, seen, type Step as StepOf } from "./deviations.js";
import { LIBRARIES, ownServerFor, patient, sharedRedis, until } from "./servers.js";

const { server, redis, advance } = await sharedRedis();

type Options = Partial<IRateLimiterStoreOptions>;
type Limiter = RateLimiterRedis | RateLimiterTokenBucket;
type Step = StepOf<Limiter>;

// Keys of the original are there in the millisecond in which they expire, so tests go one beyond it.
const base = { points: 6, duration: 3 };

/** The newest release, also where tests run with an older one. */
const Newest = createRequire(import.meta.url)("../node_modules/rate-limiter-flexible").RateLimiterRedis;
const ORIGINAL = (options: Options = {}): RateLimiterRedis => new Newest({ storeClient: redis, ...base, ...options });
const OURS = (options: Options = {}) =>
  new RateLimiterTokenBucket({ storeClient: patient(redis), ...base, ...options } as never);

const does =
  (method: "consume" | "penalty" | "reward" | "get" | "set" | "block" | "delete") =>
  (...words: unknown[]): Step =>
  async (limiter) => {
    try {
      return await (limiter[method] as (...words: unknown[]) => Promise<unknown>)(...words);
    } catch (reason) {
      if (reason instanceof Error) return "Error";
      assert.equal(String(reason), JSON.stringify(reason));
      return { rejected: true, ...JSON.parse(String(reason)) };
    }
  };
const [consume, penalty, reward, get] = [does("consume"), does("penalty"), does("reward"), does("get")];
const [set, block, forget] = [does("set"), does("block"), does("delete")];

/** A result in words, without its `msBeforeNext`: there the two differ. */
function shown(result: unknown): unknown {
  if (result === null || typeof result !== "object" || Array.isArray(result)) return result;
  const { consumedPoints, remainingPoints, isFirstInDuration, rejected } = JSON.parse(JSON.stringify(result));
  return `${rejected ? "no, " : ""}${consumedPoints} used, ${remainingPoints} left${isFirstInDuration ? ", first" : ""}`;
}

const ms =
  (step: Step): Step =>
  async (limiter) =>
    ((await step(limiter)) as RateLimiterRes).msBeforeNext;
const wait = (...words: unknown[]) => ms(consume(...words));
/** How many calls of so many pass. */
async function passed(limiter: Limiter, times: number, key = "a"): Promise<number> {
  let passed = 0;
  for (let i = 0; i < times; i++) if (await limiter.consume(key).catch(() => undefined)) passed++;
  return passed;
}
const pass =
  (times = 1, key?: string): Step =>
  (limiter) =>
    passed(limiter, times, key);
const spend =
  (points: number): Step =>
  async (limiter) =>
    void (await limiter.consume("a", points));
/** Whether the server is asked. */
const asks =
  (step: Step): Step =>
  async (limiter) => {
    const commands = async () => Number(/total_commands_processed:(\d+)/.exec(await redis.info("stats"))?.[1]);
    const before = await commands();
    await step(limiter);
    return (await commands()) > before + 1; // the question itself
  };

const afterItsWait: Step = async (limiter) => {
  const waits = (await wait("a")(limiter)) as number;
  server.advance(waits + 1);
  return [waits, await passed(limiter, 1)];
};

/** The login recipe: a password is checked while get() tells of at most `points` that were consumed. */
const guesses: Step = async (limiter) => {
  let checked = 0;
  for (let guess = 0; guess < 100; guess++) {
    const known = await limiter.get("a");
    if (known !== null && known.consumedPoints > limiter.points) continue;
    checked++;
    await passed(limiter, 1);
  }
  return checked;
};

const IN_MEMORY = { inMemoryBlockOnConsumed: 6 };
const SHORT_BLOCK = { duration: 60, blockDuration: 10 };
const NAMES = ["}x", "{}", "{a}", "a", "{a}:block", ""];
const KEYS = [1, 12n, true, null, undefined, ["a"], {}, "a b", "ü", "{x}", "a\n\0b", "k".repeat(5000)];
const NO_POINTS = [" 2 ", "2.5", "0", "", "1e1", "x", null, NaN, Infinity, true];

type Same = [promise: string, steps: Step[], options?: unknown];

/** What both show alike. */
const SAME: Same[] = [
  ["the first call of a key alone says so", [consume("a", 2), consume("a"), consume(42)]],
  ["what is too much is rejected", [spend(6), consume("a")]],
  ["get consumes nothing, and is null without a record", [get("a"), spend(2), get("a"), get("a")]],
  ["penalty, beyond points too", [penalty("a"), penalty("a", 7), pass()]],
  ["reward", [spend(6), reward("a"), reward("a", 2), pass(5)]],
  [
    "a block shows in every reply",
    [block("a", 10), ms(block("a", 10)), get("a"), ms(get("a")), ms(reward("a")), ms(penalty("a"))],
  ],
  ["a block ends", [block("a", 10), wait("a"), advance(9999), pass(), advance(2), pass()]],
  ["the last block counts", [block("a", 10), block("a", 20), block("a", 5), wait("a")]],
  [
    "a block for 0 seconds lasts a year and longer",
    [block("a", 0), ms(block("a", 0)), advance(365 * 86_400_000), wait("a"), ms(get("a"))],
  ],
  ["a block for 0 seconds ends when it is deleted", [block("a", 0), forget("a"), pass()]],
  ...[30, "30"].map(
    (blockDuration): Same => [
      `a block of ${typeof blockDuration} ${blockDuration} is as long, however often it is tried`,
      [spend(6), wait("a"), advance(20_000), wait("a"), advance(10_001), pass()],
      { blockDuration },
    ],
  ),
  ["set: as if so many points were consumed", [set("a", 4, 10), ms(set("a", 4, 10)), get("a"), pass(10)]],
  ["set ends a block", [block("a", 10), set("a", 1, 10), pass(10)]],
  ["set of more than points is a block", [set("a", 100, 10), advance(9999), pass(), advance(2), pass()]],
  ["delete returns whether there was a key", [forget("a"), spend(6), forget("a"), get("a"), pass()]],
  [
    "any name is a key of its own",
    [...NAMES.map((name) => block(name, 10)), forget("a"), ...NAMES.map((name) => pass(1, name))],
    { keyPrefix: "" },
  ],
  [
    "delete ends a block in memory, reward does not",
    [spend(6), pass(), reward("a", 5), pass(), forget("a"), pass()],
    IN_MEMORY,
  ],
  [
    "options can be changed at run time, and how the original's client is called may be said",
    [async (limiter) => void Object.assign(limiter, { points: 10, duration: 100 }), pass(20), advance(3000), pass()],
    { rejectIfRedisNotReady: true, useRedisPackage: false, customIncrTtlLuaScript: undefined },
  ],
  [
    "customDuration: of this call",
    [6, 1, 6].flatMap((points) => [
      consume("a", points, { customDuration: 60 }),
      advance(points === 6 ? 3000 : 57_001),
    ]),
  ],
  [
    "inMemoryBlockOnConsumed: who is refused is refused without asking",
    [spend(6), pass(), asks(pass(5)), async (limiter) => limiter.deleteInMemoryBlockedAll(), asks(pass())],
    IN_MEMORY,
  ],
  [
    "inMemoryBlockDuration: for so many seconds, by the time of this process",
    [spend(6), pass(), async (limiter) => Math.ceil(((await wait("a")(limiter)) as number) / 1000)],
    { ...IN_MEMORY, inMemoryBlockDuration: 10 },
  ],
  ["points that are a string", [spend(1), consume("a", "2"), penalty("a", "2"), set("a", "2", 10)]],
  ...NO_POINTS.map(
    (points): Same => [
      `the points ${typeof points} '${points}'`,
      [consume("a", points), penalty("a", points), set("a", points, 10)],
    ],
  ),
  ...[0, -1, 1e15].map(
    (points): Same => [
      `${points} points`,
      [async (limiter) => ((await consume("a")(limiter)) as RateLimiterRes).consumedPoints, pass(1, "b")],
      { points },
    ],
  ),
  [
    "durations may be strings; what is none does not replace another",
    [
      ...["10", -1, NaN, "x", undefined].map((customDuration, at) => wait(at, 6, { customDuration })),
      ...["10", 0, -1, null, undefined, "x"].flatMap((seconds) => [block(`${seconds}`, seconds), wait(`${seconds}`)]),
      wait("of call", 6, null),
    ],
  ],
  [
    "whatever prints as a string is a key",
    KEYS.flatMap((key) => [consume(key), consume(key), async (limiter) => limiter.getKey(key as never).length]),
  ],
];

/** What the original shows, and what a bucket does, by the rows of the docs. */
const DIFFERENT: Record<string, [steps: Step[], theirs: unknown[], ours: unknown[], options?: Options]> = {
  "`msBeforeNext` of a rejection": [[spend(6), afterItsWait], [[3000, 1]], [[500, 1]]],
  "`msBeforeNext` of a success": [[wait("a", 2)], [3000], [1000]],
  "The edge of two durations": [
    [spend(1), advance(2999), pass(10), advance(2), pass(10)],
    [5, 6],
    [6, 0],
  ],
  "Points that come back": [
    [spend(6), advance(1500), pass(10), advance(3001), pass(10)],
    [0, 6],
    [3, 6],
  ],
  "Refused points": [
    [pass(9), get("a")],
    [6, "9 used, 0 left"],
    [6, "7 used, 0 left"],
  ],
  "`get` of a key without a point left": [[guesses], [7], [6]],
  "A cost above `points`": [
    [wait("a", 7), pass(10)],
    [3000, 0],
    [-1, 6],
  ],
  "`reward` beyond what was consumed": [
    [spend(1), ms(reward("a", 4)), pass(20)],
    [3000, 9],
    [0, 6],
  ],
  "A block shorter than `duration`": [
    [spend(6), wait("a", 2), advance(10_001), pass(10)],
    [10_000, 6],
    [20_000, 1],
    SHORT_BLOCK,
  ],
  "`set` of up to `points`": [
    [set("a", 4, 10), advance(9000), pass(10)],
    ["4 used, 0 left", 2],
    ["4 used, 0 left", 6],
  ],
  "`reward` of a blocked key": [
    [block("a", 10), ms(reward("a", 2)), pass()],
    ["7 used, 0 left", 10_000, 1],
    ["7 used, 0 left", 10_000, 0],
  ],
  "`inMemoryBlockOnConsumed` above `points`": [
    [spend(6), pass(), asks(pass())],
    [0, true],
    [0, false],
    { inMemoryBlockOnConsumed: 8 },
  ],
  "`duration: 0`": [[consume("a", 1, { customDuration: 0 })], ["1 used, 5 left, first"], ["Error"]],
  "Fractions of points": [
    [consume("a", 0.5), consume("a", 0.5)],
    ["Error", "Error"],
    ["1 used, 5 left", "1 used, 5 left"],
  ],
  "Negative points": [[spend(6), consume("a", -2)], ["4 used, 2 left"], ["Error"]],
};

/** By their rows. */
const NOT_OFFERED: Record<string, [Options, error: string]> = {
  "`duration: 0`": [{ duration: 0 }, "duration must be set and above 0: points of a bucket always come back"],
  "`execEvenly`": [{ execEvenly: true }, "execEvenly is not offered: use reserve() of Limiter"],
  "`blockOnConsumed`": [{ blockOnConsumed: 10 }, "blockOnConsumed is not offered: what is refused is not counted"],
};

async function shows(limiter: Limiter, steps: Step[]): Promise<unknown[]> {
  await redis.flushall();
  return (await seen(limiter, steps)).map(shown);
}

for (const [promise, steps, options = {}] of SAME) {
  test(`both: ${promise}`, async () =>
    assert.deepEqual(await shows(OURS(options as Options), steps), await shows(ORIGINAL(options as Options), steps)));
}

for (const [row, [steps, theirs, ours, options]] of Object.entries(DIFFERENT)) {
  test(`they differ: ${row}`, async () => {
    assert.deepEqual(await shows(ORIGINAL(options), steps), theirs, "the original");
    assert.deepEqual(await shows(OURS(options), steps), ours, "the bucket");
  });
}

test("each deviation has a row in the docs, and each row a case", () =>
  rowsAreCases("rate-limiter-flexible.md", [...Object.keys(DIFFERENT), ...Object.keys(NOT_OFFERED)]));

test("options that are not offered, or cannot be, are refused", () => {
  for (const [options, message] of Object.values(NOT_OFFERED)) {
    ORIGINAL(options);
    assert.throws(() => OURS(options), { message });
  }
  const wrong = {
    points: [undefined, NaN, "6", null, Infinity],
    duration: [undefined, -1, Infinity],
    keyPrefix: [1, null],
    inMemoryBlockOnConsumed: [5],
    inMemoryBlockDuration: [5],
    insuranceLimiter: [null, {}],
    storeClient: [undefined, null],
  };
  for (const [name, values] of Object.entries(wrong)) {
    for (const value of values)
      for (const make of [ORIGINAL, OURS]) assert.throws(() => make({ [name]: value } as never));
  }
});

test("a key of another type is an Error, for which there is an insurance", async () => {
  await redis.flushall();
  await redis.lpush("tb:{rlflx:a}", "something else");
  assert.equal(await consume("a")(OURS()), "Error");
  assert.equal(await passed(OURS({ insuranceLimiter: new RateLimiterMemory({ points: 1, duration: 60 }) }), 1), 1);
});

test("an insurance decides when the store is away; without one this process does, or its calls fail", async (t) => {
  const { own, buckets } = await ownServerFor(t);
  const store = { storeClient: buckets } as Options;
  const insured = OURS({ ...store, insuranceLimiter: new RateLimiterMemory({ points: 1, duration: 60 }) });
  const throwing = OURS({ ...store, onError: "throw" } as Options);
  assert.equal((await insured.consume("a", 2)).remainingPoints, 4);
  await own.stop();
  assert.equal((await insured.consume("a")).remainingPoints, 0);
  assert.equal(await passed(insured, 1), 0);
  for (const call of [get("a"), penalty("b"), reward("b"), set("c", 1, 5)])
    assert.notEqual(await call(insured), "Error");
  await insured.block("d", 5);
  assert.equal(await insured.delete("d"), true);
  for (const blockDuration of [0, 60]) {
    assert.equal(await passed(OURS({ ...store, blockDuration }), 9, `blocks for ${blockDuration}`), 6);
  }
  assert.equal(await consume("a")(throwing), "Error");
  await own.start();
  await until(async () => (await passed(throwing, 1, "b")) === 1);
});

test("inside the wrappers of rate-limiter-flexible", async () => {
  await redis.flushall();
  const bursty = new BurstyRateLimiter(OURS() as never, OURS({ keyPrefix: "burst", points: 2 }) as never);
  assert.equal(await passed(bursty as never, 20), 8);
  const theirs = new RateLimiterMemory({ ...base, keyPrefix: "theirs" });
  const union = new RateLimiterUnion(theirs, OURS({ keyPrefix: "ours", points: 4 }) as never);
  assert.equal(await passed(union as never, 10), 4);
});

test("in tests of users the fake stands for the server, blocks included", async () => {
  const fake = new FakeServer();
  const options = { storeClient: fake, ...base, blockDuration: 30, inMemoryBlockOnConsumed: 6 };
  const heard: unknown[] = [];
  const told = new RateLimiterTokenBucket({
    ...options,
    onDecision: (name, _limit, { allowed, retryAfterMs }) => heard.push([name, allowed, retryAfterMs]),
  });
  const limiter = new RateLimiterTokenBucket(options);
  assert.equal(await passed(limiter, 7), 6);
  const waits = [];
  for (const points of [1, 7, 1]) waits.push(await wait("a", points)(limiter));
  assert.deepEqual(waits, [30_000, -1, 30_000], "a refusal in memory says nothing about a cost that never passes");
  assert.equal(await passed(told, 1), 0);
  // One decision, and not that the neighbour was asked too.
  assert.deepEqual(heard, [["rlflx:a", false, 30_000]]);
  fake.advance(30_000);
  assert.equal(await passed(limiter, 1), 1);
});

for (const library of Object.keys(LIBRARIES)) {
  for (const by of ["module", "script"] as const) {
    test(`${library}: set and block are transactions, by the ${by}`, async (t) => {
      const { buckets } = await ownServerFor(t, { module: by === "module" }, { library, by });
      const limiter = new RateLimiterTokenBucket({ storeClient: buckets, ...base });
      await limiter.set("a", 4, 10);
      assert.equal(await passed(limiter, 10), 2);
      await Promise.all([1, 2, 3].map(() => limiter.block("a", 10)));
      assert.equal(await wait("a")(limiter), 10_000, "blocks do not add up");
      await limiter.set("a", 0, 10);
      assert.equal(await passed(limiter, 10), 6);
      assert.deepEqual([await limiter.delete("a"), await limiter.get("a")], [true, null]);
    });
  }
}
