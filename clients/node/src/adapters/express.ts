/** Middleware for Express: `app.use(rateLimit(limiter))`. */

import type { Request, RequestHandler } from "express";

import { checkRateLimit, decide, type RateLimitOptions } from "./http.js";
import type { Limiter } from "../api/limiter.js";

export { clientAddress } from "./http.js";
export type { RateLimitOptions } from "./http.js";

/**
 * Answers 429 to denied requests, 503 if the server is away and the limiter's `onError` is "closed".
 * What is thrown goes to Express's error handler: the caller's mistakes, and `ServerAway`.
 */
export function rateLimit(limiter: Limiter, options: RateLimitOptions<Request> = {}): RequestHandler {
  checkRateLimit(options);
  return (request, response, next) => {
    const answered = decide(limiter, options, request, (name) => response.get(name)).then(({ headers, refusal }) => {
      response.set(headers);
      if (!refusal) return next();
      response.status(refusal.status).json(refusal.body);
    });
    answered.catch(next); // Express 4 does not look at promises.
  };
}
