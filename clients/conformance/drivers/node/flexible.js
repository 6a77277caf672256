/** The drop-in for rate-limiter-flexible with the release that is installed beside this file; see test_versions.py. */

import assert from "node:assert/strict";

import { Redis } from "ioredis";
import { RateLimiterMemory, RateLimiterRes, RateLimiterUnion } from "rate-limiter-flexible";
import { RateLimiterTokenBucket } from "tokenbucket-redis/rate-limiter-flexible";

const storeClient = new Redis(`redis://127.0.0.1:${process.argv[2]}`);
const limiter = new RateLimiterTokenBucket({ storeClient, points: 3, duration: 3600 });

const passed = await limiter.consume("user", 2);
assert.ok(passed instanceof RateLimiterRes);
assert.equal(passed.remainingPoints, 1);
const refused = await limiter.consume("user", 2).catch((reason) => reason);
assert.ok(refused instanceof RateLimiterRes);
assert.ok(refused.msBeforeNext > 0);
await limiter.reward("user", 1);
assert.equal((await limiter.get("user")).remainingPoints, 2);
await limiter.block("user", 60);
assert.ok((await limiter.consume("user").catch((reason) => reason)) instanceof RateLimiterRes);
await limiter.delete("user");

const inMemory = new RateLimiterMemory({ points: 4, duration: 3600, keyPrefix: "memory" });
const union = new RateLimiterUnion(inMemory, limiter);
assert.equal((await union.consume("user", 2)).rlflx.remainingPoints, 1);
assert.ok((await union.consume("user", 2).catch((reason) => reason)).rlflx instanceof RateLimiterRes);

console.log("as its own");
process.exit();
