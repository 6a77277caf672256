/** Several limits together. */

import type { Decision } from "../values/decision.js";
import { BadArgument, checkOptions } from "../values/errors.js";
import { checkLimit, checkName, type Amount, type Limit } from "../values/limit.js";
import { hashTag } from "../transport/command.js";
import type { Client, Server } from "../transport/server.js";
import { Decider, inTurn, OPTIONS, type Options, type Part, type WaitOptions } from "./decider.js";
import { Hold, Holder, type HoldOptions } from "./hold.js";

/** One name for all limits, or one for each. */
export type Names = string | Readonly<Record<string, string>>;
export type Amounts = Readonly<Record<string, Amount>>;

const CALL_OPTIONS = ["signal", "maxWaitMs"];
const HOLD_OPTIONS = [...CALL_OPTIONS, "ttlMs"];

/**
 * Several named limits. A call takes all of its costs, or none; a hold is of all amounts, or of none.
 *
 * ```ts
 * import { JointLimiter } from "tokenbucket-redis";
 * import { FakeServer } from "tokenbucket-redis/testing";
 *
 * const limits = { requests: { capacity: 60, rate: "60/m" }, tokens: { capacity: 10_000, rate: "10000/m" } };
 * const limiter = new JointLimiter(new FakeServer(), limits);
 * const { each } = await limiter.takeAll("user:42", { requests: 1, tokens: 400 });
 * console.log(each["requests"]?.remaining, each["tokens"]?.remaining); // 59 9600
 *
 * await limiter.withHold("user:42", { requests: 1, tokens: 500 }, async (hold) => {
 *   hold.used = { requests: 1, tokens: 120 };
 * });
 * console.log((await limiter.takeAll("user:42", { tokens: 0 })).remaining); // 9480
 * ```
 */
export class JointLimiter extends Holder<Names, Amounts, HoldOptions> {
  readonly limits: Readonly<Record<string, Limit>>;
  readonly #decider: Decider;

  /** The bucket of limit `which` is at `prefix` + "{name}:" + which; braces and "%" in names are encoded. */
  constructor(client: Client | Server, limits: Readonly<Record<string, Limit>>, options: Options = {}) {
    super();
    checkOptions(options, OPTIONS);
    for (const limit of Object.values(limits)) checkLimit(limit);
    this.limits = { ...limits };
    this.#decider = new Decider(client, options);
  }

  /** Takes every cost or none. In a cluster, a name for each limit must contain the same hash tag. */
  async takeAll(name: Names, costs: Amounts, options: WaitOptions = {}): Promise<Decision> {
    checkOptions(options, CALL_OPTIONS);
    const parts = this.#parts(name, costs);
    return this.#decider.decideAll(parts, ["TB.MTAKE", String(parts.length)], inTurn(options));
  }

  async hold(name: Names, amounts: Amounts, options: HoldOptions = {}): Promise<Hold> {
    checkOptions(options, HOLD_OPTIONS);
    return Hold.of(this.#decider, this.#parts(name, amounts), options);
  }

  #parts(name: Names, amounts: Amounts): Part[] {
    const entries = Object.entries(amounts);
    if (entries.length === 0) throw new BadArgument("amounts: name no limit");
    return entries.map(([which, amount]) => {
      const limit = Object.hasOwn(this.limits, which) && this.limits[which];
      if (!limit) throw new BadArgument(`'${which}' is none of the limits ${Object.keys(this.limits).join(", ")}`);
      const own = typeof name === "object" && name !== null ? name[which] : name;
      checkName(own, ` for '${which}'`);
      const of = own === name ? hashTag(String(own)) : own;
      return { which, name: `${of}:${which}`, limit, amount };
    });
  }
}
