/** A server without the module, and one that gains it. */

import assert from "node:assert/strict";
import { mock, test, type TestContext } from "node:test";

import { JointLimiter, Limiter, type Client } from "tokenbucket-redis";

import { clientFor, LIBRARIES, MODULE, patient, serverFor, STILL } from "./servers.js";

const LIMIT = { capacity: 3, rate: STILL };
const scripted = (client: Client) => patient(client, { fallback: "script" });

/** A server without the module, and a client of it. */
async function setUp(t: TestContext) {
  const server = await serverFor(t, { module: false });
  return { server, ...(await clientFor(t, server)) };
}

for (const library of Object.keys(LIBRARIES)) {
  test(`${library}: the script decides as the module does`, async (t) => {
    const decisions = await Promise.all(
      [true, false].map(async (module) => {
        const server = await serverFor(t, { module });
        const { client } = await clientFor(t, server, library);
        const limiter = new Limiter(scripted(client), { capacity: 10, rate: "3/s" });
        const limits = { small: LIMIT, large: { capacity: 100, rate: 7 } };
        const joint = new JointLimiter(scripted(client), limits);
        const all = [];
        all.push(await limiter.take("a", 4), await limiter.take("a", 7), await limiter.take("a", 11));
        server.advance(250);
        all.push(await limiter.peek("a", 2), await limiter.takeUpTo("a", 5), await limiter.takeUpTo("a", 50));
        all.push(await limiter.reserve("a", 2, { maxWaitMs: 5000 }));
        all.push(await limiter.charge("a", 2.5), await limiter.give("a", 3.25));
        all.push(await joint.takeAll("b", { small: 2, large: 20 }), await joint.takeAll("b", { small: 2, large: 20 }));
        return all;
      }),
    );
    assert.deepEqual(decisions[1], decisions[0]);
  });
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
