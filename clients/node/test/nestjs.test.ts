/**
 * What the README and the types of @nestjs/throttler promise, as a table of cases: each in a Nest app with the
 * storage that the throttler brings, and in one with TokenBucketStorage. Where the two differ, the case says what
 * a bucket does instead, and docs/nestjs.md has a row about it.
 */

import "reflect-metadata";

import assert from "node:assert/strict";
import { mock, test, type TestContext } from "node:test";

import { Controller, Get, Module, type INestApplication, type Type } from "@nestjs/common";
import { APP_GUARD, NestFactory } from "@nestjs/core";
import {
  Throttle,
  ThrottlerGuard,
  ThrottlerModule,
  type ThrottlerModuleOptions,
  type ThrottlerOptions,
  type ThrottlerStorage,
} from "@nestjs/throttler";
import { TokenBucketStorage } from "tokenbucket-redis/nestjs";

import { askAt, byPolicy, header, LIMITS, pass, type Asked } from "./apps.js";
import { ofEach, older, rowsAreCases, rowsOf, seen, type Case as CaseOf, type Step } from "./deviations.js";
import { ownServerFor, patient, sharedRedis } from "./servers.js";

const { server, redis } = await sharedRedis();

@Controller()
class AppController {
  @Get("/")
  index(): string {
    return "passed";
  }

  @Get("/other")
  other(): string {
    return "passed";
  }

  @Get("/tight")
  @Throttle({ default: { limit: 1, ttl: 60_000 } })
  tight(): string {
    return "passed";
  }

  @Get("/written")
  @Throttle({ default: { limit: () => Promise.resolve("1"), ttl: () => String(MINUTE) } as never })
  written(): string {
    return "passed";
  }
}

type ModuleOptions = Exclude<ThrottlerModuleOptions, unknown[]>;

const MINUTE = 60_000;

interface App extends Asked {
  /** Lets time pass, for the storage that counts. */
  advance(ms: number): void;
}

interface Setting {
  /** Of three a minute, unless given. */
  throttlers?: unknown[];
  /** Of the module. */
  options?: Partial<ModuleOptions>;
}

type Case = Setting & CaseOf<App>;

async function startApp(t: TestContext, setting: Setting, storage?: ThrottlerStorage): Promise<App> {
  const { throttlers = [{ ttl: MINUTE, limit: 3 }], options } = setting;
  const getTracker = (request: Record<string, any>) => Promise.resolve(request.headers["x-user"] ?? request.ip);
  // A guard sorts the array that it is given.
  const copy = throttlers.map((one) => ({ ...(one as ThrottlerOptions) }));
  class AppModule {}
  Module({
    imports: [ThrottlerModule.forRoot({ throttlers: copy, getTracker, ...options, ...(storage && { storage }) })],
    controllers: [AppController],
    providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
  })(AppModule);
  const app: INestApplication = await NestFactory.create(AppModule as Type<unknown>, { logger: false });
  t.after(() => app.close());
  await app.listen(0, "127.0.0.1");
  const advance = (ms: number) => (storage ? server.advance(ms) : mock.timers.tick(ms));
  return { ...askAt(await app.getUrl()), advance };
}

const ours = () => new TokenBucketStorage(patient(redis));
const advance =
  (ms: number): Step<App> =>
  async (app) =>
    app.advance(ms);
const retryAfter = header("retry-after");

/** What users write as a ttl or blockDuration, and the Retry-After of three a minute; null: each request fails. */
const DURATIONS: [unknown, string | null][] = [
  [String(MINUTE), "60"],
  [` ${MINUTE} `, "60"],
  ["6e4", "60"],
  [59_999.5, "60"],
  ["abc", null],
];

const asWritten = (name: string, written: unknown) =>
  `the ${name} ${typeof written} '${String(written)}' is read as the throttler reads it`;

