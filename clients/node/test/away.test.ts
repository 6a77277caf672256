/** A server that goes, hangs, returns, or answers that the call is wrong. */

import assert from "node:assert/strict";
import { mock, test, type TestContext } from "node:test";

import { Limiter, ServerAway, type Connection, type LimiterOptions } from "tokenbucket-redis";

import { clientFor, LIBRARIES, PATIENT, serverFor, sharedServer, STILL, until, type Server } from "./servers.js";

const LIMIT = { capacity: 3, rate: STILL };

interface Subject {
  limiter: Limiter;
  /** On the same client, for what has to be seen however loaded the machine is. */
  patient: Limiter;
  lines: string[];
}

async function limiterFor(
  t: TestContext,
  server: Server,
  options: LimiterOptions = {},
  library = "ioredis",
): Promise<Subject> {
  const { client } = await clientFor(t, server, library);
  const lines: string[] = [];
  const log = (line: string) => lines.push(line);
  const limiter = new Limiter(client, LIMIT, { timeoutMs: 1000, retryEveryMs: 50, log, ...options });
  const patient = new Limiter(client, LIMIT, PATIENT);
  assert.equal((await patient.take("a")).remaining, 2);
  return { limiter, patient, lines };
}

for (const [library, onError] of [
  ["ioredis", "open"],
  ["ioredis", "closed"],
  ["iovalkey", "open"],
  ["node-redis", "closed"],
] as const) {
  test(`${library}, ${onError}: the server is unplugged, and comes back`, async (t) => {
    const server = await serverFor(t);
    const { limiter, patient, lines } = await limiterFor(t, server, { onError }, library);

    await server.stop();
    for (let i = 0; i < 5; i++) {
      const decision = await limiter.take("a");
      assert.deepEqual([decision.allowed, decision.degraded], [onError === "open", true]);
      assert.equal(decision.retryAfterMs, onError === "open" ? 0 : 50);
    }
    assert.equal((await limiter.takeUpTo("a", 7)).granted, onError === "open" ? 7 : 0);

    await server.start();
    await until(async () => !(await limiter.take("b")).degraded);
    assert.equal((await patient.take("a")).remaining, 2, "the new server holds full buckets");
    assert.equal(lines.length, 2, lines.join("\n"));
    assert.match(lines[0]!, /^tokenbucket: cannot ask the server, each limit does as its onError says: ./);
    assert.match(lines[1]!, /^tokenbucket: the server is back/);
  });
}

test("throw: calls are rejected with ServerAway, and its cause", async (t) => {
  const server = await serverFor(t);
  const { limiter } = await limiterFor(t, server, { onError: "throw" });
  await server.stop();
  await assert.rejects(limiter.take("a"), (error) => error instanceof ServerAway && error.cause instanceof Error);
});

test("a server that hangs costs one deadline, and then nothing", async (t) => {
  const server = await serverFor(t);
  const { limiter, lines } = await limiterFor(t, server, { timeoutMs: 200, retryEveryMs: 60_000 });
  server.signal("SIGSTOP");
  t.after(() => server.signal("SIGCONT"));
  const began = performance.now();
  assert.equal((await limiter.take("a")).degraded, true);
  assert.ok(performance.now() - began >= 199, "the deadline");
  const after = performance.now();
  for (let i = 0; i < 1000; i++) assert.equal((await limiter.take("a")).degraded, true);
  assert.ok(performance.now() - after < 200, "nobody waited again");
  assert.match(lines[0]!, /no reply within 200 ms/);
});

test("one call at a time asks whether a server that hangs is back", async (t) => {
  const server = await serverFor(t);
  const { limiter, lines } = await limiterFor(t, server, { timeoutMs: 200, retryEveryMs: 50 });
  server.signal("SIGSTOP");
  await limiter.take("a");
  server.signal("SIGCONT");
  await until(async () => !(await limiter.take("a")).degraded);
  assert.equal(lines.length, 2);
});

test("a call that was overtaken does not make the server go again", async (t) => {
  const replies: ((reply: unknown) => void)[] = [];
  const connection: Connection = {
    isReady: true,
    onReady() {},
    onError() {},
    send: () => new Promise((replied) => replies.push(replied)),
    transaction: () => Promise.resolve([]),
  };
  const lines: string[] = [];
  const log = (line: string) => lines.push(line);
  const limiter = new Limiter(connection, LIMIT, { timeoutMs: 100, retryEveryMs: 0, log });
  mock.timers.enable({ apis: ["setTimeout"] });
  t.after(() => mock.timers.reset());
  const first = limiter.take("a");
  mock.timers.tick(50);
  const second = limiter.take("a");
  mock.timers.tick(50);
  assert.equal((await first).degraded, true);
  const third = limiter.take("a");
  replies[2]!([1, 2, 0, 0]);
  assert.equal((await third).degraded, false);
  mock.timers.tick(50);
  assert.equal((await second).degraded, true);
  assert.equal(lines.length, 2, lines.join("\n"));
});

