/** The rules, constants and calendar rates that all packages share are those of this package. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { BadArgument, Limiter, Server } from "tokenbucket-redis";
import { FakeServer } from "tokenbucket-redis/testing";

import constants from "../dist/values/constants.js";
import { faultOf } from "../dist/values/errors.js";

const read = (name: string) => readFileSync(new URL(`../../conformance/${name}`, import.meta.url), "utf8");
const RULES = JSON.parse(read("rules.json"));

test("an amount is read as the module reads it", async () => {
  for (const [cost, micros] of Object.entries<number | null>(RULES.costs)) {
    const fake = new FakeServer();
    const reply = (...words: string[]) => fake.send(words) as Promise<number[]>;
    const taken = reply("TB.TAKE", "a", "1e12", "1e12", cost);
    if (micros === null) {
      await assert.rejects(taken, /BadArgument/, cost);
      continue;
    }
    assert.equal((await taken)[0], 1, cost);
    // How long an empty bucket of a millionth a second takes to have that much again; at most 2^62 microseconds.
    await reply("TB.CHARGE", "b", "1", "1e-6", cost);
    const waitMs = Math.min(1000 * micros, Math.ceil(2 ** 62 / 1000));
    assert.equal((await reply("TB.PEEK", "b", "1", "1e-6", "1"))[2], waitMs, cost);
  }
});

test("an error means what it means to all", () => {
  for (const [line, fault] of Object.entries<string>(RULES.errors)) assert.equal(faultOf(new Error(line)), fault, line);
});

test("the bounds and the constants are those of all", () => {
  const { MOST_SHARE_BYTES, LEAST_WEIGHT, MOST_WEIGHT, LONGEST_MS, ...own } = constants;
  assert.deepEqual(RULES.shares, {
    most_bytes: MOST_SHARE_BYTES,
    least_weight: String(LEAST_WEIGHT),
    most_weight: String(MOST_WEIGHT),
  });
  assert.deepEqual(RULES.longest_ms, { wait: LONGEST_MS, hold: LONGEST_MS });
  // A connection without calls is looked at however short it was idle.
  const { looked_at_if_idle_for_ms: _, ...shared } = RULES.constants;
  const named = Object.entries(shared).map(([name, value]) => [name.toUpperCase(), value]);
  assert.deepEqual(own, Object.fromEntries(named));
  const { timeoutMs, retryEveryMs } = new Server(new FakeServer()) as unknown as Record<string, number>;
  assert.deepEqual([timeoutMs, retryEveryMs], [own.TIMEOUT_MS, own.RETRY_EVERY_MS]);
});

const LINES = read("rates.txt")
  .split("\n")
  .filter((line) => line !== "" && !line.startsWith("#"));

for (const line of LINES) {
  const [rate = "", since, until] = line.split(" ");

  test(`rate ${line}`, async () => {
    const limit = { capacity: 10, rate };
    if (since === undefined || until === undefined) {
      assert.throws(() => new Limiter(new FakeServer(), limit), BadArgument);
      return;
    }
    const { resetAfterMs } = await new Limiter(new FakeServer(new Date(since)), limit).take("a", 10);
    assert.equal(resetAfterMs, Date.parse(until) - Date.parse(since));
  });
}
