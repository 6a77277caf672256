/** The same limits, enforced in the memory of this process while the server is away. */

import { Buckets } from "./buckets.js";

const MOST_BUCKETS = 10_000;

/** Steps back with no clock, and goes on from one outage to the next: all of them together cost one bucket. */
function nowUs(): bigint {
  return BigInt(Math.round((performance.timeOrigin + performance.now()) * 1000));
}

export function localBuckets(): Buckets {
  return new Buckets(nowUs, MOST_BUCKETS);
}
