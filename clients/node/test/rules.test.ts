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
const of = (module: string) => import(new URL(`dist/${module}.js`, ROOT).href) as Promise<Record<string, never>>;

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
  const { faultOf } = (await of("values/errors")) as unknown as { faultOf(error: unknown): string };
  for (const [line, fault] of Object.entries(RULES.errors)) assert.equal(faultOf(new Error(line)), fault, line);
});

test("the bounds and the constants are those of all", async () => {
  const [decider, hold, server, time, transport, unsettled] = await Promise.all(
    ["api/decider", "api/hold", "transport/server", "transport/time", "transport/transport", "transport/unsettled"].map(
      of,
    ),
  );
  assert.deepEqual(RULES.shares, {
    most_bytes: decider?.MOST_SHARE_BYTES,
    least_weight: String(decider?.LEAST_WEIGHT),
    most_weight: String(decider?.MOST_WEIGHT),
  });
  assert.deepEqual(RULES.longest_ms, { wait: decider?.MAX_WAIT_MS, hold: hold?.MAX_TTL_MS });
  const { timeoutMs, retryEveryMs } = new Server(new FakeServer()) as unknown as Record<string, number>;
  // A connection without calls is looked at however short it was idle.
  const { looked_at_if_idle_for_ms: _, ...constants } = RULES.constants;
  assert.deepEqual(constants, {
    timeout_ms: timeoutMs,
    retry_every_ms: retryEveryMs,
    connect_within_ms: time?.CONNECT_MS,
    pulse_of_a_wait_ms: transport?.PULSE_MS,
    settled_again_after_ms: unsettled?.SETTLED_AGAIN_AFTER_MS,
    most_unsettled_holds: unsettled?.MOST_UNSETTLED,
    most_redirections: server?.MOST_REDIRECTIONS,
    tries_of_a_split_slot: server?.TRIES_OF_A_SPLIT_SLOT,
  });
});
