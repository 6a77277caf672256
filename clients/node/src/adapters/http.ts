/** Common code of the middleware for Express and Fastify. */

import ipaddr from "ipaddr.js";

import type { HeaderOptions } from "../values/decision.js";
import { BadArgument, checkOptions } from "../values/errors.js";
import { checkAmount, isAmount, type Amount, type Limit } from "../values/limit.js";
import type { Limiter } from "../api/limiter.js";

export interface RateLimitOptions<Request> extends HeaderOptions {
  /** Returns the name of the bucket; the client's address by default. Two limiters keep apart by their prefixes. */
  key?: (request: Request) => string;
  /** Tokens that a request takes; 1 by default. If the function returns no number, the request is answered with 400. */
  cost?: Amount | ((request: Request) => Amount);
  /** Returns the limit of this request, if it has one of its own, as for a paying user. */
  limit?: (request: Request) => Limit | undefined;
}

const NO_COST = { error: "the cost of this request is not a number from 0 to 1e12" };
const NOT_AVAILABLE = { error: "the rate limiter is not available" };
const NEVER = { error: "the request costs more than its limit holds" };
/** Limiters on one route each add a member to these lists. */
const LISTS = ["RateLimit", "RateLimit-Policy"];

/** Returns the headers to set, where `headerOf` reads those that are set already, and the answer to a refused request. */
export async function decide<Request extends { ip?: string | undefined }>(
  limiter: Limiter,
  options: RateLimitOptions<Request>,
  request: Request,
  headerOf: (name: string) => unknown,
) {
  const { key = (from: Request) => clientAddress(from.ip), cost = 1 } = options;
  const tokens = typeof cost === "function" ? cost(request) : cost;
  if (!isAmount(tokens)) return { headers: {}, refusal: { status: 400, body: NO_COST } };
  const limit = options.limit?.(request) ?? limiter.limit;
  const decision = await limiter.take(key(request), tokens, { limit });
  const headers = decision.headers(limit, options);
  for (const list of LISTS) {
    if (headers[list] && headerOf(list) !== undefined) headers[list] = `${String(headerOf(list))}, ${headers[list]}`;
  }
  const { allowed, degraded, retryAfterMs } = decision;
  if (allowed) return { headers, refusal: undefined };
  if (degraded && limiter.onError === "closed") return { headers, refusal: { status: 503, body: NOT_AVAILABLE } };
  // Without Retry-After: there is no moment at which this request would pass.
  const body = retryAfterMs < 0 ? NEVER : { error: "rate limit exceeded", retryAfterMs };
  return { headers, refusal: { status: 429, body } };
}

const OPTIONS = ["key", "cost", "limit", "name", "jitter"];

export function checkRateLimit(options: RateLimitOptions<never>): void {
  checkOptions(options, OPTIONS);
  const { key, cost, limit } = options;
  if (key !== undefined && typeof key !== "function") throw new BadArgument("key: is not a function of the request");
  if (limit !== undefined && typeof limit !== "function")
    throw new BadArgument("limit: is not a function of the request");
  if (cost !== undefined && typeof cost !== "function") checkAmount("cost", cost);
}

/**
 * A caller's address; of IPv6 the /64, because one host has all of it to choose from.
 *
 * `ip` is as true as the framework's `trust proxy` setting: name the proxies, never set it to `true`.
 */
export function clientAddress(ip: string | undefined): string {
  if (!ip || !ipaddr.isValid(ip)) return ip ?? ""; // a Unix socket, or what a trusted proxy wrote instead
  const address = ipaddr.process(ip); // ::ffff:192.0.2.1 is 192.0.2.1
  if (address.kind() === "ipv4") return address.toString();
  const network = (address as ipaddr.IPv6).parts.slice(0, 4);
  return `${network.map((part) => part.toString(16)).join(":")}::/64`;
}
