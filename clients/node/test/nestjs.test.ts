/**
 * What the README and the types of @nestjs/throttler promise, as a table of cases: each in a Nest app with the
 * storage that the throttler brings, and in one with TokenBucketStorage. Where the two differ, the case says what
 * a bucket does instead, and docs/nestjs.md has a row about it.
 */

import "reflect-metadata";

import assert from "node:assert/strict";
import { after, mock, test, type TestContext } from "node:test";

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
import { Redis } from "ioredis";
import type { Policy } from "tokenbucket-redis";
import { TokenBucketStorage } from "tokenbucket-redis/nestjs";

import { askAt, LIMITS, type Asked } from "./apps.js";
import { older, rowsAreCases, type Compared } from "./deviations.js";
import { clientFor, patient, serverFor, sharedServer } from "./servers.js";

const server = await sharedServer();
const redis = new Redis(server.url);
after(() => redis.disconnect());

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

interface App extends Asked {
  /** Lets time pass, for the storage that counts. */
  advance(ms: number): void;
}

interface Case extends Compared {
  /** Three a minute, unless given. */
  throttlers?: ThrottlerOptions[];
  /** Of the module. */
  options?: Partial<ModuleOptions>;
  run(app: App): Promise<unknown>;
}

async function startApp(
  t: TestContext,
  { throttlers = three, options }: Partial<Case>,
  storage?: ThrottlerStorage,
): Promise<App> {
  const getTracker = (request: Record<string, any>) => Promise.resolve(request.headers["x-user"] ?? request.ip);
  // A guard sorts the array that it is given.
  const copy = throttlers.map((one) => ({ ...one }));
  class AppModule {}
  Module({
    imports: [ThrottlerModule.forRoot({ throttlers: copy, getTracker, ...options, ...(storage && { storage }) })],
    controllers: [AppController],
    providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
  })(AppModule);
  const app: INestApplication = await NestFactory.create(AppModule as Type<unknown>, { logger: false });
  t.after(() => app.close());
  await app.listen(0, "127.0.0.1");
  return {
    ...askAt(await app.getUrl()),
    advance(ms) {
      if (storage) server.advance(ms);
      else mock.timers.tick(ms);
    },
  };
}

const MINUTE = 60_000;
const three: ThrottlerOptions[] = [{ ttl: MINUTE, limit: 3 }];
const shortAndLong: ThrottlerOptions[] = [
  { name: "short", ttl: 1000, limit: 2 },
  { name: "long", ttl: MINUTE, limit: 3 },
];

/** What users write as a ttl or blockDuration, and the Retry-After of three a minute; null: each request fails. */
const DURATIONS: [unknown, string | null][] = [
  [String(MINUTE), "60"],
  [` ${MINUTE} `, "60"],
  ["6e4", "60"],
  [59_999.5, "60"],
  ["abc", null],
];

