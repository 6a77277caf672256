/** The middleware, in an Express app and in a Fastify app. */

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test, type TestContext } from "node:test";

import express, { type Request } from "express";
import Fastify, { type FastifyRequest } from "fastify";
import Fastify4 from "fastify-4";
import { Limiter, type Limit } from "tokenbucket-redis";
import { clientAddress, rateLimit as rateLimitOfExpress, type RateLimitOptions } from "tokenbucket-redis/express";
import { rateLimit as rateLimitOfFastify } from "tokenbucket-redis/fastify";

import { askAt, byPolicy, serveExpress, type Asked } from "./apps.js";
import { emptiedClientFor, ownServerFor, sharedServer, STILL } from "./servers.js";

const server = await sharedServer();

type Options = RateLimitOptions<Request | FastifyRequest>;

/** An app that limits "/"; errors are answered with their text. */
type Serve = (t: TestContext, limiter: Limiter, ...options: Options[]) => Promise<Asked>;

function byExpress(make: typeof express): Serve {
  return async (t, limiter, ...options) => {
    const app = make();
    for (const one of options.length > 0 ? options : [{}]) app.use(rateLimitOfExpress(limiter, one));
    app.get("/", (_request, response) => {
      response.send("passed");
    });
    return askAt(await serveExpress(t, app));
  };
}

function byFastify(make: typeof Fastify): Serve {
  return async (t, limiter, ...options) => {
    const app = make();
    for (const one of options.length > 0 ? options : [{}]) app.addHook("onRequest", rateLimitOfFastify(limiter, one));
    app.get("/", async () => "passed");
    app.setErrorHandler((error: Error, _request, reply) => reply.code(500).send(`${error.name}: ${error.message}`));
    t.after(() => app.close());
    return askAt(await app.listen({ port: 0, host: "127.0.0.1" }));
  };
}

const FRAMEWORKS: Record<string, Serve> = {
  express: byExpress(express),
  "express 4": byExpress(createRequire(import.meta.url)("express-4")),
  fastify: byFastify(Fastify),
  "fastify 4": byFastify(Fastify4 as never),
};

/** Of users who have their own. */
const LIMITS: Record<string, Limit> = {
  rich: { capacity: 500, rate: STILL },
  suspended: { capacity: 0, rate: STILL },
};

async function limiterFor(t: TestContext, limit: Limit): Promise<Limiter> {
  const { buckets } = await emptiedClientFor(t, server);
  return new Limiter(buckets, limit);
}

for (const [framework, serve] of Object.entries(FRAMEWORKS)) {
  test(`${framework}: a burst passes, the next is 429, and passes after Retry-After`, async (t) => {
    const { get } = await serve(t, await limiterFor(t, { capacity: 2, rate: "1/2s" }));
    const first = await get();
    assert.deepEqual([first.status, first.text], [200, "passed"]);
    assert.equal(first.header("ratelimit-policy"), '"default";q=2;w=4');
    assert.equal(first.header("ratelimit"), '"default";r=1;t=2');
    assert.equal(first.header("retry-after"), null);
    await get();
    server.advance(500);
    const denied = await get();
    assert.equal(denied.status, 429);
    assert.deepEqual(JSON.parse(denied.text), { error: "rate limit exceeded", retryAfterMs: 1500 });
    assert.equal(denied.header("ratelimit"), '"default";r=0;t=4');
    assert.equal(denied.header("retry-after"), "2");
    server.advance(2000);
    assert.equal((await get()).status, 200);
  });

  test(`${framework}: keys, costs and limits are functions of the request`, async (t) => {
    const limiter = await limiterFor(t, { capacity: 5, rate: STILL });
    const { get } = await serve(t, limiter, {
      key: ({ headers }) => String(headers["x-user"]),
      cost: ({ headers }) => Number(headers["x-cost"] ?? 1),
      limit: ({ headers }) => LIMITS[String(headers["x-user"])],
      name: "per-user",
    });
    const ask = async (user: string, cost: unknown) => get("/", { "x-user": user, "x-cost": String(cost) });
    for (const cost of ["nonsense", "-1", "Infinity"]) {
      const { status, text } = await ask("a", cost);
      assert.equal(status, 400);
      assert.match(text, /the cost of this request is not a number from 0 to 1e12/);
    }
    assert.equal((await ask("a", 5)).header("ratelimit"), '"per-user";r=0;t=1800');
    assert.equal((await ask("a", 1)).status, 429);
    assert.equal((await ask("b", 1)).status, 200);
    assert.equal((await ask("rich", 400)).header("ratelimit-policy"), '"per-user";q=500;w=180000');
    for (const never of [await ask("b", 6), await ask("suspended", 1)]) {
      assert.deepEqual([never.status, never.header("retry-after")], [429, null], "there is no moment to wait for");
      assert.match(never.text, /costs more than its limit holds/);
    }
  });

  test(`${framework}: two limiters on one route both say what they have left`, async (t) => {
    const limiter = await limiterFor(t, { capacity: 5, rate: STILL });
    const { get } = await serve(
      t,
      limiter,
      { key: () => "a", name: "user" },
      { key: () => "b", name: "route", cost: 2 },
    );
    const { status, header } = await get();
    assert.equal(status, 200);
    assert.equal(header("ratelimit"), '"user";r=4;t=360, "route";r=3;t=720');
    assert.equal(header("ratelimit-policy"), '"user";q=5;w=1800, "route";q=5;w=1800');
  });

  test(`${framework}: the server is away: each policy has a status; mistakes go to the error handler`, async (t) => {
    const { own, buckets, send } = await ownServerFor(t);
    await send("SET", "tb:k", "something else");
    const limit = { capacity: 1, rate: STILL };
    const apps = await byPolicy((onError) => serve(t, new Limiter(buckets, limit, { onError }), { key: () => "k" }));
    assert.match((await apps[0]!.get()).text, /^ServerError: WRONGTYPE/);
    await own.stop();
    const answers = [];
    for (const { get } of [apps[0]!, ...apps]) answers.push(await get());
    const statuses = answers.map(({ status }) => status);
    assert.deepEqual(statuses, [200, 429, 200, 503, 500]);
    const waits = answers.map(({ header }) => Number(header("retry-after")));
    assert.deepEqual(waits.toSpliced(1, 1), [0, 0, 1, 0]);
    assert.ok(waits[1]! > 300 && waits[1]! <= 360, `${waits[1]} seconds: this process's time passes meanwhile`);
    assert.match(answers[4]!.text, /^ServerAway: cannot ask the server 127\.0\.0\.1:/);
  });
}

test("what is no address is a key as it is, and an IPv4 address the same in IPv6 clothes", () => {
  assert.equal(clientAddress("::ffff:203.0.113.1"), "203.0.113.1");
  assert.equal(clientAddress("unix:"), "unix:");
  assert.equal(clientAddress(undefined), "");
});
