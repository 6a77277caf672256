/** The common part of all limiters: asks the server, and applies `onError` without it. */

import { mustHappenOnce, renewing, type Command } from "../transport/command.js";
import { LEAST_WEIGHT, LONGEST_MS, MOST_SHARE_BYTES, MOST_WEIGHT } from "../values/constants.js";
import { Decision } from "../values/decision.js";
import { BadArgument, CannotWait, ReplyLost, ServerAway, Undecided } from "../values/errors.js";
import { checkAmount, checkBetween, type Amount, type Limit } from "../values/limit.js";
import { LocalLimiter } from "../local/local-limiter.js";
import type { Clock } from "../transport/driver.js";
import { whileIn } from "../transport/time.js";
import { outside, serverOf, type Client, type Call, type Server } from "../transport/server.js";

export type Policy = "local" | "open" | "closed" | "throw";

export interface Options {
  /** Precedes each name in its key; "tb:" by default. */
  prefix?: string;
  /**
   * Decides while the server is away. "local", the default, enforces the same limit in the memory of this process;
   * "open" lets every call pass, "closed" none; "throw" rejects calls with `ServerAway`.
   */
  onError?: Policy;
  /** Called with every decision, and how long it took. What it throws becomes a warning. */
  onDecision?: OnDecision | undefined;
  /**
   * Lets every call pass, at once; false by default. The server decides and counts as always, and a decision that was a
   * denial is `shadowed`.
   */
  shadow?: boolean;
}

/** The options of what a library asks: the library decides what to do with a denial. */
export type DropInOptions = Omit<Options, "shadow">;

export const DROP_IN_OPTIONS = ["prefix", "onError", "onDecision"];
export const OPTIONS = [...DROP_IN_OPTIONS, "shadow"];

export type OnDecision = (name: string, limit: Limit, decision: Decision, durationMs: number) => void;

export interface Bucket {
  name: string;
  limit: Limit;
  /** The name of its limit among several. */
  which?: string;
}

/** One of several buckets that a command is about. */
export interface Part extends Bucket {
  which: string;
  amount: Amount;
}

/** How long the caller takes part in a call. */
export interface Caller {
  /** Ends the caller's wait. The server may have counted the call: its tokens are lost. */
  signal?: AbortSignal | undefined;
}

/** How long a call waits its turn in the server. */
export interface WaitOptions extends Caller {
  /**
   * The longest wait, in milliseconds up to 30 days; 0, none, by default. Calls that wait for the same bucket are served
   * in order. A `signal` ends the wait at once.
   */
  maxWaitMs?: number | undefined;
}

/** As whose a call of one limit waits. */
export interface ShareOptions extends WaitOptions {
  /**
   * The tenant, 1 to 128 bytes. Tenants that wait for the same bucket get tokens in proportion to their weights, however
   * many calls each has waiting. Calls without a share are one tenant of weight 1.
   */
  share?: string | undefined;
  /** The weight of this call's tenant, from 0.001 to 1000, kept to millionths; 1 by default. */
  weight?: number | undefined;
}

/** Returns how a call waits; throws a BadArgument before anything is sent. */
export function inTurn({ signal, maxWaitMs = 0, share, weight }: ShareOptions): Call {
  checkBetween("maxWaitMs", maxWaitMs, 0, LONGEST_MS);
  if (share === undefined && weight === undefined) return { signal, maxWaitMs };
  if (share === undefined) throw new BadArgument("weight: is of no share, set `share` as well");
  const bytes = typeof share === "string" ? Buffer.byteLength(share) : 0;
  if (bytes === 0 || bytes > MOST_SHARE_BYTES) {
    throw new BadArgument(`share: '${String(share)}' is not a string of 1 to ${MOST_SHARE_BYTES} bytes`);
  }
  checkBetween("weight", (weight ??= 1), LEAST_WEIGHT, MOST_WEIGHT);
  return { signal, maxWaitMs, ofShare: ["SHARE", share, "WEIGHT", String(weight)] };
}