const CASES: Case[] = [
  ...LIMITS.map(([limit, passed]) => ({
    promise: `the limit ${JSON.stringify(limit)} is read as the throttler reads it`,
    throttlers: [{ ttl: String(MINUTE), limit, blockDuration: "1000" }] as never,
    run: (app: App) => app.passed(5),
    expected: passed,
  })),
  ...DURATIONS.flatMap(([written, retryAfter]) =>
    ["ttl", "blockDuration"].map((name) => ({
      promise: `the ${name} ${JSON.stringify(written)} is read as the throttler reads it`,
      throttlers: [{ ttl: MINUTE, limit: 3, [name]: written as never }],
      run: async ({ get, passed }: App) => [await passed(3), (await get()).header("retry-after")],
      expected: [retryAfter ? 3 : 0, retryAfter],
    })),
  ),
  ...[0, "0", -1].map((ttl) => ({
    promise: `the ttl ${JSON.stringify(ttl)}`,
    throttlers: [{ ttl: ttl as number, limit: 3 }],
    run: ({ passed }: App) => passed(5),
    expected: 5,
    bucket: { expected: 0, row: "A `ttl` of 0 or less" },
  })),
  ...[{ ttl: Infinity }, { ttl: 1e15 }, { ttl: MINUTE, blockDuration: Infinity }].map((endless) => ({
    promise: `after ${Object.entries(endless).join(" ")} no request has come back in a year`,
    throttlers: [{ limit: 3, ...endless }],
    async run({ passed, advance }: App) {
      const first = await passed(5);
      advance(365 * 24 * 60 * MINUTE);
      return [first, await passed(5)];
    },
    expected: [3, 0],
  })),
  {
    promise: "the limit and what remains of it are in headers",
    async run({ get }) {
      const seen = [];
      for (let i = 0; i < 3; i++) {
        const { header } = await get();
        seen.push([header("x-ratelimit-limit"), header("x-ratelimit-remaining")]);
      }
      return seen;
    },
    expected: [
      ["3", "2"],
      ["3", "1"],
      ["3", "0"],
    ],
  },
  {
    promise: "X-RateLimit-Reset: when what is counted has expired",
    run: async ({ get }) => (await get()).header("x-ratelimit-reset"),
    expected: "60",
    bucket: { expected: "20", row: "`X-RateLimit-Reset`" },
  },
  {
    promise: "each endpoint and each tracker has a limit of its own",
    async run({ get, passed }) {
      return [await passed(4, "/"), await passed(4, "/other"), (await get("/", { "x-user": "ada" })).status];
    },
    expected: [3, 3, 200],
  },
  {
    promise: "who exceeds it is blocked for the ttl, and Retry-After says so; trying does not prolong it",
    async run({ get, passed, advance }) {
      await passed(3);
      const first = (await get()).header("retry-after");
      advance(MINUTE - 1);
      const late = await get();
      advance(2);
      return [first, late.status, late.header("retry-after"), await passed(4)];
    },
    expected: ["60", 429, "1", 3],
  },
  {
    promise: "blockDuration: blocked for so long",
    throttlers: [{ ttl: 1000, limit: 3, blockDuration: MINUTE }],
    async run({ get, passed, advance }) {
      await passed(3);
      const first = (await get()).header("retry-after");
      advance(MINUTE - 1);
      const late = (await get()).status;
      advance(2);
      return [first, late, (await get()).status];
    },
    expected: ["60", 429, 200],
  },
  {
    promise: "after a block all of the limit is there, even if it was shorter than ttl",
    throttlers: [{ ttl: MINUTE, limit: 3, blockDuration: 10_000 }],
    async run({ get, passed, advance }) {
      await passed(3);
      const first = (await get()).header("retry-after");
      advance(10_001);
      return [first, await passed(5)];
    },
    expected: ["10", 3],
    bucket: { expected: ["20", 0], row: "A `blockDuration` shorter than `ttl`" },
  },
  {
    promise: "blockDuration 0: through again as soon as the oldest hit expires",
    throttlers: [{ ttl: MINUTE, limit: 3, blockDuration: 0 }],
    async run({ get, passed, advance }) {
      await passed(3);
      const first = (await get()).header("retry-after");
      advance(Number(first) * 1000 + 1);
      return [first, (await get()).status];
    },
    expected: ["60", 200],
    // The guard of 6.0.0 takes 0 for missing.
    bucket: { expected: [older ? "60" : "20", 200], row: "`blockDuration: 0`" },
  },
  {
    promise: "a ttl after the last request all of the limit is there",
    async run({ passed, advance }) {
      await passed(3);
      advance(MINUTE + 1);
      return passed(5);
    },
    expected: 3,
  },
  {
    promise: "never more than limit within one ttl",
    throttlers: [{ ttl: MINUTE, limit: 3, blockDuration: -1 }],
    async run({ passed, advance }) {
      let all = await passed(5);
      for (let i = 0; i < 3; i++) {
        advance(MINUTE / 4);
        all += await passed(5);
      }
      return all;
    },
    expected: 3,
    bucket: { expected: 5, row: "Requests that come back" },
  },
  {
    promise: "@Throttle",
    run: async ({ passed }) => [await passed(5, "/tight"), await passed(5, "/written")],
    expected: [1, 1],
  },
  ...["", "a b", "{x}", "ü", "k".repeat(5000)].map((any) => ({
    promise: `getTracker and generateKey may return "${any.slice(0, 5)}", and endpoints with one key share a limit`,
    options: { getTracker: () => any, generateKey: (_: unknown, tracker: string) => tracker },
    run: async ({ passed }: App) => [await passed(2), await passed(2, "/other")],
    expected: [2, 1],
  })),
  {
    promise: "several throttlers: the tightest counts, and its name is in the headers",
    throttlers: shortAndLong,
    async run({ get, passed, advance }) {
      const passedAtOnce = await passed(2);
      const short = await get();
      advance(1001);
      const third = await get();
      advance(1001);
      const long = await get();
      return [
        passedAtOnce,
        short.status,
        short.header("retry-after-short"),
        third.header("x-ratelimit-remaining-long"),
        long.status,
        long.header("retry-after-long") !== null,
      ];
    },
    expected: [2, 429, "1", "0", 429, true],
  },
  {
    promise: "limit, ttl and blockDuration can be functions",
    throttlers: [{ ttl: () => MINUTE, limit: () => Promise.resolve(2), blockDuration: () => 2 * MINUTE }],
    async run({ get, passed }) {
      return [await passed(4), (await get()).header("retry-after")];
    },
    expected: [2, "120"],
  },
];

