/** What all limiters have in common: a server, and what to do without it. */

import type { Command } from "./command.js";
import { clockOf, type Client, type Clock } from "./connection.js";
import { Decision, JointDecision } from "./decision.js";
import { ServerAway } from "./errors.js";
import { checkAmount, checkLimit, type Amount, type Limit } from "./limit.js";
import { serverOf, type How, type Server } from "./server.js";

export interface Options {
  /** What stands before each name to make its key; "tb:" by default. */
  prefix?: string;
  /**
   * Who passes while the server does not answer: everybody ("open", the default), nobody ("closed"),
   * or calls are rejected with `ServerAway` ("throw").
   */
  onError?: "open" | "closed" | "throw";
  /** How long a call may take; 100 by default. */
  timeoutMs?: number;
  /** How often a server that is away is asked whether it is back; 500 by default. */
  retryEveryMs?: number;
  /** "script": a Lua script decides where the server has no module. */
  fallback?: "script" | undefined;
  /** Told in one line when the server goes, and when it returns; `console.warn` by default. */
  log?: (line: string) => void;
  /** Told of every decision, and how long it took. */
  onDecision?: OnDecision | undefined;
}

export type OnDecision = (name: string, limit: Limit, decision: Decision, durationMs: number) => void;

/** One of several buckets that a command is about. */
export interface Part {
  /** What the caller calls its limit. */
  which: string;
  name: string;
  limit: Limit;
  amount: Amount;
}

const POLICIES = new Set(["open", "closed", "throw"]);
const defaultLog = (line: string) => console.warn(line);

export class Asker {
  readonly prefix: string;
  readonly clock: Clock;
  readonly server: Server;
  readonly #onError: string;
  readonly #retryEveryMs: number;
  readonly #onDecision: OnDecision | undefined;
  readonly canScript: boolean;

  constructor(client: Client, options: Options) {
    const { prefix = "tb:", onError = "open", timeoutMs = 100, retryEveryMs = 500 } = options;
    const { fallback, log = defaultLog, onDecision } = options;
    if (!POLICIES.has(onError)) {
      throw new TypeError(`onError: '${onError}' is neither 'open' nor 'closed' nor 'throw'`);
    }
    if (!(timeoutMs > 0)) throw new RangeError(`timeoutMs: ${timeoutMs} is not above 0`);
    if (!(retryEveryMs >= 0)) throw new RangeError(`retryEveryMs: ${retryEveryMs} is not at least 0`);
    if (fallback !== undefined && fallback !== "script") {
      throw new TypeError(`fallback: '${String(fallback)}' is not 'script'`);
    }
    this.prefix = prefix;
    this.canScript = fallback === "script";
    this.clock = clockOf(client);
    this.server = serverOf(client, { timeoutMs, retryEveryMs, log });
    this.#onError = onError;
    this.#retryEveryMs = retryEveryMs;
    this.#onDecision = onDecision;
  }

  /** The server's reply, or undefined where the policy decides. */
  async ask(command: Command, how: How = {}): Promise<unknown> {
    return this.#orThrow(await this.server.ask(command, { script: this.canScript, ...how }));
  }

  /** The same for a transaction. */
  async askTogether(commands: readonly Command[]): Promise<unknown> {
    return this.#orThrow(await this.server.askTogether(commands, { script: this.canScript }));
  }

  /** The decision about one bucket; `ifOpen`: what stands for it where nobody is asked. */
  async decide(operation: string, bucket: Bucket, words: readonly Amount[], ifOpen?: Decision): Promise<Decision> {
    const began = this.clock.now();
    const decision = await this.decideQuietly(operation, bucket, words, ifOpen);
    this.tell(bucket.name, bucket.limit, decision, began);
    return decision;
  }

  /** The same, and `onDecision` hears nothing. */
  async decideQuietly(
    operation: string,
    { name, limit }: Bucket,
    words: readonly Amount[],
    ifOpen?: Decision,
  ): Promise<Decision> {
    const reply = await this.ask([operation, this.prefix + name, ...limitWords(limit), ...words.map(String)]);
    if (reply !== undefined) return Decision.read(reply);
    return ifOpen && this.#onError === "open" ? ifOpen : this.#byPolicy();
  }

  /** The decision about several: `command` is what comes before the arguments of each. */
  async decideAll(parts: readonly Part[], command: Command, how: How = {}): Promise<JointDecision> {
    const began = this.clock.now();
    const decision = await this.decideAllQuietly(parts, command, how);
    for (const { which, name, limit } of parts) this.tell(name, limit, decision.each[which] ?? decision, began);
    return decision;
  }

  /** The same, and `onDecision` hears nothing. */
  async decideAllQuietly(parts: readonly Part[], command: Command, how: How = {}): Promise<JointDecision> {
    const words = parts.flatMap(({ name, limit, amount }) => {
      checkLimit(limit);
      checkAmount("amount", amount);
      return [this.prefix + name, ...limitWords(limit), String(amount)];
    });
    const reply = await this.ask([...command, ...words], how);
    if (reply === undefined) return new JointDecision(this.#byPolicy());
    const names = parts.map((part) => part.which);
    return JointDecision.readEach(reply, names);
  }

  tell(name: string, limit: Limit, decision: Decision, began: number): void {
    this.#onDecision?.(name, limit, decision, this.clock.now() - began);
  }

  #byPolicy(): Decision {
    const allowed = this.#onError === "open";
    return new Decision({ allowed, retryAfterMs: allowed ? 0 : this.#retryEveryMs, degraded: true });
  }

  #orThrow(reply: unknown): unknown {
    if (reply === undefined && this.#onError === "throw") {
      throw new ServerAway("the server cannot be asked", { cause: this.server.lastError });
    }
    return reply;
  }
}

export interface Bucket {
  name: string;
  limit: Limit;
}

export function limitWords({ capacity, rate }: Limit): string[] {
  return [String(capacity), String(rate)];
}
