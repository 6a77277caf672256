/** The typed command and the middleware factory against a real server. */

import assert from "node:assert/strict";
import type { AddressInfo } from "node:net";
import { after, before, beforeEach, test, type TestContext } from "node:test";

import express from "express";
import type { Redis } from "ioredis";

import { redisService, waitFor, type Service } from "../dev/services.js";
import { rateLimitOn, type RateLimitOptions } from "../src/rate-limit.js";
import { connect, type Decision } from "../src/tokenbucket.js";

const STILL = "10/h";
const TAKE_ONE = { capacity: 1, rate: STILL, key: () => "k" };

let service: Service;
let redis: Redis;

before(async () => {
  service = await (await redisService()).start();
  redis = connect(`redis://127.0.0.1:${service.port}`, { timeoutMs: 5000 });
  redis.on("error", () => {});
  await waitFor("the client", 10_000, () => redis.status === "ready");
});
beforeEach(() => redis.flushall());
after(async () => {
  redis.disconnect();
  await service.remove();
});

async function serve(t: TestContext, options: RateLimitOptions, on = redis): Promise<string> {
  const app = express();
  const quiet = () => {};
  app.get("/", rateLimitOn(on, quiet)(options), (_req, res) => {
    res.send("passed");
  });
  app.use(((error, _req, res, _next) => {
    res.status(500).send(String(error.message));
  }) satisfies express.ErrorRequestHandler);
  const server = app.listen(0, "127.0.0.1");
  await new Promise((listening) => server.once("listening", listening));
  t.after(() => new Promise((closed) => server.close(closed)));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
}

test("the command replies a typed decision", async () => {
  const limit = { capacity: 10, rate: STILL };
  const first: Decision = await redis["tb.take"]("k", limit, 4);
  assert.deepEqual([first.allowed, first.remaining, first.retryAfterMs], [true, 6, 0]);
  assert.ok(first.resetAfterMs > 3 * 360_000 && first.resetAfterMs <= 4 * 360_000);

  const denied = await redis["tb.take"]("k", limit, 7);
  assert.deepEqual([denied.allowed, denied.remaining], [false, 6]);
  assert.ok(denied.retryAfterMs > 300_000 && denied.retryAfterMs <= 360_000);
  assert.equal((await redis["tb.take"]("k", limit, 11)).retryAfterMs, -1);
  assert.equal((await redis["tb.take"]("k", limit)).remaining, 5, "the cost is 1 by default");
});

test("the command is the same in a pipeline and in a transaction", async () => {
  const limit = { capacity: 2, rate: STILL };
  for (const batch of [redis.pipeline(), redis.multi()]) {
    const replies = await batch["tb.take"]("k", limit, 1).incr("n").exec();
    const [error, decision] = replies?.[0] as [Error | null, Decision];
    assert.equal(error, null);
    assert.equal(decision.allowed, true);
  }
});

test("50 parallel calls get no more than there is", async () => {
  const limit = { capacity: 10, rate: STILL };
  const decisions = await Promise.all(Array.from({ length: 50 }, () => redis["tb.take"]("k", limit)));
  assert.equal(decisions.filter((decision) => decision.allowed).length, 10);
});

test("wrong options are refused when the middleware is made", () => {
  const rateLimit = rateLimitOn(redis);
  const wrong = (options: object) => () => rateLimit({ ...TAKE_ONE, ...options } as RateLimitOptions);
  for (const capacity of [-1, NaN, Infinity, 1e13, "ten", undefined]) {
    assert.throws(wrong({ capacity }), /^RangeError: capacity: /);
  }
  for (const rate of ["", "fast", "10/", "10/w", "/s", "10/s/s", -1, "0", "0/s", "10/0s", "1 /s"]) {
    assert.throws(wrong({ rate }), /^RangeError: rate: /);
  }
  assert.throws(wrong({ cost: -1 }), /^RangeError: cost: /);
  assert.throws(wrong({ key: "ip" }), /^TypeError: key: /);
  assert.throws(wrong({ onError: "maybe" }), /^TypeError: onError: /);
});

test("rates that are good are good for the server too", async () => {
  const rateLimit = rateLimitOn(redis);
  for (const rate of ["100/m", "10/10s", "1/250ms", "5000/h", "3/d", 5, 0.25, "1e-3", ".5"]) {
    rateLimit({ ...TAKE_ONE, rate });
    assert.equal((await redis["tb.take"](`k:${rate}`, { capacity: 1, rate })).allowed, true);
  }
});

test("a cost that is no number is an error, not a free pass", async (t) => {
  const url = await serve(t, { ...TAKE_ONE, cost: () => NaN });
  const answer = await fetch(url);
  assert.equal(answer.status, 500);
  assert.match(await answer.text(), /cost: NaN/);
});

test("a suspended caller (capacity 0) is denied, without Retry-After", async (t) => {
  const answer = await fetch(await serve(t, { ...TAKE_ONE, capacity: 0 }));
  assert.equal(answer.status, 429);
  assert.equal(answer.headers.get("retry-after"), null);
});

test("what the server refuses is an error, whatever onError says", async (t) => {
  // 10^12 tokens at one in a century: each is within its bounds, both together are not.
  const url = await serve(t, { ...TAKE_ONE, capacity: 1e12, rate: "1/36500d", onError: "allow" });
  const answer = await fetch(url);
  assert.equal(answer.status, 500);
  assert.match(await answer.text(), /^ERR /);
});

test("onError can be a function", async (t) => {
  const gone = await (await redisService()).start();
  const client = connect(`redis://127.0.0.1:${gone.port}`);
  client.on("error", () => {});
  t.after(() => {
    client.disconnect();
    return gone.remove();
  });
  await waitFor("the client", 10_000, () => client.status === "ready");
  const url = await serve(
    t,
    { ...TAKE_ONE, onError: (error, _req, res) => void res.status(418).send(error.constructor.name) },
    client,
  );
  assert.equal((await fetch(url)).status, 200);
  await gone.stop();
  const answer = await fetch(url);
  assert.equal(answer.status, 418);
  assert.match(await answer.text(), /Error$/);
});
