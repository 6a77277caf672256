/** The app over HTTP, as its own process, against a real server. */

import assert from "node:assert/strict";
import { createServer, request, type IncomingHttpHeaders } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, beforeEach, test, type TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import type { Redis } from "ioredis";

import { appService, RedisServer, waitFor, type Service } from "./services.js";
import { connect } from "../src/redis.js";

// One token in six minutes: nothing flows in while a test runs.
const STILL = "10/h";

/** The server that most tests share; each test starts with it empty. */
let sharedRedis: RedisServer;
let client: Redis;

before(async () => {
  sharedRedis = await RedisServer.launch();
  client = connect(redisUrl(sharedRedis));
  client.on("error", () => {});
  await waitFor("the test's own client", 10_000, () => client.status === "ready");
});
beforeEach(() => client.flushall());
after(async () => {
  client.disconnect();
  sharedRedis.remove();
});

interface Answer {
  status: number;
  headers: IncomingHttpHeaders;
  body: Record<string, unknown>;
}

interface App {
  service: Service;
  get(path: string, headers?: Record<string, string>, from?: { port?: number; address?: string }): Promise<Answer>;
}

const redisUrl = ({ port }: RedisServer) => `redis://127.0.0.1:${port}`;
const statuses = (answers: Answer[]) => answers.map((answer) => answer.status);

function get(port: number, path: string, headers = {}, localAddress = "127.0.0.1"): Promise<Answer> {
  return new Promise((done, failed) => {
    const sent = request({ host: "127.0.0.1", port, path, headers, localAddress, agent: false });
    sent.on("error", failed).on("response", async (response) => {
      let text = "";
      for await (const chunk of response.setEncoding("utf8")) text += chunk;
      const json = /json/.test(response.headers["content-type"] ?? "");
      done({
        status: response.statusCode ?? 0,
        headers: response.headers,
        body: json ? JSON.parse(text) : { text },
      });
    });
    sent.end();
  });
}

/**
 * Starts the app. Five seconds are plenty for a loaded machine to ask Redis, so that no test passes
 * or fails by the policy for errors unless it is about that.
 */
async function startApp(t: TestContext, redis: RedisServer, settings: NodeJS.ProcessEnv): Promise<App> {
  const service = await appService({
    REDIS_URL: redisUrl(redis),
    REDIS_TIMEOUT_MS: "5000",
    IP_LIMIT: "1000 1000/s",
    ...settings,
  });
  t.after(() => service.remove());
  await service.start();
  return { service, get: (path, headers, from) => get(from?.port ?? service.port, path, headers, from?.address) };
}

async function ownRedis(t: TestContext, ...options: string[]): Promise<RedisServer> {
  const redis = await RedisServer.launch(...options);
  t.after(() => redis.remove());
  return redis;
}

async function several(times: number, ask: (i: number) => Promise<Answer>): Promise<Answer[]> {
  const answers: Answer[] = [];
  for (let i = 0; i < times; i++) answers.push(await ask(i));
  return answers;
}

test("a burst passes, the next is 429, and after Retry-After it passes", async (t) => {
  const app = await startApp(t, sharedRedis, { IP_LIMIT: "3 1/2s" });
  const began = performance.now();
  const allowed: Answer[] = [];
  let denied: Answer | undefined;
  while (!denied) {
    const answer = await app.get("/");
    if (answer.status === 429) denied = answer;
    else allowed.push(answer);
  }
  // Exactly the burst, and what flowed in meanwhile on a machine that is slow.
  const flowedIn = (performance.now() - began) / 2000;
  assert.ok(allowed.length >= 3 && allowed.length <= 3 + flowedIn, `${allowed.length} passed`);

  const first = allowed[0]!;
  assert.equal(first.status, 200);
  assert.equal(first.headers["ratelimit-policy"], '"default";q=3;w=6');
  assert.equal(first.headers["ratelimit"], '"default";r=2;t=2');
  assert.equal(first.headers["retry-after"], undefined);

  const retryAfterMs = Number(denied.body.retryAfterMs);
  assert.ok(retryAfterMs > 0 && retryAfterMs <= 2000);
  assert.equal(denied.headers["retry-after"], String(Math.ceil(retryAfterMs / 1000)));
  assert.match(String(denied.headers["ratelimit"]), /^"default";r=0;/);
  await sleep(Number(denied.headers["retry-after"]) * 1000);
  assert.equal((await app.get("/")).status, 200);
});

test("a route has a limit of its own, and so has each address", async (t) => {
  const app = await startApp(t, sharedRedis, { SEARCH_LIMIT: `2 ${STILL}` });
  const answers = await several(3, () => app.get("/search?q=hi"));
  assert.deepEqual(statuses(answers), [200, 200, 429]);
  assert.deepEqual(answers[0]?.body, { q: "hi" });
  assert.match(String(answers[0]?.headers["ratelimit-policy"]), /;q=2;/);
  assert.equal((await app.get("/")).status, 200);
  assert.equal((await app.get("/search", {}, { address: "127.0.0.2" })).status, 200);
});

test("a request costs what its cost function says", async (t) => {
  const app = await startApp(t, sharedRedis, { EXPORT_LIMIT: `1000 ${STILL}` });
  const first = await app.get("/export?rows=600");
  assert.equal(first.status, 200);
  assert.match(String(first.headers["ratelimit"]), /;r=400;/);

  const denied = await app.get("/export?rows=500");
  assert.equal(denied.status, 429);
  const seconds = Number(denied.headers["retry-after"]);
  assert.ok(seconds > 99 * 360 && seconds <= 100 * 360, `${seconds}`);
  assert.equal((await app.get("/export?rows=400")).status, 200);

  const never = await app.get("/export?rows=1001");
  assert.equal(never.status, 429);
  assert.equal(never.headers["retry-after"], undefined);

  for (const rows of ["", "0", "-1", "1e3", "many"]) {
    assert.equal((await app.get(`/export?rows=${rows}`)).status, 400);
  }
});

