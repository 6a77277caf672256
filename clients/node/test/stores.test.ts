/**
 * What the documentation of express-rate-limit, @fastify/rate-limit and hono-rate-limiter promises, as tables of cases:
 * each over HTTP with the library's own Redis store, and with ours, on the same server. Where the two differ, the case
 * says what a bucket does instead, and docs/stores.md has a row about it.
 */

import assert from "node:assert/strict";
import type { Server } from "node:net";
import { test, type TestContext } from "node:test";

import fastifyLimit, { type RateLimitPluginOptions } from "@fastify/rate-limit";
import { createAdaptorServer } from "@hono/node-server";
import express from "express";
import { rateLimit as expressLimit, type Options as ExpressOptions } from "express-rate-limit";
import Fastify from "fastify";
import { Hono } from "hono";
import { RedisStore as HonoRedisStore, rateLimiter as honoLimit } from "hono-rate-limiter";
import { RedisStore as ExpressRedisStore, type RedisReply } from "rate-limit-redis";
import { TokenBucketStore as ExpressStore, type StoreOptions } from "tokenbucket-redis/express-rate-limit";
import { tokenBucketStore } from "tokenbucket-redis/fastify-rate-limit";
import { TokenBucketStore as HonoStore } from "tokenbucket-redis/hono-rate-limiter";
import { FakeServer } from "tokenbucket-redis/testing";

import { askAt, byPolicy, header, LIMITS, pass, portOf, serveExpress, type Asked } from "./apps.js";
import { ofEach, older, rowsAreCases, rowsOf, seen, type Case as CaseOf, type Step } from "./deviations.js";
import { ownServerFor, patient, sharedRedis, until } from "./servers.js";

const { server, redis, advance } = await sharedRedis();

const MINUTE = 60_000;
const ADA = { "x-user": "ada" };

interface Options {
  limit?: number | ((user: string) => number);
  windowMs?: number;
  /** Where the limit is a function, for the stores that do not see the request. */
  limitOf?: (key: string) => number;
  /** More of the library's own. */
  own?: Record<string, unknown>;
}

interface App extends Asked {
  /** Waits until the library has undone the count of so many requests in all, which it does after its response. */
  undone(times: number): Promise<void>;
}

type Case = CaseOf<App> & { options?: Options };
type Ours = StoreOptions & { client?: ConstructorParameters<typeof ExpressStore>[0] };

/** Starts an app that says "passed" at "/", and fails with the status that is in the path. */
type Start = (t: TestContext, options: Options, ours?: Ours) => Promise<App>;

const user = (header: string | undefined) => header ?? "anybody";

const byExpress: Start = async (t, { limit = 3, windowMs = MINUTE, own = {}, limitOf }, ours) => {
  const sendCommand = (...words: string[]) => redis.call(...(words as [string, ...string[]])) as Promise<RedisReply>;
  const { client = patient(redis), ...options } = ours ?? {};
  const store = ours
    ? new ExpressStore(client, { ...(limitOf && { limitOf }), ...options })
    : new ExpressRedisStore({ sendCommand });
  const decrement = t.mock.method(store as ExpressStore, "decrement").mock;
  const app = express();
  const settings: Partial<ExpressOptions> = {
    windowMs,
    limit: typeof limit === "function" ? (request) => limit(user(request.get("x-user"))) : limit,
    standardHeaders: true,
    keyGenerator: (request) => user(request.get("x-user")),
    validate: { limit: false },
    store,
    ...own,
  };
  const limited = expressLimit(settings);
  app.get("/reset", (request, response) => {
    void Promise.resolve(limited.resetKey(user(request.get("x-user")))).then(() => response.send("reset"));
  });
  app.get("/used", (request, response) => {
    const found = Promise.resolve(limited.getKey(user(request.get("x-user"))));
    void found.then((info) => response.json(info?.totalHits ?? 0));
  });
  app.use(limited);
  app.get("/status/:status", (request, response) => void response.status(Number(request.params.status)).send("failed"));
  app.get("/", (_request, response) => void response.send("passed"));
  const undone = async (times: number) => {
    await until(() => decrement.callCount() >= times);
    await Promise.all(decrement.calls.map(({ result }) => result));
  };
  return { ...askAt(await serveExpress(t, app)), undone };
};

