/** A server without the module, and one that gains it. */

import assert from "node:assert/strict";
import { mock, test, type TestContext } from "node:test";

import { Limiter, type Client } from "tokenbucket-redis";

import { clientFor, MODULE, patient, serverFor, STILL } from "./servers.js";

const LIMIT = { capacity: 3, rate: STILL };
const scripted = (client: Client) => patient(client, { fallback: "script" });

/** A server without the module, and a client of it. */
async function setUp(t: TestContext) {
  const server = await serverFor(t, { module: false });
  return { server, ...(await clientFor(t, server)) };
}

test("the caller's mistakes are thrown by the script, too", async (t) => {
  const { client, send } = await setUp(t);
  const limiter = new Limiter(scripted(client), { capacity: 1e10, rate: "1000/s" });
  await assert.rejects(limiter.take("a"), /ERR capacity/);
  await send("LPUSH", "tb:list:script", "1");
  await assert.rejects(limiter.take("list", 1, { limit: LIMIT }), /WRONGTYPE/);
});

test("the module is looked for after a minute; the script found once costs no unknown command until then", async (t) => {
  const { server, client, send } = await setUp(t);
  const lines: string[] = [];
  const log = (line: string) => lines.push(line);
  const limiter = new Limiter(patient(client, { fallback: "script", log }), LIMIT);
  const errors = async () => /errorstat_ERR:count=(\d+)/.exec(String(await send("INFO", "errorstats")))?.[1];
  await limiter.take("a");
  const before = await errors();
  await limiter.take("a");
  assert.equal(await errors(), before);
  await send("MODULE", "LOAD", MODULE);
  const later = performance.now() + 60_001;
  mock.method(performance, "now", () => later);
  t.after(() => mock.restoreAll());
  assert.equal((await limiter.take("a")).remaining, 2);
  assert.equal(await send("TYPE", "tb:a"), "tb-bucket");
  assert.deepEqual(lines, [
    `tokenbucket: the server 127.0.0.1:${server.port} has no module, the script decides until it has`,
    `tokenbucket: the server 127.0.0.1:${server.port} has the module, the script decides no longer`,
  ]);
});