for (const one of CASES) {
  const { promise, run, expected, bucket } = one;
  test(`both: ${promise}`, async (t) => {
    mock.timers.enable({ apis: ["Date"], now: Date.now() });
    t.after(() => mock.timers.reset());
    // Older releases of the original are not what the cases say.
    if (!older) assert.deepEqual(await run(await startApp(t, one)), expected, "the original");
    await redis.flushall();
    const app = await startApp(t, one, new TokenBucketStorage(patient(redis)));
    assert.deepEqual(await run(app), bucket ? bucket.expected : expected, "the bucket");
  });
}

test("each deviation has a row in the docs, and each row a case", () => rowsAreCases("nestjs.md", CASES));

test("a value that is none is an error that names it", async () => {
  const storage = new TokenBucketStorage(patient(redis));
  for (const [ttl, limit, blockDuration, error] of [
    [0, 3, 0, /^BadArgument: ttl: 0 is not above 0$/],
    ["abc", 3, 0, /^BadArgument: ttl: abc is not a number$/],
    [null, 3, 0, /^BadArgument: ttl: null is not a number$/],
    [MINUTE, "abc", 0, /^BadArgument: limit: abc is not a number$/],
    [MINUTE, 3, "abc", /^BadArgument: blockDuration: abc is not a number$/],
    [MINUTE, undefined, undefined, /^BadArgument: limit: is missing: /],
  ] as [number, number, number, RegExp][]) {
    await assert.rejects(storage.increment("a", ttl, limit, blockDuration, "default"), error);
  }
});

test("apps share what they count, and nothing is blocked for longer because two deny at once", async (t) => {
  await redis.flushall();
  const apps: App[] = [];
  for (let i = 0; i < 2; i++) apps.push(await startApp(t, {}, new TokenBucketStorage(patient(redis))));
  const answers = await Promise.all(Array.from({ length: 20 }, (_, i) => apps[i % 2]!.get()));
  assert.equal(answers.filter(({ status }) => status === 200).length, 3);
  assert.equal((await apps[0]!.get()).header("retry-after"), "60");
});

test("an override that raises the limit leaves headers that agree", async (t) => {
  await redis.flushall();
  const app = await startApp(t, {}, new TokenBucketStorage(patient(redis)));
  await app.get();
  const [key] = await redis.keys("*");
  await redis.call("TB.OVERRIDE", key!, 50, "50/d", 60_000, "FULL");
  const { header } = await app.get();
  assert.deepEqual([header("x-ratelimit-limit"), header("x-ratelimit-remaining")], ["3", "3"]);
});

test("the server is away: each policy has a status", async (t) => {
  const own = await serverFor(t);
  const { buckets } = await clientFor(t, own);
  const start = (onError: Policy) => startApp(t, {}, new TokenBucketStorage(buckets, { onError }));
  const apps = await Promise.all((["local", "open", "closed", "throw"] as const).map(start));
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