/** Of the limits that a command is about, if there may be several. */
type Names = readonly string[];

/** How often a call waits in a server that has or keeps no connection for it. */
const MOST_WAITS = 2;
const POLICIES = new Set(["local", "open", "closed", "throw"]);

export class Decider {
  readonly prefix: string;
  readonly onError: Policy;
  readonly shadow: boolean;
  readonly server: Server;
  readonly clock: Clock;
  readonly #onDecision: OnDecision | undefined;

  constructor(client: Client | Server, options: Options) {
    const { prefix = "tb:", onError = "local", onDecision, shadow = false } = options;
    if (!POLICIES.has(onError)) {
      throw new BadArgument(`onError: '${onError}' is neither 'local' nor 'open' nor 'closed' nor 'throw'`);
    }
    if (typeof shadow !== "boolean") throw new BadArgument(`shadow: '${String(shadow)}' is neither true nor false`);
    this.prefix = prefix;
    this.onError = onError;
    this.shadow = shadow;
    this.server = serverOf(client);
    this.clock = this.server.clock;
    this.#onDecision = onDecision;
  }

  /** Decides on one bucket. */
  decide(operation: string, bucket: Bucket, words: readonly Amount[], call?: Call): Promise<Decision> {
    return this.reported([bucket], this.decideQuietly(operation, bucket, words, call), wantedBy(operation, words[0]));
  }

  /** Does not call `onDecision`. */
  decideQuietly(operation: string, bucket: Bucket, words: readonly Amount[], call?: Call): Promise<Decision> {
    return this.#decided(this.command(operation, bucket, words), [], call);
  }

  command(operation: string, { name, limit }: Bucket, words: readonly Amount[]): Command {
    return [operation, this.prefix + name, String(limit.capacity), String(limit.rate), ...words.map(String)];
  }

  /** Decides on several buckets: `command` precedes the arguments of each. */
  decideAll(parts: readonly Part[], command: Command, call?: Call): Promise<Decision> {
    return this.reported(parts, this.decideAllQuietly(parts, command, call), wantedBy(command[0]), call?.each);
  }

  /** Does not call `onDecision`. */
  async decideAllQuietly(parts: readonly Part[], command: Command, call?: Call): Promise<Decision> {
    const names = parts.map((part) => part.which);
    return this.#decided([...command, ...this.wordsOfAll(parts)], names, call);
  }

  wordsOfAll(parts: readonly Part[]): string[] {
    return parts.flatMap((part) => {
      checkAmount("amount", part.amount);
      return this.command("", part, [part.amount]).slice(1);
    });
  }

