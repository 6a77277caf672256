/** The common part of all limiters: asks the server, and applies `onError` without it. */

import { mustHappenOnce, renewing, scriptKey, type Command } from "../transport/command.js";
import { Decision, JointDecision } from "../values/decision.js";
import { BadArgument, CannotWait, ReplyLost, ServerAway, Undecided } from "../values/errors.js";
import { checkAmount, checkLimit, checkMs, type Amount, type Limit } from "../values/limit.js";
import { LocalLimiter } from "../local/local-limiter.js";
import type { Clock } from "../transport/driver.js";
import { whileIn } from "../transport/time.js";
import { outside, serverOf, type Client, type How, type Server } from "../transport/server.js";

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
export type OptionsOfDropIns = Omit<Options, "shadow">;

/** Their names, for mistakes. */
export const OPTIONS = ["prefix", "onError", "onDecision"];

export type OnDecision = (name: string, limit: Limit, decision: Decision, durationMs: number) => void;

export interface Bucket {
  name: string;
  limit: Limit;
}

/** One of several buckets that a command is about. */
export interface Part extends Bucket {
  /** The name of its limit. */
  which: string;
  amount: Amount;
}

/** How long the caller takes part in a call. */
export interface Caller {
  /** Ends the caller's wait. The server may have counted the call: its tokens are lost. */
  signal?: AbortSignal | undefined;
}

/** How long a call waits its turn in the server. */
export interface WaitOptions {
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

export const MAX_WAIT_MS = 30 * 86_400_000;
export const MOST_SHARE_BYTES = 128;
export const LEAST_WEIGHT = 0.001;
export const MOST_WEIGHT = 1000;

/** Returns how a call waits; throws a BadArgument before anything is sent. */
export function inTurn({ signal, maxWaitMs = 0, share, weight }: Caller & ShareOptions): How {
  checkMs("maxWaitMs", maxWaitMs, 0, MAX_WAIT_MS);
  if (share === undefined && weight === undefined) return { signal, maxWaitMs };
  if (share === undefined) throw new BadArgument("weight: is of no share, set `share` as well");
  if (typeof share !== "string") throw new BadArgument("share: is not a string");
  const bytes = Buffer.byteLength(share);
  if (bytes === 0 || bytes > MOST_SHARE_BYTES) {
    throw new BadArgument(`share: '${share}' is not of 1 to ${MOST_SHARE_BYTES} bytes`);
  }
  weight ??= 1;
  if (typeof weight !== "number" || !(weight >= LEAST_WEIGHT && weight <= MOST_WEIGHT)) {
    throw new BadArgument(`weight: ${String(weight)} is not from ${LEAST_WEIGHT} to ${MOST_WEIGHT}`);
  }
  return { signal, maxWaitMs, ofShare: ["SHARE", share, "WEIGHT", String(weight)] };
}

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

  decide(operation: string, bucket: Bucket, words: readonly Amount[], how?: How): Promise<Decision> {
    const decided = this.decideQuietly(operation, bucket, words, how);
    return this.told([bucket], decided, wantedBy(operation, words[0]));
  }

  /** Does not call `onDecision`. */
  decideQuietly(operation: string, bucket: Bucket, words: readonly Amount[], how?: How): Promise<Decision> {
    return this.#decisionOf(this.command(operation, bucket, words), Decision.read, how);
  }

  command(operation: string, { name, limit }: Bucket, words: readonly Amount[]): Command {
    return [operation, this.prefix + name, String(limit.capacity), String(limit.rate), ...words.map(String)];
  }

  /** Decides on several buckets: `command` precedes the arguments of each. */
  decideAll(parts: readonly Part[], command: Command, how?: How): Promise<JointDecision> {
    const decided = this.decideAllQuietly(parts, command, how);
    return this.told(parts, decided, command[0] === "TB.MSETTLE" ? 0 : 1); // a settlement denies nothing
  }

  /** Does not call `onDecision`. */
  async decideAllQuietly(parts: readonly Part[], command: Command, how?: How): Promise<JointDecision> {
    const names = parts.map((part) => part.which);
    const read: Read<JointDecision> = (reply, marks) => JointDecision.readEach(reply, names, marks);
    return this.#decisionOf([...command, ...this.wordsOfAll(parts)], read, how);
  }

  wordsOfAll(parts: readonly Part[]): string[] {
    return parts.flatMap((part) => {
      checkLimit(part.limit);
      checkAmount("amount", part.amount);
      return this.command("", part, [part.amount]).slice(1);
    });
  }

