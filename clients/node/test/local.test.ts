/** What a limiter decides itself: denials remembered, tokens in batches; and what it says in headers. */

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { BadArgument, Decision, Limiter, parseLimit, Server, type LimiterOptions } from "tokenbucket-redis";
import { FakeServer } from "tokenbucket-redis/testing";

function setUp(options: LimiterOptions, limit = { capacity: 10, rate: "1/s" }) {
  const server = new FakeServer();
  const send = mock.method(server, "send");
  const asked = () => send.mock.calls.map(({ arguments: [[operation]] }) => operation);
  return { server, asked, limiter: new Limiter(server, limit, options) };
}

test("a denial for ever is asked again, as the limit may change, and one says nothing about another limit", async () => {
  const { asked, limiter } = setUp({ rememberDenials: 2 });
  assert.equal((await limiter.take("a", 11)).retryAfterMs, -1);
  await limiter.take("a", 11);
  assert.equal(asked().length, 2);
  for (const cost of [10, 5, 5]) await limiter.take("a", cost);
  assert.equal(asked().length, 4);
  await limiter.take("a", 5, { limit: { capacity: 5, rate: "5/s" } });
  assert.equal(asked().length, 5);
});

test("a batch is kept until the bucket would be full without it", async () => {
  const { server, asked, limiter } = setUp({ batch: 5 });
  await limiter.take("a");
  server.advance(9999);
  await limiter.take("a");
  assert.equal(asked().length, 1);
  server.advance(1);
  assert.equal((await limiter.take("a")).remaining, 9);
  assert.deepEqual(asked().slice(1), ["TB.GIVE", "TB.TAKEUPTO"], "the rest is given back");
  await limiter.close();
  assert.equal((await new Limiter(server, limiter.limit).peek("a", 0)).remaining, 9, "and so it is by close");
});

test("stale tokens that cannot go back are no decision of the policy", async (t) => {
  const fake = new FakeServer();
  const buckets = new Server(fake, { log: () => {} });
  t.after(() => buckets.close());
  const limiter = new Limiter(buckets, { capacity: 10, rate: "1/s" }, { batch: 5 });
  await limiter.take("a");
  fake.advance(10_000);
  t.mock.method(fake, "send", () => Promise.reject(new Error("unplugged")));
  assert.equal((await limiter.take("a")).degraded, true);
  assert.equal(buckets.degradedCount, 1);
});

test("a limiter that closes while a batch is on its way gives back what its callers leave", async () => {
  const { server, limiter } = setUp({ batch: 10 });
  const takes = Array.from({ length: 5 }, () => limiter.take("a"));
  await limiter.close();
  for (const { allowed } of await Promise.all(takes)) assert.equal(allowed, true);
  assert.equal((await new Limiter(server, limiter.limit).peek("a", 0)).remaining, 5);
});

test("the headers of the draft, and Retry-After rounded up", () => {
  const limit = { capacity: 20, rate: "10/s" };
  const denied = new Decision({ allowed: false, remaining: 0, retryAfterMs: 1001, resetAfterMs: 1999 });
  assert.deepEqual(denied.headers(limit), {
    "RateLimit-Policy": '"default";q=20;w=2',
    RateLimit: '"default";r=0;t=2',
    "Retry-After": "2",
  });
  assert.equal(denied.retryAfterS, 2);
  const allowed = new Decision({ allowed: true, remaining: -3, resetAfterMs: 5000 });
  assert.deepEqual(allowed.headers({ capacity: 7.5, rate: "100@d" }, { name: 'a"b' }), {
    "RateLimit-Policy": '"a\\"b";q=7;w=6480',
    RateLimit: '"a\\"b";r=0;t=5',
  });
  const raised = new Decision({ allowed: true, remaining: 10, resetAfterMs: 500 });
  const overridden = raised.headers({ capacity: 9.5, rate: 1 });
  assert.deepEqual(overridden, { RateLimit: '"default";r=10;t=1' });
  assert.equal(allowed.headers({ capacity: 5, rate: 0 })["RateLimit-Policy"], '"default";q=5', "a pool has no window");
  const never = new Decision({ allowed: false, retryAfterMs: -1 });
  assert.equal(never.headers(limit)["Retry-After"], undefined);
  assert.deepEqual(new Decision({ allowed: false, degraded: true, retryAfterMs: 500 }).headers(limit), {
    "Retry-After": "1",
  });
});

test("jitter makes Retry-After longer, never shorter", () => {
  const denied = new Decision({ allowed: false, retryAfterMs: 10_000 });
  const seen = new Set<number>();
  for (let i = 0; i < 500; i++)
    seen.add(Number(denied.headers({ capacity: 1, rate: 1 }, { jitter: 0.5 })["Retry-After"]));
  assert.ok(Math.min(...seen) >= 10 && Math.max(...seen) <= 15);
  assert.ok(seen.size > 1);
});

test("a limit is read as TB.TAKE takes it", () => {
  assert.deepEqual(parseLimit(" 20  10/s "), { capacity: "20", rate: "10/s" });
  for (const text of ["20", "20 10/s 3", "20 10/fortnight", "many 1/s"]) {
    assert.throws(() => parseLimit(text), BadArgument);
  }
});