const CASES: Record<string, Case> = {
  ...ofEach(LIMITS, ([limit, passed]) => ({
    [asWritten("limit", limit)]: {
      throttlers: [{ ttl: String(MINUTE), limit, blockDuration: "1000" }],
      steps: [pass(5)],
      expected: [passed],
    },
  })),
  ...ofEach(["ttl", "blockDuration"], (name) =>
    ofEach(DURATIONS, ([written, after]) => ({
      [asWritten(name, written)]: {
        throttlers: [{ ttl: MINUTE, limit: 3, [name]: written }],
        steps: [pass(3), retryAfter],
        expected: [after ? 3 : 0, after],
      },
    })),
  ),
  ...ofEach([0, "0", -1], (ttl) => ({
    [asWritten("ttl", ttl)]: {
      throttlers: [{ ttl, limit: 3 }],
      steps: [pass(5)],
      expected: [5],
      bucket: { expected: [0], row: "A `ttl` of 0 or less" },
    },
  })),
  ...ofEach([{ ttl: Infinity }, { ttl: 1e15 }, { ttl: MINUTE, blockDuration: Infinity }], (endless) => ({
    [`after ${Object.entries(endless).join(" ")} no request has come back in a year`]: {
      throttlers: [{ limit: 3, ...endless }],
      steps: [pass(5), advance(365 * 24 * 60 * MINUTE), pass(5)],
      expected: [3, 0],
    },
  })),
  "the limit and what remains of it are in headers": {
    steps: [header("x-ratelimit-limit"), ...Array(2).fill(header("x-ratelimit-remaining"))],
    expected: ["3", "1", "0"],
  },
  "X-RateLimit-Reset: when what is counted has expired": {
    steps: [header("x-ratelimit-reset")],
    expected: ["60"],
    bucket: { expected: ["20"], row: "`X-RateLimit-Reset`" },
  },
  "each endpoint and each tracker has a limit of its own": {
    steps: [pass(4), pass(4, "/other"), pass(4, "/", { "x-user": "ada" })],
    expected: [3, 3, 3],
  },
  "who exceeds it is blocked for the ttl, and Retry-After says so; trying does not prolong it": {
    steps: [pass(3), retryAfter, advance(MINUTE - 1), pass(1), retryAfter, advance(2), pass(4)],
    expected: [3, "60", 0, "1", 3],
  },
  "blockDuration: blocked for so long": {
    throttlers: [{ ttl: 1000, limit: 3, blockDuration: MINUTE }],
    steps: [pass(3), retryAfter, advance(MINUTE - 1), pass(1), advance(2), pass(1)],
    expected: [3, "60", 0, 1],
  },
  "after a block all of the limit is there, even if it was shorter than ttl": {
    throttlers: [{ ttl: MINUTE, limit: 3, blockDuration: 10_000 }],
    steps: [pass(3), retryAfter, advance(10_001), pass(5)],
    expected: [3, "10", 3],
    bucket: { expected: [3, "20", 0], row: "A `blockDuration` shorter than `ttl`" },
  },
  "blockDuration 0: through again as soon as the oldest hit expires": {
    throttlers: [{ ttl: MINUTE, limit: 3, blockDuration: 0 }],
    steps: [
      pass(3),
      async (app) => {
        const after = await retryAfter(app);
        app.advance(Number(after) * 1000 + 1);
        return [after, await app.passed(1)];
      },
    ],
    expected: [3, ["60", 1]],
    // The guard of 6.0.0 takes 0 for missing.
    bucket: { expected: [3, [older ? "60" : "20", 1]], row: "`blockDuration: 0`" },
  },
  "a ttl after the last request all of the limit is there": {
    steps: [pass(3), advance(MINUTE + 1), pass(5)],
    expected: [3, 3],
  },
  "never more than limit within one ttl": {
    throttlers: [{ ttl: MINUTE, limit: 3, blockDuration: -1 }],
    steps: [5, 5, 5, 5].flatMap((times) => [pass(times), advance(MINUTE / 4)]),
    expected: [3, 0, 0, 0],
    bucket: { expected: [3, 0, 1, 1], row: "Requests that come back" },
  },
  "@Throttle": { steps: [pass(5, "/tight"), pass(5, "/written")], expected: [1, 1] },
  ...ofEach(["", "a b", "{x}", "ü", "k".repeat(5000)], (any) => ({
    [`getTracker and generateKey may return "${any.slice(0, 5)}", and endpoints with one key share a limit`]: {
      options: { getTracker: () => any, generateKey: (_: unknown, tracker: string) => tracker },
      steps: [pass(2), pass(2, "/other")],
      expected: [2, 1],
    },
  })),
  "several throttlers: the tightest counts, and its name is in the headers": {
    throttlers: [
      { name: "short", ttl: 1000, limit: 2 },
      { name: "long", ttl: MINUTE, limit: 3 },
    ],
    steps: [
      pass(2),
      header("retry-after-short"),
      advance(1001),
      header("x-ratelimit-remaining-long"),
      advance(1001),
      async (app) => (await header("retry-after-long")(app)) !== null,
    ],
    expected: [2, "1", "0", true],
  },
  "limit, ttl and blockDuration can be functions": {
    throttlers: [{ ttl: () => MINUTE, limit: () => Promise.resolve(2), blockDuration: () => 2 * MINUTE }],
    steps: [pass(4), retryAfter],
    expected: [2, "120"],
  },
};