test("nothing that the policy answered is sent when the server is back", async (t) => {
  const server = await serverFor(t);
  const { limiter, patient } = await limiterFor(t, server, { timeoutMs: 50, retryEveryMs: 0 });
  await server.stop();
  for (let i = 0; i < 20; i++) assert.equal((await limiter.charge("a", 1)).degraded, true);
  await server.start();
  await until(async () => !(await limiter.peek("a", 0)).degraded);
  assert.equal((await patient.peek("a", 0)).remaining, 3);
});

test("limiters on one client share the line that tells of it", async (t) => {
  const server = await serverFor(t);
  const { client } = await clientFor(t, server);
  const lines: string[] = [];
  const log = (line: string) => lines.push(line);
  const limiters = [1, 2, 3].map(
    (capacity) => new Limiter(client, { ...LIMIT, capacity }, { log, retryEveryMs: 60_000 }),
  );
  await until(async () => !(await limiters[0]!.take("a")).degraded);
  lines.length = 0;
  await server.stop();
  for (const limiter of limiters) assert.equal((await limiter.take("a")).degraded, true);
  assert.equal(lines.length, 1);
});

test("a server that refuses writes is there: the policy decides such calls, told once", async (t) => {
  const server = await serverFor(t);
  const { limiter, lines } = await limiterFor(t, server);
  const { send } = await clientFor(t, server);
  await send("REPLICAOF", "127.0.0.1", "1");
  assert.equal((await limiter.take("a")).degraded, true);
  assert.equal((await limiter.take("a")).degraded, true);
  assert.equal((await limiter.peek("a", 0)).degraded, false, "what a replica can answer");
  assert.equal(lines.length, 1);
  assert.match(lines[0]!, /the server refuses, onError decides such calls: READONLY/);
});

const wrongs = await sharedServer();
for (const library of Object.keys(LIBRARIES)) {
  test(`${library}: the caller's mistakes are thrown, whatever onError says`, async (t) => {
    const { client, send } = await clientFor(t, wrongs, library);
    const lines: string[] = [];
    const limiter = new Limiter(client, LIMIT, { log: (line) => lines.push(line), timeoutMs: 5000 });
    await send("SET", "tb:string", "something else");
    await assert.rejects(limiter.take("string"), /WRONGTYPE/);
    // 10^12 tokens at one in a century: each is within its bounds, both together are not.
    const limit = { capacity: 1e12, rate: "1/36500d" };
    await assert.rejects(limiter.take("b", 1, { limit }), /^[^]*ERR refilling capacity/);
    for (const cost of [NaN, -1, Infinity, "many"]) {
      await assert.rejects(limiter.take("b", cost), /^RangeError: cost: /);
    }
    assert.deepEqual(lines, []);
  });

  test(`${library}: so is a user that may not, or is nobody`, async (t) => {
    const server = await serverFor(t);
    const { client, send } = await clientFor(t, server, library);
    const limiter = new Limiter(client, LIMIT, { log: () => {}, timeoutMs: 5000 });
    await limiter.take("a");
    const admin = await clientFor(t, server);
    await send("ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@connection");
    await send("AUTH", "limited", "secret");
    await assert.rejects(limiter.take("a"), /NOPERM/);
    await admin.send("ACL", "SETUSER", "limited", "allcommands");
    await limiter.take("a");
  });
}

for (const [what, url, error] of [
  ["without a password", (port: number) => `redis://127.0.0.1:${port}`, /NOAUTH/],
  ["with a wrong password", (port: number) => `redis://:wrong@127.0.0.1:${port}`, /WRONGPASS/],
] as const) {
  test(`a client ${what} is told so, and does not pass by failing open`, async (t) => {
    const server = await serverFor(t, { args: ["--requirepass", "secret"] });
    const { Redis } = await import("ioredis");
    const client = new Redis(url(server.port));
    client.on("error", () => {});
    t.after(() => client.disconnect());
    await assert.rejects(new Limiter(client, LIMIT, { timeoutMs: 20_000 }).take("a"), error);
  });
}
