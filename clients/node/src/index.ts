/** Token bucket limits decided inside Redis and Valkey. */

export type { Caller, OnDecision, Options, Policy, ShareOptions, WaitOptions } from "./api/decider.js";
export { Decision, Denied, type HeaderOptions } from "./values/decision.js";
export {
  BadArgument,
  CrossSlot,
  HoldLost,
  ModuleMissing,
  ReplyLost,
  ServerAway,
  ServerError,
  TokenBucketError,
} from "./values/errors.js";
export type { Hold, HoldOptions, Used } from "./api/hold.js";
export { parseLimit, type Amount, type Limit } from "./values/limit.js";
export { JointLimiter, type Amounts, type HoldAnyOptions, type Names } from "./api/joint.js";
export {
  Limiter,
  type CallOptions,
  type LimiterOptions,
  type ReserveOptions,
  type TakeOptions,
} from "./api/limiter.js";
export { Server, type Client, type ServerOptions } from "./transport/server.js";
