/** The tests of @fastify/rate-limit that fail on token buckets, and why. */

const RESETS = "the reset of an allowed request is when the bucket is full, not when a window ends";
const RETRIES = "a denied request may be repeated when the next token is there, not when a window ends";
const REFILLS = "tokens flow in all the time, so there is one again after a part of the window";
const CONNECTED = "the store has connections of its own: to quit the client is no outage";

/** The error of a test that sets an option which the store refuses. */
export const NOT_OFFERED = /^continueExceeding, exponentialBackoff and ban are not offered/;

export const DEVIATIONS = {
  "create-rate-limit.test.js: With global rate limit options": RESETS,
  "create-rate-limit.test.js: With custom rate limit options": RESETS,
  "create-rate-limit.test.js: With { increment: false } it reads the state without consuming it": RESETS,
  "global-rate-limit.test.js: when passing NaN to max variable then it should use the default max - 1000": REFILLS,
  "global-rate-limit.test.js: With enabled IETF Draft Spec": RETRIES,
  "global-rate-limit.test.js: wrong timewindow": RETRIES,
  "not-found-handler-rate-limited.test.js: Set not found handler can be rate limited with specific options": RESETS,
  "redis-rate-limit.test.js: Skip on redis error": CONNECTED,
  "redis-rate-limit.test.js: Throw on redis error": CONNECTED,
  "redis-rate-limit.test.js: With { increment: false } it throws on redis error": CONNECTED,
  "route-rate-limit.test.js: Basic": REFILLS,
  "route-rate-limit.test.js: global timeWindow when not set in routes": RESETS,
};
