/** The package by `require`: every entry, and a limiter that limits. */

const assert = require("node:assert/strict");
const { test } = require("node:test");

const { exports: entries, typesVersions } = require("../package.json");

for (const entry of Object.keys(entries)) {
  const name = `tokenbucket-redis${entry.slice(1)}`;
  test(`require("${name}") offers what import does`, async () => {
    assert.deepEqual(Object.keys(require(name)).toSorted(), Object.keys(await import(name)).toSorted());
  });
}

test("compilers that do not know `exports` find the types of every entry", () => {
  const names = Object.keys(entries).map((entry) => entry.slice(2));
  assert.deepEqual(Object.keys(typesVersions["*"]), names.filter(Boolean));
});

test("import and require share servers, decisions and errors", async () => {
  const ours = require("tokenbucket-redis");
  const theirs = await import("tokenbucket-redis");
  const { FakeServer } = await import("tokenbucket-redis/testing");
  for (const [one, other] of [
    [ours, theirs],
    [theirs, ours],
  ]) {
    const server = new one.Server(new FakeServer());
    assert.ok(server instanceof other.Server);
    const limiter = new other.Limiter(server, { capacity: 1, rate: 1 });
    assert.deepEqual([(await limiter.take("a")).allowed, (await limiter.take("a")).allowed], [true, false]);
    const denied = await limiter.withHold("a", 1, () => {}).catch((error) => error);
    assert.ok(denied instanceof one.Denied && denied instanceof one.TokenBucketError);
    assert.ok(!(denied instanceof one.ServerAway));
    const { clock } = new FakeServer();
    const away = new one.Server({ clock, send: () => Promise.reject(new Error("away")) }, { log() {} });
    assert.equal((await new other.Limiter(away, { capacity: 1, rate: 1 }).take("a")).degraded, true);
  }
});
