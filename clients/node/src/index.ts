/**
 * Token bucket limits decided inside Redis and Valkey.
 *
 *     const limiter = new Limiter(new Redis(), { capacity: 10, rate: "5/s" });
 *     const { allowed } = await limiter.take("user:42");
 */

export type { Caller, OnDecision, Options, Policy, WaitOptions } from "./backend.js";
export { Decision, Denied, JointDecision, type HeaderOptions } from "./decision.js";
export {
  BadArgument,
  CrossSlot,
  ModuleMissing,
  ReplyLost,
  ServerAway,
  ServerError,
  TokenBucketError,
} from "./errors.js";
export type { Hold, HoldOptions, Used } from "./hold.js";
export { checkLimit, parseLimit, type Amount, type Limit } from "./limit.js";
export {
  JointLimiter,
  Limiter,
  type Amounts,
  type CallOptions,
  type LimiterOptions,
  type Names,
  type ReserveOptions,
  type TakeOptions,
} from "./limiter.js";
export type {
  Client,
  Clock,
  InProcess,
  IoredisClient,
  IoredisCluster,
  NodeRedisClient,
  NodeRedisCluster,
  NodeRedisPool,
  NodeRedisSentinel,
} from "./lines.js";
export { Server, type ServerOptions } from "./server.js";