  #decided(command: Command, names: Names, call?: Call): Promise<Decision> {
    if (call?.maxWaitMs) return this.#decideInTurn(command, names, call, call.maxWaitMs);
    return this.#decideOnce(command, names, call);
  }

  #decideOnce(command: Command, names: Names, call?: Call): Promise<Decision> {
    const signal = call?.signal;
    if (signal?.aborted) return Promise.reject(signal.reason as Error);
    const asked = this.server.ask(call?.renews ? renewing(command) : command, call);
    return whileIn(signal, asked).then(
      (reply) => Decision.read(reply, chosen(names, call?.each, Number((reply as unknown[])[0]))),
      (error: unknown) => {
        if (error instanceof Undecided) return this.#undecided(command, names, error, call);
        if (signal?.aborted || error instanceof CannotWait) call?.onDoubt?.();
        throw error;
      },
    );
  }

  /** Returns the decision of `onError` in place of the server's. Throws for a mistake, under every policy. */
  #undecided(command: Command, names: Names, why: Undecided, call?: Call): Decision {
    const { server, onError } = this;
    if (why.sent) call?.onDoubt?.();
    const lost = why.sent && mustHappenOnce(command);
    let reply = (onError === "local" ? server.local : new LocalLimiter()).run(command);
    this.#countDegraded(why, lost);
    if (onError === "open") reply = [wantedBy(command[0], command[4]) || 1, 0, 0, 0, []];
    if (onError === "closed") reply = [0, 0, server.retryEveryMs, 0, []];
    const own = chosen(names, call?.each, Number((reply as unknown[])[0]));
    return Decision.read(reply, own, { degraded: true, lost });
  }

  /** Asks at once, and waits in the server if need be. Where that is impossible, asks again when it may be granted. */
  async #decideInTurn(command: Command, names: Names, call: Call, maxWaitMs: number): Promise<Decision> {
    const untilMs = this.clock.now() + maxWaitMs;
    for (let waits = 0; ; ) {
      const decision = await this.#decideOnce(command, names, { ...call, maxWaitMs: 0 });
      const { allowed, degraded, retryAfterMs } = decision;
      const leftMs = untilMs - this.clock.now();
      if (allowed || degraded || retryAfterMs < 0 || leftMs <= 0 || this.shadow) return decision;
      if (waits < MOST_WAITS && this.server.canWait) {
        waits++;
        try {
          return await this.#decideOnce(command, names, { ...call, maxWaitMs: leftMs });
        } catch (error) {
          if (!(error instanceof CannotWait)) throw error;
          continue; // whether the server is away, it says at once
        }
      }
      if (retryAfterMs > leftMs) return decision;
      await this.clock.sleep(Math.max(retryAfterMs, 1), call.signal);
    }
  }

  /** Sends a command that decides nothing, such as DEL. */
  async ask(command: Command, call?: Call): Promise<unknown> {
    try {
      return await this.server.ask(command, call);
    } catch (error) {
      if (!(error instanceof Undecided)) throw error;
      this.#countDegraded(error, false);
      const commands = this.onError === "local" ? (call?.together ?? [command]) : [];
      return commands.map((words) => this.server.local.run(words)).at(-1);
    }
  }

  /** Calls `onDecision`, and in shadow mode lets the call pass, of which it wanted so much. */
  reported(buckets: readonly Bucket[], decided: Promise<Decision>, wanted = 1, each = 0): Promise<Decision> {
    if (!this.#onDecision && !this.shadow) return decided;
    const began = this.clock.now();
    return decided.then((decision) => {
      const passing = this.shadow ? decision.inShadowMode(wanted) : decision;
      const own = chosen(buckets, each, decision.granted);
      // A denial does not say of which alternative it is: every bucket is reported, once.
      for (const { which = "", name, limit } of own.length > 0 ? own : byName(buckets))
        this.report(name, limit, passing.each[which] ?? passing, began);
      return passing;
    });
  }

  report(name: string, limit: Limit, decision: Decision, began: number): void {
    const durationMs = this.clock.now() - began;
    outside(() => this.#onDecision?.(name, limit, decision, durationMs));
  }

  /** Counts the decision; throws if `onError` is "throw". */
  #countDegraded({ message, cause }: Undecided, lost: boolean): void {
    this.server.degradedCount++;
    if (this.onError !== "throw") return;
    if (!lost) throw new ServerAway(message, { cause });
    throw new ReplyLost(`the reply was lost, it is not known whether it happened; ${message}`, { cause });
  }

  /** Deletes the buckets of these names, and returns whether there was one. */
  async delete(names: readonly string[]): Promise<boolean> {
    return Number(await this.ask(["DEL", ...names.map((name) => this.prefix + name)])) > 0;
  }
}

/** Returns those of the alternative of this number; none of 0. All, without alternatives. */
export function chosen<T>(all: readonly T[], each = 0, number: number): readonly T[] {
  return each > 0 ? all.slice((number - 1) * each, number * each) : all;
}

/** Returns each bucket once. */
export function byName<T extends Bucket>(buckets: readonly T[]): T[] {
  return [...new Map(buckets.map((bucket) => [bucket.name, bucket])).values()];
}

/** Returns what a call is granted at most; a settlement denies nothing. */
function wantedBy(operation: string | undefined, most?: Amount): number {
  return operation === "TB.TAKEUPTO" ? Number(most) : Number(operation !== "TB.MSETTLE");
}