  #decisionOf<D extends Decision>(command: Command, read: Read<D>, how?: How): Promise<D> {
    if (how?.maxWaitMs) return this.#decideInTurn(command, read, how, how.maxWaitMs);
    return this.#decideOnce(command, read, how);
  }

  #decideOnce<D extends Decision>(command: Command, read: Read<D>, how?: How): Promise<D> {
    const signal = how?.signal;
    if (signal?.aborted) return Promise.reject(signal.reason as Error);
    const asked = this.server.ask(how?.renews ? renewing(command) : command, how);
    return whileIn(signal, asked).then(read, (error: unknown) => {
      if (error instanceof Undecided) return this.#undecided(command, read, error, how);
      if (signal?.aborted || error instanceof CannotWait) how?.onDoubt?.();
      throw error;
    });
  }

  /** Returns the decision of `onError` in place of the server's. Throws for a mistake, under every policy. */
  #undecided<D extends Decision>(command: Command, read: Read<D>, why: Undecided, how?: How): D {
    const { server, onError } = this;
    if (why.sent) how?.onDoubt?.();
    const lost = why.sent && mustHappenOnce(command);
    let reply = (onError === "local" ? server.local : new LocalLimiter()).run(command);
    this.#countDegraded(why, lost);
    if (onError === "open") reply = [wantedBy(command[0], command[4]), 0, 0, 0, []];
    if (onError === "closed") reply = [0, 0, server.retryEveryMs, 0, []];
    return read(reply, { degraded: true, lost });
  }

  /** Asks at once, and waits in the server if need be. Where that is impossible, asks again when it may be granted. */
  async #decideInTurn<D extends Decision>(command: Command, read: Read<D>, how: How, maxWaitMs: number): Promise<D> {
    const untilMs = this.clock.now() + maxWaitMs;
    for (let waits = 0; ; ) {
      const decision = await this.#decideOnce(command, read, { ...how, maxWaitMs: 0 });
      const { allowed, degraded, retryAfterMs } = decision;
      const leftMs = untilMs - this.clock.now();
      if (allowed || degraded || retryAfterMs < 0 || leftMs <= 0 || this.shadow) return decision;
      if (waits < MOST_WAITS && this.server.canWaitFor(command)) {
        waits++;
        try {
          return await this.#decideOnce(command, read, { ...how, maxWaitMs: leftMs });
        } catch (error) {
          if (!(error instanceof CannotWait)) throw error;
          continue; // whether the server is away, it says at once
        }
      }
      if (retryAfterMs > leftMs) return decision;
      await this.clock.sleep(Math.max(retryAfterMs, 1), how.signal);
    }
  }

  /** Sends a command that decides nothing, such as DEL. */
  async ask(command: Command, how?: How): Promise<unknown> {
    try {
      return await this.server.ask(command, how);
    } catch (error) {
      if (!(error instanceof Undecided)) throw error;
      this.#countDegraded(error, false);
      const commands = this.onError === "local" ? (how?.together ?? [command]) : [];
      return commands.map((words) => this.server.local.run(words)).at(-1);
    }
  }

  /** Calls `onDecision`, and in shadow mode lets the call pass, of which it wanted so much. */
  told<D extends Decision>(buckets: readonly (Bucket & { which?: string })[], decided: Promise<D>, wanted = 1) {
    if (!this.#onDecision && !this.shadow) return decided;
    const began = this.clock.now();
    return decided.then((decision) => {
      const passing = this.shadow ? decision.inShadowMode(wanted) : decision;
      for (const { which = "", name, limit } of buckets) {
        const own = passing instanceof JointDecision ? (passing.each[which] ?? passing) : passing;
        this.tell(name, limit, own, began);
      }
      return passing;
    });
  }

  tell(name: string, limit: Limit, decision: Decision, began: number): void {
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
    const keys = names.map((name) => this.prefix + name);
    // Those of the script may be on another node.
    const all = this.server.canScript ? [keys, keys.map(scriptKey)] : [keys];
    const deleted = await Promise.all(all.map((some) => this.ask(["DEL", ...some])));
    return deleted.some((count) => Number(count) > 0);
  }
}

/** Returns what a call is granted at most. */
function wantedBy(operation: string | undefined, most: Amount | undefined): number {
  return operation === "TB.TAKEUPTO" ? Number(most) : 1;
}

type Read<D> = (reply: unknown, marks?: { degraded: boolean; lost: boolean }) => D;
