/** What cannot be is refused by an error that names it, before anything is sent. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Redis } from "ioredis";
import { BadArgument, JointLimiter, Limiter, Server, TokenBucketError, type Limit } from "tokenbucket-redis";
import { rateLimit as byExpress } from "tokenbucket-redis/express";
import { TokenBucketStore as ExpressStore } from "tokenbucket-redis/express-rate-limit";
import { rateLimit as byFastify } from "tokenbucket-redis/fastify";
import { tokenBucketStore } from "tokenbucket-redis/fastify-rate-limit";
import { TokenBucketStore as HonoStore } from "tokenbucket-redis/hono-rate-limiter";
import { TokenBucketStorage } from "tokenbucket-redis/nestjs";
import { FakeServer } from "tokenbucket-redis/testing";

import { patient } from "./servers.js";

const LIMIT: Limit = { capacity: 10, rate: "5/s" };
const POOL: Limit = { capacity: 1, rate: 0 };
const EITHER = [{ a: 1 }, { b: 1 }];

type Calls = Record<string, (...words: unknown[]) => Promise<unknown>>;

const fake = new FakeServer();
const limiter = new Limiter(fake, LIMIT) as Limiter & Calls;
const joint = new JointLimiter(fake, { a: LIMIT, b: LIMIT, pool: POOL });
const many = Array.from({ length: 1025 }, (_, at) => `${at}`);
const manyLimits = new JointLimiter(fake, Object.fromEntries(many.map((which) => [which, LIMIT])));
const eachOfMany = many.map((which) => ({ [which]: 1 }));
const unplugged = new FakeServer();
unplugged.send = () => Promise.reject(new Error("unplugged"));
const away = new JointLimiter(patient(unplugged), joint.limits);

const limited = (limit: object | undefined | null, options: object = {}) => new Limiter(fake, limit as Limit, options);
const served = (options: object) => new Server(fake, options);
const rows = (named: string, values: unknown[], call: (value: never) => unknown): [string, () => unknown][] =>
  values.map((value) => [named, () => call(value as never)]);

const MAKE_STORES = [
  (client: unknown, options?: object) => new ExpressStore(client as FakeServer, options),
  (client: unknown, options?: object) => new HonoStore(client as FakeServer, options),
  (client: unknown, options?: object) => new (tokenBucketStore(client as FakeServer, options))({}),
];
const storage = new TokenBucketStorage(fake);
const increments = (...[ttl, limit, blockDuration]: unknown[]) =>
  storage.increment("a", ttl as number, limit as number, blockDuration as number, "default");

const LONG = { maxWaitMs: 60_000 };
const NO_MS = [-1, NaN, Infinity, "500"] as never[];
const NO_NAMES = [undefined, null, NaN, {}, ["a"]];
/** How the error begins, and what causes it. */
const MISTAKES: [named: string, call: () => unknown][] = [
  ...rows("capacity: ", [-1, NaN, Infinity, "ten", undefined], (capacity) => limited({ ...LIMIT, capacity })),
  ...rows("rate: ", ["", "fast", "10/w", "/s", "10/s/s", -1, "10/0s", "1 /s"], (rate) => limited({ ...LIMIT, rate })),
  ["rate: '10/min' must be .*count/period in ms, s, m, h or d ", () => limited({ ...LIMIT, rate: "10/min" })],
  ["ERR rate must be at least 1 token in 100 years", () => limited({ capacity: 0, rate: "1/36526d" }).take("a")],
  ["ERR refilling .* more than 100 years", () => limited({ capacity: 100, rate: "1/366d" }).take("a")],
  ["ERR refilling .* more than 100 years", () => limited({ capacity: 1201, rate: "1@mo" }).take("a")],
  ...rows("limit: .* is not like { capacity: 10, ", [undefined, null, "10 5/s"], (limit) => limited(limit)),
  ["onError: 'maybe'", () => limited(LIMIT, { onError: "maybe" })],
  ["onError: ", () => limited(LIMIT, { onError: 1 })],
  ["shadow: 'false'", () => limited(LIMIT, { shadow: "false" })],
  ["onerror: unknown option, known are prefix, onError", () => limited(LIMIT, { onerror: "closed" })],
  ["rememberDenials: ", () => limited(LIMIT, { rememberDenials: 0.5 })],
  ["batch: ", () => limited(LIMIT, { batch: -1 })],
  ["batch: ", () => new JointLimiter(fake, { a: LIMIT }, { batch: 5 } as object)],
  ...rows("timeoutMs: ", [...NO_MS, 2 ** 31, null], (timeoutMs) => served({ timeoutMs })),
  ...rows("retryEveryMs: ", [...NO_MS, 2 ** 31, null], (retryEveryMs) => served({ retryEveryMs })),
  ["by: 'lua'", () => served({ by: "lua" })],
  ["timeout: unknown option", () => served({ timeout: 5 })],
  ...rows("client: ", [{}, null, Promise.resolve(), new Map()], (client) => new Limiter(client, LIMIT)),
  ["client: has a keyPrefix", () => new Limiter(new Redis({ keyPrefix: "app:", lazyConnect: true }), LIMIT)],

  ...["take", "peek", "charge", "give", "takeUpTo", "hold"].flatMap((call) =>
    rows("name: ", NO_NAMES, (name) => limiter[call]!(name, 1)),
  ),
  ...rows("name: ", NO_NAMES, (name) => limiter.reset(name)),
  ...rows("name: ", NO_NAMES, (name) => limiter.wait(name, 1, { maxWaitMs: 1 })),
  ...rows("name: ", NO_NAMES, (name) => joint.takeAll(name, { a: 1 })),
  ...rows("name: .* for 'a' is not a string", NO_NAMES, (name) => joint.hold({ a: name }, { a: 1 })),
  ...rows("cost: ", [NaN, -1, Infinity, "many"], (cost) => limiter.take("a", cost)),
  ...rows(".*: unknown option", [{ maxwaitMs: 5 }, { ttlMs: 5 }, { Limit: LIMIT }], (one) => limiter.take("a", 1, one)),
  ["limit: unknown option", () => joint.takeAll("a", { a: 1 }, { limit: LIMIT } as object)],
  ["amounts: ", () => joint.takeAll("a", {})],
  ...rows(".* is none of the limits a, b", ["words", "constructor"], (which) => joint.takeAll("a", { [which]: 1 })),

  ...rows("ttlMs: ", [0, ...NO_MS, 31 * 86_400_000], (ttlMs) => limiter.hold("a", 1, { ttlMs })),
  ...[...NO_MS, (31 * 86_400_000) as never].flatMap((maxWaitMs): [string, () => unknown][] => [
    ["maxWaitMs: ", () => limiter.take("a", 1, { maxWaitMs })],
    ["maxWaitMs: ", () => limiter.hold("a", 1, { maxWaitMs })],
    ["maxWaitMs: ", () => joint.takeAll("a", { a: 1 }, { maxWaitMs })],
  ]),
  ["weight: ", () => limiter.hold("a", 1, { ...LONG, weight: 2 })],
  ...rows("share: ", ["", "é".repeat(65), 7], (share) => limiter.hold("a", 1, { ...LONG, share })),
  ["share: unknown option", () => joint.hold("a", { a: 1 }, { ...LONG, share: "acme" } as object)],

  ...rows("alternatives: are not an array", [{ a: 1 }, []], (either) => joint.takeAny("x", either)),
  ...rows("amounts: name no limit", [{}, null, undefined], (amounts) => joint.takeAny("x", [{ a: 1 }, amounts])),
  ["'nothing' is none of the limits", () => joint.takeAny("x", [{ a: 1 }, { nothing: 1 }])],
  [".*same number.*amount 0", () => joint.takeAny("x", [{ a: 1, b: 1 }, { a: 1 }])],
  ["amount", () => joint.takeAny("x", [{ a: 0 }, { a: -1 }])],
  ["ERR numkeys .* 1 to 1024", () => manyLimits.takeAny("x", eachOfMany)],
  ["ERR numkeys .* 1 to 1024", () => manyLimits.takeAll("x", Object.fromEntries(many.map((which) => [which, 1])))],
  ...[joint, away].map((one): [string, () => unknown] => [".*rate", () => one.takeAny("x", [{ a: 0 }, { pool: 1 }])]),
  ["maxWaitMs: ", () => joint.takeAny("x", EITHER, LONG as object)],
  ["maxWaitMs: ", () => joint.holdAny("x", EITHER, LONG as object)],

  ...MAKE_STORES.flatMap((make): [string, () => unknown][] => [
    ["client: ", () => make({})],
    ["onError: ", () => make(fake, { onError: "pass" })],
    ["shadow: unknown option", () => make(fake, { shadow: true })],
  ]),
  ["limitOf: ", () => new ExpressStore(fake, { limitOf: 5 as never })],
  ["windowMs: ", () => new ExpressStore(fake).init({ windowMs: 0, limit: 5 })],
  ["limit: ", () => new ExpressStore(fake).init({ windowMs: 1000, limit: NaN })],
  ["limit: ", () => new ExpressStore(fake, { limitOf: () => 5 }).init({ windowMs: 1000, limit: 5 })],
  ...[byExpress, byFastify].flatMap((rateLimit): [string, () => unknown][] => [
    ["cost: ", () => rateLimit(limiter, { cost: -1 })],
    ["key: ", () => rateLimit(limiter, { key: "ip" } as never)],
    ["limit: ", () => rateLimit(limiter, { limit: {} } as never)],
  ]),
  ["ttl: 0 is not above 0$", () => increments(0, 3, 0)],
  ["ttl: abc is not a number$", () => increments("abc", 3, 0)],
  ["ttl: null is not a number$", () => increments(null, 3, 0)],
  ["limit: abc is not a number$", () => increments(1000, "abc", 0)],
  ["blockDuration: abc is not a number$", () => increments(1000, 3, "abc")],
  ["limit: is missing: ", () => increments(1000)],
];

for (const [named, call] of MISTAKES) {
  test(`${String(call).slice(6)}: ${named}`, () =>
    assert.rejects(
      async () => call(),
      (error: Error) => {
        assert.match(String(error), new RegExp(`^BadArgument: ${named}`));
        return error instanceof TokenBucketError && error instanceof BadArgument;
      },
    ));
}
