/** Several limits together. */

import type { Decision } from "../values/decision.js";
import { BadArgument, checkOptions } from "../values/errors.js";
import { checkLimit, checkName, type Amount, type Limit } from "../values/limit.js";
import { hashTag } from "../transport/command.js";
import type { Client, Server } from "../transport/server.js";
import { Decider, inTurn, OPTIONS, type Caller, type Options, type Part, type WaitOptions } from "./decider.js";
import { Hold, Holder, workUnder, type HoldOptions, type Work } from "./hold.js";

/** One name for all limits, or one for each. */
export type Names = string | Readonly<Record<string, string>>;
export type Amounts = Readonly<Record<string, Amount>>;

export type HoldAnyOptions = Omit<HoldOptions, "maxWaitMs">;

const CALL_OPTIONS = ["signal", "maxWaitMs"];
const ANY_OPTIONS = ["signal", "ttlMs"];
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
 *
 * const either = [{ requests: 1, tokens: 9000 }, { requests: 40, tokens: 0 }]; // the best first
 * console.log((await limiter.takeAny("user:43", either)).granted); // 1
 * console.log((await limiter.takeAny("user:43", either)).granted); // 2
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

  /**
   * Takes the first alternative of which every limit allows its cost, in one step. `granted` is its number, from 1. A denial
   * says when the first of them is allowed, not which: its `each` is empty. A limit may stand in several alternatives.
   */
  async takeAny(name: Names, alternatives: readonly Amounts[], options: Caller = {}): Promise<Decision> {
    checkOptions(options, ["signal"]);
    const { parts, each } = this.#alternatives(name, alternatives);
    const { signal } = options;
    return this.#decider.decideAll(parts, ["TB.TAKEANY", String(parts.length), String(each)], { signal, each });
  }

  /** Holds the first alternative, as `takeAny` takes it: `decision.granted` is its number. */
  async holdAny(name: Names, alternatives: readonly Amounts[], options: HoldAnyOptions = {}): Promise<Hold> {
    checkOptions(options, ANY_OPTIONS);
    const { parts, each } = this.#alternatives(name, alternatives);
    return Hold.of(this.#decider, parts, options, undefined, each);
  }

  /** Does `work` under such a hold, as `withHold` does. */
  async withHoldAny<T>(name: Names, alternatives: readonly Amounts[], work: Work<T>, options?: HoldAnyOptions) {
    return workUnder(await this.holdAny(name, alternatives, options), work);
  }

  #alternatives(name: Names, alternatives: readonly Amounts[]): { parts: Part[]; each: number } {
    if (!Array.isArray(alternatives) || alternatives.length === 0) {
      throw new BadArgument("alternatives: are not an array of one or more objects");
    }
    const parts = alternatives.map((amounts: Amounts) => this.#parts(name, amounts));
    const each = parts[0]!.length;
    if (parts.some(({ length }) => length !== each)) {
      const advice = "name a limit with amount 0 to fill one up";
      throw new BadArgument(`alternatives: all must name the same number of limits: ${advice}`);
    }
    return { parts: parts.flat(), each };
  }

  #parts(name: Names, amounts: Amounts): Part[] {
    const entries = Object.entries(amounts ?? {});
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
