/** The same limits, enforced in the memory of this process while the server is away. */

import { Buckets } from "./buckets.js";

const MOST_BUCKETS = 10_000;

/** A clock that never steps back. Buckets outlive an outage, so that all outages together cost one bucket. */
function nowUs(): bigint {
  return BigInt(Math.round((performance.timeOrigin + performance.now()) * 1000));
}

export function localBuckets(): Buckets {
  return new Buckets(nowUs, MOST_BUCKETS);
}
