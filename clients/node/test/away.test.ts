/** A server that goes, hangs, returns, or answers that the call is wrong; and callers who are late, or leave. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { Limiter, ServerAway, ServerError, type ServerOptions } from "tokenbucket-redis";

import { clientFor, LIBRARIES, patient, serverFor, sharedServer, STILL, until, type Server } from "./servers.js";

const LIMIT = { capacity: 3, rate: STILL };

async function serverAndLog(t: TestContext, server: Server, options: ServerOptions = {}, library = "ioredis") {
  const { client, send } = await clientFor(t, server, library);
  const lines: string[] = [];
  const buckets = patient(client, { timeoutMs: 1000, retryEveryMs: 50, log: (line) => lines.push(line), ...options });
  assert.equal((await new Limiter(buckets, LIMIT).take("a")).remaining, 2);
  return { buckets, lines, send };
}

for (const library of Object.keys(LIBRARIES)) {
  test(`${library}: the server is unplugged, and comes back`, async (t) => {
    const server = await serverFor(t);
    const { buckets, lines } = await serverAndLog(t, server, {}, library);
    await server.stop();
    const take = async (onError: "local" | "open" | "closed") => {
      const { allowed, degraded, retryAfterMs } = await new Limiter(buckets, LIMIT, { onError }).take("a");
      return [allowed, degraded, retryAfterMs > 0];
    };
    for (let i = 0; i < 3; i++) assert.deepEqual(await take("local"), [true, true, false]);
    assert.deepEqual(
      await take("local"),
      [false, true, true],
      "this process lets no more through than one bucket holds",
    );
    assert.deepEqual(await take("open"), [true, true, false]);
    assert.deepEqual(await take("closed"), [false, true, true]);
    assert.equal((await new Limiter(buckets, LIMIT, { onError: "open" }).takeUpTo("a", 7)).granted, 7);
    const thrown = new Limiter(buckets, LIMIT, { onError: "throw" }).take("a");
    await assert.rejects(thrown, (error) => {
      assert.ok(error instanceof ServerAway && error.cause instanceof Error);
      return error.message.includes(`127.0.0.1:${server.port}`);
    });
    assert.equal(buckets.degradedCount, 8);

    await server.start();
    const limiter = new Limiter(buckets, LIMIT);
    await until(async () => !(await limiter.take("b")).degraded);
    assert.equal((await limiter.take("a")).remaining, 2, "the new server holds full buckets");
    assert.equal(lines.length, 2, lines.join("\n"));
    assert.match(lines[0]!, /^tokenbucket: cannot ask the server.*, each limit does as its onError says: ./);
    assert.match(lines[1]!, /^tokenbucket: the server.* is back/);
  });

  test(`${library}: the caller's mistakes are thrown, whatever onError says`, async (t) => {
    const { send, buckets } = await clientFor(t, wrongs, library);
    const limiter = new Limiter(buckets, LIMIT);
    await send("SET", "tb:string", "something else");
    await assert.rejects(
      limiter.take("string"),
      (error) => error instanceof ServerError && /WRONGTYPE/.test(error.message),
    );
    // 10^12 tokens at one in a century: each is within its bounds, both together are not.
    await assert.rejects(
      limiter.take("b", 1, { limit: { capacity: 1e12, rate: "1/36500d" } }),
      /ERR refilling capacity/,
    );
    for (const cost of [NaN, -1, Infinity, "many"]) {
      await assert.rejects(limiter.take("b", cost), /^BadArgument: cost: /);
    }
    await send("ACL", "SETUSER", "default", "-tb.take");
    await assert.rejects(limiter.take("a"), /NOPERM/);
    await send("ACL", "SETUSER", "default", "+tb.take");
    assert.equal(buckets.degradedCount, 0);
  });
}

const wrongs = await sharedServer();

test("a server that hangs costs one deadline, and then nothing, until it is back", async (t) => {
  const server = await serverFor(t);
  const { buckets, lines } = await serverAndLog(t, server, { timeoutMs: 200 });
  const limiter = new Limiter(buckets, LIMIT, { onError: "open" });
  server.signal("SIGSTOP");
  const began = performance.now();
  assert.equal((await limiter.take("a")).degraded, true);
  assert.ok(performance.now() - began >= 199, "the deadline");
  const after = performance.now();
  for (let i = 0; i < 1000; i++) assert.equal((await limiter.take("a")).degraded, true);
  assert.ok(performance.now() - after < 200, "nobody waited again");
  assert.match(lines[0]!, /no reply within 200 ms/);
  server.signal("SIGCONT");
  await until(async () => !(await limiter.take("a")).degraded);
  assert.equal(lines.length, 2);
});

test("nothing that was decided here is sent when the server is back", async (t) => {
  const server = await serverFor(t);
  const { buckets } = await serverAndLog(t, server);
  const limiter = new Limiter(buckets, LIMIT);
  await server.stop();
  for (let i = 0; i < 20; i++) assert.equal((await limiter.charge("a", 1)).degraded, true);
  await server.start();
  await until(async () => !(await limiter.peek("a", 0)).degraded);
  assert.equal((await limiter.peek("a", 0)).remaining, 3);
});

test("a server that refuses writes is there: the policy decides such calls, told once", async (t) => {
  const server = await serverFor(t);
  const { buckets, lines, send } = await serverAndLog(t, server);
  await send("REPLICAOF", "127.0.0.1", "1");
  const limiter = new Limiter(buckets, LIMIT);
  assert.equal((await limiter.take("a")).degraded, true);
  assert.equal((await limiter.take("a")).degraded, true);
  assert.equal((await limiter.peek("a", 0)).degraded, false, "what a replica can answer");
  assert.equal(lines.length, 1);
  assert.match(lines[0]!, /the server .* refuses, onError decides such calls: READONLY/);
});

test("names that rotate do not make a spent bucket of this process full", async (t) => {
  const server = await serverFor(t);
  const { buckets } = await serverAndLog(t, server);
  const limiter = new Limiter(buckets, LIMIT);
  await server.stop();
  assert.equal((await limiter.take("spent", 3)).degraded, true);
  for (let i = 0; i < 10_001; i++) await limiter.take(`name${i}`);
  assert.equal((await limiter.take("spent")).allowed, false);
});

test("hooks that throw change no decision", async (t) => {
  const server = await serverFor(t);
  const thrower = (): never => {
    throw new Error("of the application");
  };
  const warnings: string[] = [];
  const listener = ({ message }: Error) => void warnings.push(message);
  process.on("warning", listener);
  t.after(() => process.off("warning", listener));
  const { client } = await clientFor(t, server);
  const limiter = new Limiter(patient(client, { log: thrower, retryEveryMs: 50 }), LIMIT, { onDecision: thrower });
  assert.equal((await limiter.take("a")).remaining, 2);
  await server.stop();
  assert.equal((await limiter.take("a")).degraded, true);
  await server.start();
  await until(async () => !(await limiter.peek("a")).degraded);
  await until(() => warnings.filter((text) => /hook.*of the application/.test(text)).length >= 3);
});

for (const [what, url, error] of [
  ["without a password", (port: number) => `redis://127.0.0.1:${port}`, /NOAUTH/],
  ["with a wrong password", (port: number) => `redis://:wrong@127.0.0.1:${port}`, /WRONGPASS/],
] as const) {
  test(`a client ${what} is told so, and does not pass`, async (t) => {
    const server = await serverFor(t, { args: ["--requirepass", "secret"] });
    const { Redis } = await import("ioredis");
    const client = new Redis(url(server.port));
    client.on("error", () => {});
    t.after(() => client.disconnect());
    await assert.rejects(new Limiter(patient(client), LIMIT).take("a"), error);
  });
}

async function endsAfter(code: string) {
  const { execFile } = await import("node:child_process");
  await new Promise<void>((done, failed) =>
    execFile(process.execPath, ["--input-type=module", "--eval", code], { timeout: 20_000 }, (error) =>
      error ? failed(error) : done(),
    ),
  );
}

test("the connections do not keep a process alive", () =>
  endsAfter(`
    import { createClient } from "redis";
    import { Limiter } from "tokenbucket-redis";
    const client = createClient({ url: "${wrongs.url}" });
    await client.connect();
    await new Limiter(client, { capacity: 1, rate: 1 }).take("a");
    client.destroy();`));

test("nor does a call during which a test replaced the timers", () =>
  endsAfter(`
    import { mock } from "node:test";
    import { Limiter } from "tokenbucket-redis";
    import { FakeServer } from "tokenbucket-redis/testing";
    const { setTimeout } = globalThis;
    const limiter = new Limiter(new FakeServer(), { capacity: 1, rate: 1 });
    const taken = limiter.take("a");
    mock.timers.enable();
    await taken;
    await new Promise((done) => setTimeout(done, 500)); // real time: the client looks after its calls
    mock.timers.reset();`));
