import type { NextFunction, Request, RequestHandler, Response } from "express";
import type { Redis } from "ioredis";
import ipaddr from "ipaddr.js";

import { checkLimit, type Decision, type Limit } from "./tokenbucket.js";

export interface RateLimitOptions extends Limit {
  /**
   * The whole key of the caller's bucket. Two limits need two keys, as in `search:${…}`; ioredis
   * does not put its `keyPrefix` before the keys of module commands.
   */
  key: (req: Request) => string;
  /** Tokens that a request takes; 1 by default. */
  cost?: number | ((req: Request) => number);
  /** When Redis does not answer: let the request through (the default), answer 503, or your own. */
  onError?: "allow" | "deny" | ((error: Error, req: Request, res: Response, next: NextFunction) => void);
}

/**
 * Binds the middleware factory to a client:
 *
 *     const rateLimit = rateLimitOn(redis);
 *     app.use(rateLimit({ capacity: 20, rate: "10/s", key: (req) => `ip:${clientAddress(req)}` }));
 */
export function rateLimitOn(redis: Redis, log: (line: string) => void = console.warn) {
  // Logged when it begins and when it ends, not for every request in between.
  let away = false;

  return function rateLimit(options: RateLimitOptions): RequestHandler {
    checkOptions(options);
    const { capacity, rate, key, cost = 1, onError = "allow" } = options;
    const limit: Limit = { capacity, rate };

    // Express 5 hands a rejection to the error handler: what is thrown here is answered with 500.
    return async (req, res, next) => {
      const tokens = typeof cost === "function" ? cost(req) : cost;
      checkCost(tokens);
      const bucket = key(req);
      let decision: Decision;
      try {
        decision = await redis["tb.take"](bucket, limit, tokens);
      } catch (caught) {
        const error = caught as Error; // ioredis rejects with nothing else
        if (isCallersMistake(error)) throw error;
        if (!away) log(`rate limit: cannot ask Redis, ${describe(onError)}: ${error.message}`);
        away = true;
        if (typeof onError === "function") return onError(error, req, res, next);
        if (onError === "allow") return next();
        res.set("Retry-After", "1").status(503).json({ error: "the rate limiter is not available" });
        return;
      }
      if (away) log("rate limit: Redis is back, limiting again");
      away = false;

      res.set({
        "RateLimit-Limit": String(Math.floor(capacity)),
        "RateLimit-Remaining": String(Math.max(decision.remaining, 0)),
        "RateLimit-Reset": String(Math.ceil(decision.resetAfterMs / 1000)),
      });
      if (decision.allowed) return next();
      if (decision.retryAfterMs < 0) {
        // Without Retry-After: there is no moment at which this request would pass.
        res.status(429).json({ error: "the request costs more than its limit holds" });
        return;
      }
      res
        .set("Retry-After", String(Math.ceil(decision.retryAfterMs / 1000)))
        .status(429)
        .json({ error: "rate limit exceeded", retryAfterMs: decision.retryAfterMs });
    };
  };
}

/**
 * The caller's address; of IPv6 the /64, because one host has all of it to choose from.
 *
 * `req.ip` is as true as Express's `trust proxy` setting: name the proxies, never set it to `true`.
 */
export function clientAddress(req: Request): string {
  const ip = req.ip ?? "";
  if (!ipaddr.isValid(ip)) return ip; // a Unix socket, or what a trusted proxy wrote instead
  const address = ipaddr.process(ip); // ::ffff:192.0.2.1 is 192.0.2.1
  if (address.kind() === "ipv4") return address.toString();
  const network = (address as ipaddr.IPv6).parts.slice(0, 4);
  return `${network.map((part) => part.toString(16)).join(":")}::/64`;
}

function describe(onError: NonNullable<RateLimitOptions["onError"]>): string {
  if (typeof onError === "function") return "leaving it to onError";
  return onError === "allow" ? "letting requests through" : "refusing requests";
}

function checkOptions({ capacity, rate, key, cost = 1, onError = "allow" }: RateLimitOptions): void {
  checkLimit({ capacity, rate });
  if (typeof key !== "function") throw new TypeError("key: is not a function of the request");
  if (typeof cost !== "function") checkCost(cost);
  if (onError !== "allow" && onError !== "deny" && typeof onError !== "function") {
    throw new TypeError(`onError: '${onError}' is neither 'allow', 'deny' nor a function`);
  }
}

function checkCost(cost: number): void {
  if (!(cost >= 0 && cost < Infinity)) throw new RangeError(`cost: ${cost} is not a number of at least 0`);
}

/** Whether the call was wrong in itself; such a request must not pass because it failed. */
function isCallersMistake(error: Error): boolean {
  // An unknown command is a server that came back without the module: its state, not the call.
  return error.name === "ReplyError" && /^(ERR (?!unknown command)|WRONGTYPE)/.test(error.message);
}
