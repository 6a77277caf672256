/** The rules and constants that all packages share are those of this package. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { Server } from "tokenbucket-redis";
import { FakeServer } from "tokenbucket-redis/testing";

interface Rules {
  costs: Record<string, number | null>;
  shares: Record<string, number | string>;
  longest_ms: Record<string, number>;
  errors: Record<string, string>;
  constants: Record<string, number>;
}

const ROOT = new URL("../", import.meta.url);
const RULES = JSON.parse(readFileSync(new URL("../conformance/rules.json", ROOT), "utf8")) as Rules;
const of = (module: string) => import(new URL(`dist/${module}.js`, ROOT).href) as Promise<{ default: never }>;

test("an amount is read as the module reads it", async () => {
  for (const [cost, micros] of Object.entries(RULES.costs)) {
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

test("an error means what it means to all", async () => {
  const { faultOf } = (await of("values/errors")).default as { faultOf(error: unknown): string };
  for (const [line, fault] of Object.entries(RULES.errors)) assert.equal(faultOf(new Error(line)), fault, line);
});

test("the bounds and the constants are those of all", async () => {
  const all = (await of("values/constants")).default as Record<string, number>;
  const { MOST_SHARE_BYTES, LEAST_WEIGHT, MOST_WEIGHT, LONGEST_MS, ...own } = all;
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
  assert.deepEqual([timeoutMs, retryEveryMs], [own["TIMEOUT_MS"], own["RETRY_EVERY_MS"]]);
});