const byHono: Start = async (t, { limit = 3, windowMs = MINUTE, own = {}, limitOf }, ours) => {
  const client = {
    scriptLoad: (script: string) => redis.script("LOAD", script) as Promise<string>,
    evalsha: <_A extends unknown[], R>(sha: string, keys: string[], words: unknown[]) =>
      redis.evalsha(sha, keys.length, ...keys, ...(words as string[])) as Promise<R>,
    decr: (key: string) => redis.decr(key),
    del: (key: string) => redis.del(key),
  };
  const { client: place = patient(redis), ...options } = ours ?? {};
  const store = ours
    ? new HonoStore(place, { ...(limitOf && { limitOf }), ...options })
    : new HonoRedisStore({ client });
  const app = new Hono<{ Variables: { rateLimitStore: { getKey(key: string): Promise<{ totalHits: number }> } } }>();
  app.get("/reset", async (c) => {
    await store.resetKey(user(c.req.header("x-user")));
    return c.text("reset");
  });
  app.get("/used", async (c) => c.json((await store.get(user(c.req.header("x-user"))))?.totalHits ?? 0));
  app.use(
    honoLimit({
      windowMs,
      limit: typeof limit === "function" ? (c) => limit(user(c.req.header("x-user"))) : limit,
      keyGenerator: (c) => user(c.req.header("x-user")),
      store,
      ...own,
    }),
  );
  app.get("/status/:status", (c) => c.text("failed", Number(c.req.param("status")) as 404));
  app.get("/", (c) => c.text("passed"));
  app.onError((error, c) => c.text(`${error.name}: ${error.message}`, 500));
  const port = await portOf(t, createAdaptorServer(app) as Server);
  return { ...askAt(`http://127.0.0.1:${port}`), undone: async () => {} };
};

const byFastify: Start = async (t, { limit = 3, windowMs = MINUTE, own = {} }, ours) => {
  const { client = patient(redis), limitOf: _, ...options } = ours ?? {};
  const app = Fastify();
  await app.register(fastifyLimit, {
    max: typeof limit === "function" ? (request) => limit(user(request.headers["x-user"] as string)) : limit,
    timeWindow: windowMs,
    enableDraftSpec: true,
    keyGenerator: (request) => user(request.headers["x-user"] as string),
    ...(ours ? { store: tokenBucketStore(client, options) } : { redis }),
    ...own,
  } satisfies RateLimitPluginOptions);
  const look = app.createRateLimit?.();
  app.get("/used", { config: { rateLimit: false } }, (request) =>
    look(request, { increment: false }).then((seen) => (seen.isAllowed ? "" : String(seen.max - seen.remaining))),
  );
  app.get("/", async () => "passed");
  app.get("/none", { config: { rateLimit: { max: 0 } } }, async () => "passed");
  t.after(() => app.close());
  return { ...askAt(await app.listen({ port: 0, host: "127.0.0.1" })), undone: async () => {} };
};

/** What the library says about the limit: as in the draft 6 of the headers. */
const limits: Step<App> = async ({ get }) => {
  const { status, header } = await get();
  return [status, ...["limit", "remaining", "reset"].map((name) => header(`ratelimit-${name}`)), header("retry-after")];
};
const text =
  (path: string): Step<App> =>
  async ({ get }) =>
    (await get(path)).text;
/** So many requests, each undone before the next. */
const undoes =
  (path: string, times: number): Step<App> =>
  async ({ get, undone }) => {
    const statuses = [];
    for (let i = 0; i < times; i++) {
      statuses.push((await get(path)).status);
      await undone(i + 1);
    }
    return statuses.join(" ");
  };

const OF_ALL: Record<string, Case> = {
  "headers tell the limit, what remains, and when to come back": {
    steps: [limits, pass(1), advance(10_000), limits, limits],
    expected: [[200, "3", "2", "60", null], 1, [200, "3", "0", "50", null], [429, "3", "0", "50", "50"]],
    bucket: {
      expected: [[200, "3", "2", "20", null], 1, [200, "3", "0", "50", null], [429, "3", "0", "10", "10"]],
      row: "Reset headers",
    },
  },
  "after Retry-After a request passes, and not before": {
    steps: [
      pass(3),
      async ({ get, passed }) => {
        const wait = Number((await get()).header("retry-after"));
        server.advance(wait * 1000 - 1);
        const early = await passed(1);
        server.advance(2);
        return [wait, early, await passed(1)];
      },
    ],
    expected: [3, [60, 0, 1]],
    bucket: { expected: [3, [20, 0, 1]], row: "`Retry-After`" },
  },
  "at the edge of two windows no more than limit pass at once": {
    steps: [pass(1), advance(MINUTE - 1), pass(2), advance(2), pass(9)],
    expected: [1, 2, 3],
    bucket: { expected: [1, 2, 1], row: "The edge of two windows" },
  },
  "requests come back when the window is over": {
    steps: [pass(3), advance(MINUTE / 3 + 1), pass(3), advance(MINUTE), pass(9)],
    expected: [3, 0, 3],
    bucket: { expected: [3, 1, 3], row: "Requests that come back" },
  },
  "a limit of 0 lets nobody through": {
    options: { limit: 0 },
    steps: [pass(3), header("retry-after")],
    expected: [0, "60"],
  },
  "the limit can be a function of the request": {
    options: { limit: (name) => (name === "ada" ? 5 : 3), limitOf: (key) => (key === "ada" ? 5 : 3) },
    steps: [
      async ({ get }) => {
        const { header } = await get("/", ADA);
        return [header("ratelimit-limit"), header("ratelimit-remaining")];
      },
      pass(9, "/", ADA),
      pass(4),
    ],
    expected: [["5", "4"], 4, 3],
  },
};