for (const [promise, one] of Object.entries(CASES)) {
  test(`both: ${promise}`, async (t) => {
    mock.timers.enable({ apis: ["Date"], now: Date.now() });
    t.after(() => mock.timers.reset());
    // Older releases of the original are not what the cases say.
    if (!older) assert.deepEqual(await seen(await startApp(t, one), one.steps), one.expected, "the original");
    await redis.flushall();
    const expected = (one.bucket ?? one).expected;
    assert.deepEqual(await seen(await startApp(t, one, ours()), one.steps), expected, "the bucket");
  });
}

test("each deviation has a row in the docs, and each row a case", () => rowsAreCases("nestjs.md", rowsOf(CASES)));

test("apps share what they count, and nothing is blocked for longer because two deny at once", async (t) => {
  await redis.flushall();
  const apps = await Promise.all([1, 2].map(() => startApp(t, {}, ours())));
  const passed = await Promise.all(Array.from({ length: 20 }, (_, i) => apps[i % 2]!.passed(1)));
  assert.equal(passed.filter(Boolean).length, 3);
  assert.equal(await retryAfter(apps[0]!), "60");
});

test("an override that raises the limit leaves headers that agree", async (t) => {
  await redis.flushall();
  const app = await startApp(t, {}, ours());
  await app.get();
  const [key] = await redis.keys("*");
  await redis.call("TB.OVERRIDE", key!, 50, "50/d", 60_000, "FULL");
  const { header } = await app.get();
  assert.deepEqual([header("x-ratelimit-limit"), header("x-ratelimit-remaining")], ["3", "3"]);
});

test("the server is away: each policy has a status", async (t) => {
  const { own, buckets } = await ownServerFor(t);
  const apps = await byPolicy((onError) => startApp(t, {}, new TokenBucketStorage(buckets, { onError })));
  assert.equal(await apps[0]!.passed(2), 2);
  await own.stop();
  t.after(() => mock.restoreAll());
  mock.method(console, "error", () => {});
  mock.method(process.stderr, "write", () => true);
  const passed = await Promise.all(apps.map((app) => app.passed(4)));
  const [, , closed, thrown] = await Promise.all(apps.map((app) => app.get()));
  assert.deepEqual(passed, [3, 4, 0, 0]);
  assert.deepEqual([closed!.status, closed!.header("retry-after"), thrown!.status], [429, "1", 500]);
});
