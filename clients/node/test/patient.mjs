/**
 * `node --import ./test/patient.mjs`: deadlines for a loaded machine, and 50 ms before each call by the clock in the file
 * CLOCK. What a block of code prints must not depend on speed.
 */

import { readFileSync, writeFileSync } from "node:fs";

import { Server } from "tokenbucket-redis";

const { CLOCK } = process.env;
const { ask } = Server.prototype;
Server.prototype.ask = function (...call) {
  this.timeoutMs = 20_000;
  const time = readFileSync(CLOCK);
  time.writeBigInt64BE(time.readBigInt64BE() + 50_000n);
  writeFileSync(CLOCK, time, { flag: "r+" });
  return ask.apply(this, call);
};

/** Waits until the app listens, and for its rate limit headers. */
globalThis.asked = async (port) => {
  const answer = await fetch(`http://127.0.0.1:${port}`).catch(() => undefined);
  if (!answer) return new Promise((later) => setTimeout(later, 20)).then(() => globalThis.asked(port));
  if (![...answer.headers.keys()].some((name) => name.includes("ratelimit"))) throw new Error("it is not limited");
};