test("a forged X-Forwarded-For is no new bucket", async (t) => {
  const app = await startApp(t, sharedRedis, { IP_LIMIT: `2 ${STILL}` });
  const answers = await several(4, (i) => app.get("/", { "X-Forwarded-For": `203.0.113.${i}` }));
  assert.deepEqual(statuses(answers), [200, 200, 429, 429]);
});

test("behind a trusted proxy the address is the one that the proxy saw", async (t) => {
  const app = await startApp(t, sharedRedis, { IP_LIMIT: `2 ${STILL}`, TRUSTED_PROXIES: "127.0.0.1" });
  const proxy = await startProxy(t, app.service.port);
  const ask = (address: string, forged: string) =>
    app.get("/", { "X-Forwarded-For": forged }, { port: proxy, address });

  const forger = await several(4, (i) => ask("127.0.0.2", `203.0.113.${i}`));
  assert.deepEqual(statuses(forger), [200, 200, 429, 429]);
  assert.equal((await ask("127.0.0.3", "203.0.113.0")).status, 200, "another caller");
  // Past the proxy, from an address that nobody trusts: the header is nothing but text.
  const past = await several(4, (i) =>
    app.get("/", { "X-Forwarded-For": `203.0.113.${i}` }, { address: "127.0.0.4" }),
  );
  assert.deepEqual(statuses(past), [200, 200, 429, 429]);
});

test("Redis stopped: this process limits alone, and Redis when it is back", async (t) => {
  const redis = await ownRedis(t);
  const app = await startApp(t, redis, { IP_LIMIT: `3 ${STILL}`, REDIS_TIMEOUT_MS: "1000" });
  assert.deepEqual(statuses(await several(4, () => app.get("/"))), [200, 200, 200, 429]);

  await redis.stop();
  const alone = await several(5, () => app.get("/"));
  assert.deepEqual(statuses(alone), [200, 200, 200, 429, 429]);
  assert.equal(alone[0]!.headers["ratelimit"], undefined);

  await redis.start();
  await waitFor("limiting after its return", 1000, async () => (await app.get("/")).headers["ratelimit"] !== undefined);
  const lines = app.service.output().split("\n").filter((text) => text.startsWith("tokenbucket: "));
  assert.equal(lines.length, 2, "one line when it begins and one when it ends");
  assert.match(lines[0]!, /cannot ask the server/);
  assert.match(lines[1]!, /the server .* is back/);
});

test("the app starts while Redis is away, and limits when it comes", async (t) => {
  const redis = await ownRedis(t);
  await redis.stop();
  const app = await startApp(t, redis, { IP_LIMIT: `1 ${STILL}`, REDIS_TIMEOUT_MS: "1000" });
  assert.deepEqual(statuses(await several(2, () => app.get("/"))), [200, 429]);
  assert.match(app.service.output(), /cannot ask the server .*: connect ECONNREFUSED/);
  await redis.start();
  await waitFor("the server's decision", 1000, async () => (await app.get("/")).headers["ratelimit"] !== undefined);
});

for (const [name, value, says] of [
  ["IP_LIMIT", "20", "IP_LIMIT: '20' is not a capacity and a rate"],
  ["IP_LIMIT", "20 10/fortnight", "IP_LIMIT: rate: '10/fortnight'"],
  ["SEARCH_LIMIT", "many 1/s", "SEARCH_LIMIT: capacity: many"],
  ["ON_ERROR", "maybe", "ON_ERROR: 'maybe'"],
  ["PORT", "http", "PORT: 'http'"],
  ["REDIS_TIMEOUT_MS", "0", "REDIS_TIMEOUT_MS: '0'"],
  ["REDIS_URL", "localhost", "REDIS_URL: 'localhost'"],
  ["TRUSTED_PROXIES", "true", "TRUSTED_PROXIES: 'true' trusts everybody"],
  ["TRUSTED_PROXIES", "1", "TRUSTED_PROXIES: '1' trusts everybody"],
  ["TRUSTED_PROXIES", "10.0.0.0/99", "TRUSTED_PROXIES: "],
] as const) {
  test(`${name}=${value} ends the app with a clear error`, async (t) => {
    const service = await appService({ [name]: value });
    t.after(() => service.remove());
    await assert.rejects(service.start(), /ended at its start/);
    assert.ok(service.output().includes(says), service.output());
    assert.equal(service.output().trim().split("\n").length, 1);
  });
}

/** A proxy as they all are: it appends the address that it sees to X-Forwarded-For. */
async function startProxy(t: TestContext, port: number): Promise<number> {
  const proxy = createServer((req, res) => {
    const forwarded = [req.headers["x-forwarded-for"], req.socket.remoteAddress].join(", ");
    const headers = { ...req.headers, "x-forwarded-for": forwarded };
    const sent = request({ host: "127.0.0.1", port, path: req.url, headers, agent: false });
    sent.on("response", (response) => {
      res.writeHead(response.statusCode ?? 502, response.headers);
      response.pipe(res);
    });
    sent.end();
  });
  await new Promise<void>((listening) => proxy.listen(0, "127.0.0.1", listening));
  t.after(() => new Promise((closed) => proxy.close(closed)));
  return (proxy.address() as AddressInfo).port;
}