const AS_WRITTEN = ofEach<(typeof LIMITS)[number], Case>(LIMITS, ([limit, passed]) => ({
  [`the limit ${JSON.stringify(limit)} is read as the library reads it`]: {
    options: { limit: limit as number, windowMs: String(MINUTE) as never },
    steps: [pass(5), async ({ get }) => (await get()).header("retry-after") !== null],
    expected: [passed, passed < 5],
  },
}));

/** Of those whose store has the methods that undo and look. */
const OF_WINDOW_STORES: Record<string, Case> = {
  "skipFailedRequests: failed requests cost nothing": {
    options: { own: { skipFailedRequests: true } },
    steps: [undoes("/status/404", 5), pass(3)],
    expected: ["404 404 404 404 404", 3],
  },
  "skipFailedRequests: denied requests give nothing back that they did not take": {
    options: { own: { skipFailedRequests: true } },
    steps: [pass(3), undoes("/", 5)],
    expected: [3, "429 429 429 429 429"],
  },
  "skipSuccessfulRequests: what succeeds costs nothing": {
    options: { own: { skipSuccessfulRequests: true } },
    steps: [undoes("/", 5), ...Array(4).fill(text("/status/404"))],
    expected: ["200 200 200 200 200", "failed", "failed", "failed", "Too many requests, please try again later."],
  },
  "resetKey: all of the limit is there again": { steps: [pass(4), text("/reset"), pass(4)], expected: [3, "reset", 3] },
  "getKey: how many hits a key has, denied ones included": {
    steps: [pass(2), text("/used"), pass(3), text("/used")],
    expected: [2, "2", 1, "5"],
    bucket: { expected: [2, "2", 1, "3"], row: "Denied requests" },
  },
};

/** What the library's own tests, which `make test-upstream-suites` runs with our store, do not try. */
const OF_FASTIFY: Record<string, Case> = {
  "a function may say the limit and the window as strings": {
    options: { limit: () => "3" as never, own: { timeWindow: () => String(MINUTE) } },
    steps: [pass(5), header("ratelimit-limit")],
    expected: [3, "3"],
  },
  "the window may be a string, and a limit that is one is the library's own 1000": {
    options: { limit: "3" as never, windowMs: String(MINUTE) as never },
    steps: [pass(5), header("ratelimit-limit")],
    expected: [5, "1000"],
  },
  ...ofEach([0, -1, "0"], (window) => ({
    [`a window of ${JSON.stringify(window)} lets all requests pass`]: {
      options: { own: { timeWindow: () => window } },
      steps: [pass(5)],
      expected: [5],
    },
  })),
  "a window of 0 that is no function lets all requests pass, but not with a limit of 0": {
    options: { windowMs: 0 },
    steps: [pass(5), pass(2, "/none")],
    expected: [5, 0],
  },
  // Since 10.3.
  ...(!older && {
    "{ increment: false } reads the state and takes nothing": {
      steps: [pass(2), text("/used"), text("/used")],
      expected: [2, "2", "2"],
    },
  }),
};

const ALL: Record<string, { start: Start; cases: Record<string, Case> }> = {
  "express-rate-limit": { start: byExpress, cases: { ...OF_ALL, ...OF_WINDOW_STORES, ...AS_WRITTEN } },
  "@fastify/rate-limit": { start: byFastify, cases: { ...OF_ALL, ...OF_FASTIFY } },
  "hono-rate-limiter": { start: byHono, cases: { ...OF_ALL, ...OF_WINDOW_STORES, ...AS_WRITTEN } },
};
const LIBRARIES = Object.entries(ALL).filter(([library]) => !older || older.startsWith(library));

