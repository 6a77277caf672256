/** A server that goes, hangs, returns, or answers that the call is wrong; and callers who are late, or leave. */

import assert from "node:assert/strict";
import { execFile, execFileSync } from "node:child_process";
import { createServer } from "node:net";
import { test, type TestContext } from "node:test";
import { inspect, promisify } from "node:util";

import type { Redis } from "ioredis";
import { Limiter, type ServerOptions } from "tokenbucket-redis";
import { FakeServer } from "tokenbucket-redis/testing";

import { portOf } from "./apps.js";
import {
  clientFor,
  IOREDIS,
  LIBRARIES,
  NODE_REDIS,
  ownServerFor,
  patient,
  serverFor,
  sharedServer,
  STILL,
  until,
} from "./servers.js";

const LIMIT = { capacity: 3, rate: STILL };

async function serverAndLog(t: TestContext, options: ServerOptions & { library?: string }) {
  const server = await serverFor(t);
  const lines: string[] = [];
  const log = (line: string) => lines.push(line);
  const { buckets } = await clientFor(t, server, { timeoutMs: 1000, retryEveryMs: 50, log, ...options });
  assert.equal((await new Limiter(buckets, LIMIT).take("a")).remaining, 2);
  return { server, buckets, lines };
}

for (const library of Object.keys(LIBRARIES)) {
  test(`${library}: an outage logs two lines, and what it decided is not sent afterwards`, async (t) => {
    const { server, buckets, lines } = await serverAndLog(t, { library });
    const limiter = new Limiter(buckets, LIMIT, { onError: "open" });
    await server.stop();
    assert.equal((await limiter.takeUpTo("a", 7)).granted, 7);
    for (let i = 0; i < 3; i++) assert.equal((await limiter.charge("a", 1)).degraded, true);
    await server.start();
    await until(async () => !(await limiter.peek("a", 0)).degraded);
    assert.equal((await limiter.peek("a", 0)).remaining, 3, "the new server holds full buckets");
    assert.equal(lines.length, 2, lines.join("\n"));
    assert.match(lines[0]!, /^tokenbucket: cannot ask the server.*, each limit does as its onError says: ./);
    assert.match(lines[1]!, /^tokenbucket: the server.* is back/);
  });
}

const wrongs = await sharedServer();

test("each outage of a server that hangs costs one call the deadline, and logs two lines", async (t) => {
  const { server, buckets, lines } = await serverAndLog(t, { timeoutMs: 200 });
  const limiter = new Limiter(buckets, LIMIT, { onError: "open" });
  for (const told of [2, 4, 6]) {
    server.signal("SIGSTOP");
    const began = performance.now();
    assert.equal((await limiter.take("a")).degraded, true);
    assert.ok(performance.now() - began >= 199, "the deadline");
    for (let i = 0; i < 1000; i++) {
      let hasTurned = false;
      setImmediate(() => (hasTurned = true));
      assert.deepEqual([(await limiter.take("a")).degraded, hasTurned], [true, false], "no call waits again");
    }
    assert.match(lines.at(-1)!, /no reply within 200 ms/);
    server.signal("SIGCONT");
    await until(async () => !(await limiter.take("a")).degraded);
    assert.equal(lines.length, told);
  }
});

test("a server that refuses writes is there: the policy decides such calls, told once", async (t) => {
  const fake = new FakeServer();
  t.mock.method(fake, "send", () => Promise.reject(new Error("OOM command not allowed")));
  const lines: string[] = [];
  const limiter = new Limiter(patient(fake, { log: (line) => lines.push(line) }), LIMIT);
  for (const remaining of [2, 1]) assert.equal((await limiter.take("a")).remaining, remaining);
  assert.match(lines.join("\n"), /^tokenbucket: the server refuses, onError decides such calls: OOM [a-z ]*$/);
});

test("names that rotate do not make a spent bucket of this process full", async (t) => {
  const fake = new FakeServer();
  t.mock.method(fake, "send", () => Promise.reject(new Error("unplugged")));
  const limiter = new Limiter(patient(fake), LIMIT);
  await limiter.take("spent", 3);
  for (let i = 0; i < 10_001; i++) await limiter.take(`name${i}`);
  assert.equal((await limiter.take("spent")).allowed, false);
});

test("hooks that throw change no decision", async (t) => {
  const thrower = (): never => {
    throw new Error("of the application");
  };
  const warnings: string[] = [];
  const listener = ({ message }: Error) => void warnings.push(message);
  process.on("warning", listener);
  t.after(() => process.off("warning", listener));
  const { own, buckets } = await ownServerFor(t, {}, { log: thrower, retryEveryMs: 50 });
  const limiter = new Limiter(buckets, LIMIT, { onDecision: async () => thrower() });
  assert.equal((await limiter.take("a")).remaining, 2);
  await own.stop();
  assert.equal((await limiter.take("a")).degraded, true);
  await own.start();
  await until(async () => !(await limiter.peek("a")).degraded);
  await until(() => warnings.filter((text) => /hook.*of the application/.test(text)).length >= 3);
});

