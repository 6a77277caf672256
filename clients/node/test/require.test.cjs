/** The package by `require`: every entry, and a limiter that limits. */

const assert = require("node:assert/strict");
const { test } = require("node:test");

const { exports: entries } = require("../package.json");

for (const entry of Object.keys(entries)) {
  const name = `tokenbucket-redis${entry.slice(1)}`;
  test(`require("${name}") offers what import does`, async () => {
    assert.deepEqual(Object.keys(require(name)).toSorted(), Object.keys(await import(name)).toSorted());
  });
}

test("it works", async () => {
  const { Limiter } = require("tokenbucket-redis");
  const { FakeServer } = require("tokenbucket-redis/testing");
  const limiter = new Limiter(new FakeServer(), { capacity: 1, rate: "1/s" });
  assert.equal((await limiter.take("a")).allowed, true);
  assert.equal((await limiter.take("a")).allowed, false);
});