for (const [library, { start, cases }] of LIBRARIES) {
  for (const [promise, { options = {}, steps, expected, bucket }] of Object.entries(cases)) {
    test(`${library}: ${promise}`, async (t) => {
      await redis.flushall();
      assert.deepEqual(await seen(await start(t, options), steps), expected, "its own Redis store");
      await redis.flushall();
      const ours = (bucket ?? { expected }).expected;
      assert.deepEqual(await seen(await start(t, options, {}), steps), ours, "ours");
    });
  }

  test(`${library}: the server is away: each policy has a status`, async (t) => {
    const { own, buckets, send } = await ownServerFor(t);
    const first = library.startsWith("@fastify") ? "fastify-rate-limit-" : library.startsWith("hono") ? "hrl:" : "rl:";
    await send("SET", `tb:${first}ada`, "something else");
    const apps = await byPolicy((onError) => start(t, {}, { client: buckets, onError }));
    assert.deepEqual([(await apps[1]!.get("/", ADA)).status, await apps[0]!.passed(2)], [500, 2]);
    await own.stop();
    const passed = [];
    for (const app of apps) passed.push(await app.passed(4));
    assert.deepEqual(passed, [3, 4, 0, 0]);
    const [local, open, closed, thrown] = (await Promise.all(apps.map(limits))) as unknown[][];
    const retryAfter = Number(local![4]);
    assert.deepEqual(local, [429, "3", "0", `${retryAfter}`, `${retryAfter}`]);
    assert.ok(retryAfter > 5 && retryAfter <= 20, `${retryAfter} seconds: this process's time passes meanwhile`);
    assert.deepEqual(open, [200, "3", "2", "60", null], "of a bucket that nobody has looked at");
    assert.deepEqual(closed, [429, "3", "0", "1", "1"]);
    assert.equal(thrown![0], 500);
  });
}

for (const [library, { start }] of LIBRARIES.filter(([name]) => !name.startsWith("@fastify"))) {
  test(`${library}: a limit that the store cannot know is an error, not a free pass`, async (t) => {
    await redis.flushall();
    // Newer libraries log what init() throws, and go on.
    const logger = { error() {}, warn() {} };
    const started = start(t, { limit: () => 3, own: library.endsWith("limit") ? { logger } : {} }, {});
    const app = await started.catch((error: Error) => error);
    if (app instanceof Error) assert.match(app.message, /limit: is a function of the request/);
    else assert.match((await app.get()).text, /BadArgument: limit: is a function of the request/);
  });
}

test("a store that two limits share is an error, and its later calls fail", async () => {
  for (const Store of [ExpressStore, HonoStore]) {
    const store = new Store(patient(redis));
    await assert.rejects(store.increment("a"), /BadArgument: store: no limiter has called its init/);
    store.init({ windowMs: 1000, limit: 5 });
    store.init({ windowMs: 1000, limit: 5 });
    assert.throws(() => store.init({ windowMs: 1000, limit: 50 }), /BadArgument: store: two limiters/);
    await assert.rejects(store.increment("a"), /BadArgument: store: two limiters/);
    await assert.rejects(store.decrement("a"), /BadArgument: store: two limiters/);
  }
});

test("@fastify/rate-limit: an error names the option that is no number", async (t) => {
  for (const [option, own] of [
    ["timeWindow", { timeWindow: () => "1 minute" }],
    ["max", { max: () => "many" }],
  ] as const) {
    const { get } = await byFastify(t, { own }, {});
    assert.match((await get()).text, new RegExp(`${option}: .* is not a number`));
  }
});

test("@fastify/rate-limit: options that count denials are refused when the app is made", async (t) => {
  const since10 = [{ continueExceeding: true }, { ban: 0 }];
  for (const own of older ? since10 : [...since10, { exponentialBackoff: true }]) {
    const app = byFastify(t, { own }, {});
    await assert.rejects(app, /BadArgument: continueExceeding, exponentialBackoff and ban/);
  }
});

test("a token is given back once, and by the request that took it", async () => {
  await redis.flushall();
  const store = new ExpressStore(patient(redis));
  store.init({ windowMs: MINUTE, limit: 3, skipFailedRequests: true });
  const request = async () => {
    const { totalHits } = await store.increment("a");
    await store.decrement("a");
    await store.decrement("a");
    return totalHits;
  };
  const kept = await Promise.all(Array.from({ length: 2 }, () => store.increment("a")));
  assert.deepEqual(kept.map(({ totalHits }) => totalHits).toSorted(), [1, 2]);
  assert.deepEqual([await request(), await request()], [3, 3]);
  assert.equal((await store.get("a"))?.totalHits, 2);
});

test("a token that this process granted without the server is not given to it", async (t) => {
  const flaky = new FakeServer();
  const store = new ExpressStore(patient(flaky, { retryEveryMs: 0 }));
  store.init({ windowMs: MINUTE, limit: 2, skipFailedRequests: true });
  const hits = async () => (await store.increment("a")).totalHits;
  assert.deepEqual([await hits(), await hits(), await hits()], [1, 2, 3]);
  const unplugged = t.mock.method(flaky, "send", () => Promise.reject(new Error("away")));
  assert.equal((await store.increment("a")).totalHits, 1, "this process's own bucket is full");
  unplugged.mock.restore();
  await until(async () => (await store.get("a"))?.totalHits === 2);
  await store.decrement("a");
  assert.equal(await hits(), 3);
});

test("each deviation has a row in the docs, and each row a case", () =>
  rowsAreCases(
    "stores.md",
    Object.values(ALL).flatMap(({ cases }) => rowsOf(cases)),
  ));
