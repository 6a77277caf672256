/** A hook for Fastify, of all routes or of one: `app.addHook("onRequest", rateLimit(limiter))`. */

import type { FastifyReply, FastifyRequest } from "fastify";

import { checkRateLimit, decide, type RateLimitOptions } from "./http.js";
import type { Limiter } from "../api/limiter.js";

export { clientAddress } from "./http.js";
export type { RateLimitOptions } from "./http.js";

/**
 * Answers 429 to denied requests, 503 if the server is away and the limiter's `onError` is "closed".
 * What is thrown goes to Fastify's error handler: the caller's mistakes, and `ServerAway`.
 */
export function rateLimit(limiter: Limiter, options: RateLimitOptions<FastifyRequest> = {}) {
  checkRateLimit(options);
  return async (request: FastifyRequest, reply: FastifyReply): Promise<void> => {
    const { headers, refusal } = await decide(limiter, options, request, (name) => reply.getHeader(name));
    reply.headers(headers);
    if (refusal) await reply.code(refusal.status).send(refusal.body);
  };
}
