/** Decisions of the server, or of `onError` in its place. */

import { TokenBucketError } from "./errors.js";
import { flowMs, type Limit } from "./limit.js";

export interface HeaderOptions {
  /** The name of the policy in the headers; "default" by default. */
  name?: string;
  /** Lengthens Retry-After by up to this share, such as 0.5, so that denied clients do not return together; 0 by default. */
  jitter?: number;
}

/** What is said of a decision that the server did not make, or whose reply was lost. */
type Marks = Partial<Pick<Decision, "degraded" | "lost">>;

type Methods = "headers" | "retryAfterS" | "with" | "inShadowMode";
export type Fields = Pick<Decision, "allowed"> & Partial<Omit<Decision, Methods>>;

const NONE: Decision["each"] = {};

/**
 * What the server decided about a call, or `onError` in its place.
 *
 * ```ts
 * import { Limiter } from "tokenbucket-redis";
 * import { FakeServer } from "tokenbucket-redis/testing";
 *
 * const limiter = new Limiter(new FakeServer(), { capacity: 1, rate: "1/s" });
 * const passed = await limiter.take("user:42");
 * console.log(passed.allowed, passed.remaining, passed.resetAfterMs); // true 0 1000
 * const denied = await limiter.take("user:42");
 * console.log(denied.allowed, denied.retryAfterMs); // false 1000
 * console.log(denied.headers(limiter.limit)["Retry-After"]); // 1
 * ```
 */
export class Decision {
  readonly allowed: boolean;
  /** Whole tokens left; negative while in debt. */
  readonly remaining: number;
  /**
   * Milliseconds until the same call is allowed, unless other calls take before; -1 if never, because its cost is above
   * the capacity. For `reserve`: how long to wait. For `charge`: until out of debt.
   */
  readonly retryAfterMs: number;
  /** Milliseconds until the bucket is full. */
  readonly resetAfterMs: number;
  /** True if `onError` decided in place of the server. */
  readonly degraded: boolean;
  /** True if the call was sent and its reply lost: the server may or may not have executed it. */
  readonly lost: boolean;
  /** True if the call was denied, and shadow mode let it pass. */
  readonly shadowed: boolean;
  /** How many tokens `takeUpTo` took; the number of the alternative of `takeAny`, from 1; of all others 1 or 0, as `allowed`. */
  readonly granted: number;

  /** What each of several limits decided, by name; empty if "open" or "closed" did, or if `takeAny` was denied. The fields above are of the one that binds. */
  readonly each: Readonly<Record<string, Decision>>;

  constructor(fields: Fields) {
    this.allowed = fields.allowed;
    this.remaining = fields.remaining ?? 0;
    this.retryAfterMs = fields.retryAfterMs ?? 0;
    this.resetAfterMs = fields.resetAfterMs ?? 0;
    this.degraded = fields.degraded ?? false;
    this.granted = fields.granted ?? Number(fields.allowed);
    this.lost = fields.lost ?? false;
    this.shadowed = fields.shadowed ?? false;
    this.each = fields.each ?? NONE;
  }

  /** @internal Reads a reply: four numbers, and if it is about several limits, those of each. */
  static read(reply: unknown, names: readonly string[] = [], marks?: Marks): Decision {
    const words = reply as readonly unknown[];
    const [granted = 0, remaining = 0, retryAfterMs = 0, resetAfterMs = 0] = words.slice(0, 4).map(Number);
    const fields = { allowed: granted > 0, remaining, retryAfterMs, resetAfterMs, granted };
    const inner = names.length > 0 ? (words[4] as unknown[] | undefined) : undefined;
    if (!inner) return new Decision(marks ? { ...fields, ...marks } : fields);
    const each = inner.map((own, at) => [names[at]!, Decision.read(own, [], marks)]);
    return new Decision({ ...fields, ...marks, each: Object.fromEntries(each) });
  }

  /** @internal Returns a copy with these fields. */
  with(fields: Partial<Fields>): Decision {
    return new Decision({ ...this, ...fields });
  }

  /** @internal Returns the decision as granting all that was wanted: `shadowed` if it did not. */
  inShadowMode(wanted: number): Decision {
    if (this.granted >= wanted) return this;
    const each = Object.entries(this.each).map(([which, own]) => [which, own.inShadowMode(wanted)]);
    return this.with({ allowed: true, granted: wanted, shadowed: true, each: Object.fromEntries(each) });
  }

  /** Whole seconds for the Retry-After header, rounded up so that clients do not come back too early. */
  get retryAfterS(): number {
    return Math.ceil(this.retryAfterMs / 1000);
  }

  /**
   * Returns RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers, and Retry-After, which
   * is left out where waiting does not help. Degraded decisions carry no RateLimit headers, because the bucket was not read.
   */
  headers(limit: Limit, { name = "default", jitter = 0 }: HeaderOptions = {}): Record<string, string> {
    const headers: Record<string, string> = {};
    const quoted = `"${name.replace(/["\\]/g, "\\$&")}"`;
    if (!this.degraded) {
      const capacity = Number(limit.capacity);
      // Otherwise an override counts.
      if (this.remaining <= capacity) headers["RateLimit-Policy"] = quoted + quotaOf(limit, capacity);
      const resetS = Math.ceil(this.resetAfterMs / 1000);
      headers["RateLimit"] = `${quoted};r=${Math.max(this.remaining, 0)};t=${resetS}`;
    }
    if (!this.allowed && this.retryAfterMs > 0) {
      const later = 1 + jitter * Math.random();
      headers["Retry-After"] = String(Math.ceil((this.retryAfterMs * later) / 1000));
    }
    return headers;
  }
}

/** Returns the parameters of a policy. */
function quotaOf(limit: Limit, capacity: number): string {
  const windowS = Math.ceil(flowMs(limit, capacity) / 1000);
  const window = windowS > 0 && windowS < Infinity ? `;w=${windowS}` : "";
  return `;q=${Math.floor(capacity)}${window}`;
}

/** Work was not begun, because its hold was denied: see `decision`. */
export class Denied extends TokenBucketError {
  override readonly name: string = "Denied";

  constructor(readonly decision: Decision) {
    super(`denied, to be tried again after ${decision.retryAfterMs} ms`);
  }
}