test("a call that must happen once notices that the server has closed its idle connection", async (t) => {
  const { buckets } = await clientFor(t, wrongs, { timeoutMs: 500 });
  const limiter = new Limiter(buckets, LIMIT);
  await until(async () => !(await limiter.peek("once")).degraded);
  await new Promise((passed) => setTimeout(passed, 1000)); // until nothing is listened to
  // Keeps the event loop from noticing.
  const kill = 's.sendall(b"CLIENT KILL TYPE normal\\r\\n"); s.recv(9)';
  const connect = `import socket; s = socket.create_connection(("127.0.0.1", ${wrongs.port}))`;
  execFileSync("python3", ["-c", `${connect}; ${kill}`]);
  assert.equal((await limiter.give("once", 1)).lost, false);
});

for (const [library, { createClient }] of Object.entries(NODE_REDIS)) {
  test(`${library}: a client that may queue one command does not make its server away`, async (t) => {
    const client = createClient({ url: wrongs.url, commandsQueueMaxLength: 1 });
    const buckets = patient(client);
    t.after(() => buckets.close());
    const limiter = new Limiter(buckets, LIMIT);
    await Promise.all(Array.from({ length: 30 }, () => limiter.take("queue")));
    assert.equal(buckets.degradedCount, 0);
  });
}

const locked = await sharedServer({ args: ["--requirepass", "secret"] });

for (const [library, { single }] of Object.entries(LIBRARIES).filter(([library]) => !library.includes("pool"))) {
  test(`${library}: what is wrong in how to connect is thrown, whatever onError says`, async () => {
    const take = async (url: string, tls?: object) => {
      const client = single(url.replace("PORT", String(locked.port)), tls) as Redis;
      const buckets = patient(client.on("error", () => {}));
      return new Limiter(buckets, LIMIT, { onError: "open" }).take(library).finally(() => buckets.close());
    };
    assert.equal((await take("redis://:secret@127.0.0.1:PORT/1")).remaining, 2);
    await assert.rejects(take("redis://:secret@127.0.0.1:PORT/99"), /ServerError: ERR .*DB index/);
    await assert.rejects(take("redis://:s3cret@127.0.0.1:PORT"), (error) => {
      assert.match(String(error), /ServerError: (WRONGPASS|NOAUTH)/);
      assert.doesNotMatch(inspect(error, { depth: null }), /s3cret/);
      return true;
    });
    await assert.rejects(take("redis://127.0.0.1:PORT"), /ServerError: NOAUTH/);
    await assert.rejects(take("rediss://127.0.0.1:PORT", { minVersion: "TLSv9" }), /TLSv9/);
  });
}

for (const [library, { Redis }] of Object.entries(IOREDIS)) {
  test(`${library}: a sentinel that refuses, or does not know the master, is no outage`, async (t) => {
    for (const [reply, said] of [
      ["-NOAUTH Authentication required.", /ServerError: NOAUTH/],
      ["*-1", /ServerError: ERR no sentinel knows the master 'tokens'/],
    ] as const) {
      const toEach = (commands: Buffer) => `${reply}\r\n`.repeat(String(commands).match(/^[*]/gm)!.length);
      const sentinel = createServer((socket) => socket.on("data", (data) => socket.write(toEach(data))));
      const port = await portOf(t, sentinel);
      const client = new Redis({ sentinels: [{ host: "127.0.0.1", port }], name: "tokens", lazyConnect: true });
      const buckets = patient(client.on("error", () => {}));
      await assert.rejects(new Limiter(buckets, LIMIT, { onError: "open" }).take("a"), said);
    }
  });
}

const endsAfter = (code: string) =>
  promisify(execFile)(process.execPath, ["--input-type=module", "--eval", code], { timeout: 20_000 });

test("the connections do not keep a process alive", async () => {
  await endsAfter(`
    import { createClient } from "redis";
    import { Limiter } from "tokenbucket-redis";
    const client = createClient({ url: "${wrongs.url}" });
    await client.connect();
    await new Limiter(client, { capacity: 1, rate: 1 }).take("a");
    client.destroy();`);
});

test("nor does a call during which a test replaced the timers", async () => {
  await endsAfter(`
    import { mock } from "node:test";
    import { Limiter } from "tokenbucket-redis";
    import { FakeServer } from "tokenbucket-redis/testing";
    const { setTimeout } = globalThis;
    const limiter = new Limiter(new FakeServer(), { capacity: 1, rate: 1 });
    const taken = limiter.take("a");
    mock.timers.enable();
    await taken;
    await new Promise((done) => setTimeout(done, 500)); // real time: the client looks after its calls
    mock.timers.reset();`);
});
