/** A server or a cluster, shared by its limiters. */

import { Circuit, type Log } from "./circuit.js";
import { byScript, keyOf, LOAD_SCRIPT, mustHappenOnce, needsModule, waiting, type Command } from "./command.js";
import { MOST_REDIRECTIONS, RETRY_EVERY_MS, TIMEOUT_MS, TRIES_OF_A_SPLIT_SLOT } from "../values/constants.js";
import {
  BadArgument,
  checkOptions,
  codeOf,
  explained,
  faultOf,
  isUnserved,
  ModuleMissing,
  redirectionOf,
  textOf,
  Undecided,
} from "../values/errors.js";
import { checkBetween } from "../values/limit.js";
import { routeOf, type Client } from "./clients.js";
import type { Clock, Connection, Route } from "./driver.js";
import { ClusterRoute } from "./route.js";
import { LocalLimiter } from "../local/local-limiter.js";
import { LONGEST_PAUSE_MS, MACHINES_CLOCK, setTimeout } from "./time.js";
import { Transport } from "./transport.js";
import { Unsettled } from "./unsettled.js";

export type { Client };

export interface ServerOptions {
  /** Milliseconds of silence after which the server is away; 100 by default. */
  timeoutMs?: number;
  /** Milliseconds between attempts to reach a server that is away; 500 by default. */
  retryEveryMs?: number;
  /** "script": a Lua script decides in place of the module; "module" by default. */
  by?: "module" | "script" | undefined;
  /** Gets one line when an outage begins, and one when a call is answered again; `console.warn` by default. */
  log?: Log;
}

export interface Call {
  /** Ends the caller's part in the call. */
  signal?: AbortSignal | undefined;
  /** Waits its turn in the server, at most so long, or until the signal. */
  maxWaitMs?: number | undefined;
  /** The words that say as whose it waits. */
  ofShare?: Command;
  /** Sends the renewal of the hold; without the server, `onError` decides on the `TB.MHOLD`. */
  renews?: boolean;
  /** Sends these in a transaction instead; the command only selects the node. */
  together?: readonly Command[];
  /** How many buckets an alternative has; 0 of a call without alternatives. */
  each?: number;
  /** Called if the server may have executed the call without a reply to it. */
  onDoubt?: () => void;
}

/** A command on its way. */
interface Attempt {
  /** What is sent: by the script, its form of the command. */
  readonly command: Command;
  readonly mustHappenOnce: boolean;
  readonly call: Call;
  /** When it stops waiting its turn in the server; undefined if it does not wait. */
  readonly untilMs: number | undefined;
  /** Goes right before the command. If it fails, the command fails too, and reports it. */
  before?: Command | undefined;
  /** The node that a redirection names for this call alone. */
  askAt?: string | undefined;
  repeats: number;
  /** How often its slot was on two nodes. */
  splits: number;
}

const OPTIONS = ["timeoutMs", "retryEveryMs", "by", "log"];
/** How often a cluster is asked for its slots: nodes leave it, and the driver may know that before us. */
const MS_BETWEEN_LOOKS = 60_000;
const MOST_REPEATS = MOST_REDIRECTIONS + 2 * TRIES_OF_A_SPLIT_SLOT;

/**
 * Pass this to limiters instead of the client to set timeouts, logging, and whether the module or a script decides.
 * Limiters that get the client itself share one with the defaults.
 *
 * ```ts
 * import { Limiter, Server } from "tokenbucket-redis";
 * import { FakeServer } from "tokenbucket-redis/testing";
 *
 * const server = new Server(new FakeServer(), { timeoutMs: 50 }); // or a client of ioredis or node-redis
 * const searches = new Limiter(server, { capacity: 10, rate: "5/s" }, { prefix: "search:" });
 * const logins = new Limiter(server, { capacity: 5, rate: "5/15m" }, { prefix: "login:", onError: "closed" });
 * console.log((await searches.take("user:42")).allowed, (await logins.take("ada")).allowed); // true true
 * ```
 */
export class Server {
  /** How many decisions `onError` made in place of the server. */
  degradedCount = 0;
  /** @internal */ readonly log: Log;
  /** @internal */ readonly clock: Clock;
  /** @internal */ readonly timeoutMs: number;
  /** @internal */ readonly retryEveryMs: number;
  /** @internal */ readonly local = new LocalLimiter();
  /** @internal */ readonly unsettled: Unsettled;
  /** @internal */ readonly route: Route;
  readonly #by: "module" | "script";
  readonly #transports = new Map<string, Transport>();
  #nextRefresh = 0;
  #nextLook = performance.now() + MS_BETWEEN_LOOKS;
  /** How often no node was there to ask for slots. */
  #looks = 0;

  constructor(client: Client, options: ServerOptions = {}) {
    const { timeoutMs = TIMEOUT_MS, retryEveryMs = RETRY_EVERY_MS } = options;
    const { by = "module", log = (line) => console.warn(line) } = options;
    checkOptions(options, OPTIONS);
    checkBetween("timeoutMs", timeoutMs, 1, LONGEST_PAUSE_MS);
    checkBetween("retryEveryMs", retryEveryMs, 0, LONGEST_PAUSE_MS);
    if (by !== "module" && by !== "script") {
      throw new BadArgument(`by: '${String(by)}' is neither 'module' nor 'script'`);
    }
    this.route = routeOf(client);
    this.timeoutMs = timeoutMs;
    this.retryEveryMs = retryEveryMs;
    this.log = (line) => outside(() => log(line));
    this.#by = by;
    this.clock = this.route.clock ?? MACHINES_CLOCK;
    this.unsettled = new Unsettled((command) => this.ask(command), retryEveryMs);
    if (!("on" in client)) return;
    client.on("end", () => this.close());
    // Of Sentinel in node-redis. The old master may go on to decide for seconds.
    client.on("topology-change", (event) => {
      if ((event as { type: string }).type === "MASTER_CHANGE") this.#closeConnections();
    });
  }

  /** @internal Resolves to the reply. Follows redirections. */
  ask(command: Command, call: Call = {}): Promise<unknown> {
    const untilMs = call.maxWaitMs ? performance.now() + call.maxWaitMs : undefined;
    const attempt = { command, mustHappenOnce: mustHappenOnce(command), call, untilMs, repeats: 0, splits: 0 };
    if (this.#by === "module") return this.#send(attempt);
    if (needsModule(command) || call.ofShare) {
      const missing = "holds, shares and alternatives need the module, and this Server decides by the script";
      return Promise.reject(new ModuleMissing(missing));
    }
    if (this.route.clock) return this.#send(attempt); // a fake decides as both
    const together = call.together?.map(byScript);
    return this.#send({ ...attempt, command: byScript(command), call: together ? { ...call, together } : call });
  }

  /** Sends the call, without an async function, which would cost every call a tenth more. */
  #send(attempt: Attempt): Promise<unknown> {
    const { command, call, untilMs, askAt } = attempt;
    const { route } = this;
    const address = askAt ?? route.addressOf(keyOf(command));
    const transport = this.#transportAt(address);
    const away = transport.whyAway(); // which costs most calls of an outage half as much here
    if (away) return Promise.reject(away as never);
    if (route instanceof ClusterRoute && performance.now() >= this.#nextLook) this.#learnSlotsFrom(address, route);
    let wasSent = false;
    const send = (connection: Connection) => {
      if (wasSent) call.onDoubt?.(); // the server may have executed it, and deny it now
      wasSent = true;
      return transmit(connection, attempt);
    };
    const sent = untilMs ? transport.wait(send, untilMs, call.signal) : transport.ask(send, attempt.mustHappenOnce);
    return sent.then(
      (reply) => {
        transport.circuit.answered();
        return reply;
      },
      (error: unknown) => this.#again(error, attempt, transport),
    );
  }

  /** Sends the call again if that may help, else throws. */
  async #again(error: unknown, attempt: Attempt, transport: Transport): Promise<unknown> {
    if (error instanceof Undecided || attempt.call.signal?.aborted) throw error;
    if (attempt.repeats++ === MOST_REPEATS) throw transport.circuit.refused(error);
    if (await this.#isRepeatable(error, attempt, transport)) return this.#send(attempt);
    if (faultOf(error) === "refusing") throw transport.circuit.refused(error);
    throw explained(error, transport.circuit.who);
  }

  /** Returns whether to send again, after an error which says that nothing happened. Also decides where and how. */
  async #isRepeatable(error: unknown, attempt: Attempt, transport: Transport): Promise<boolean> {
    const code = codeOf(error);
    const to = redirectionOf(error);
    attempt.before = undefined;
    if (code === "NOSCRIPT") {
      attempt.before = LOAD_SCRIPT;
      return true;
    }
    attempt.askAt = undefined;
    if (code === "READONLY") return transport.leave();
    // The keys are on two nodes, because their slot moves, or the call waited at a node that no longer decides it.
    if (code === "TRYAGAIN" || code === "UNBLOCKED") {
      if (attempt.splits++ === TRIES_OF_A_SPLIT_SLOT) return false;
      await new Promise((passed) => setTimeout(passed, this.timeoutMs / TRIES_OF_A_SPLIT_SLOT));
    } else if (!to || !(this.route instanceof ClusterRoute)) {
      // A node that has left says so of every slot: another may know who has this one.
      if (isUnserved(error)) this.#lookForSlots(this.route.addressOf(keyOf(attempt.command)));
      return false;
    } else if (to.isMoved) {
      this.route.learn(to.slot, to.address);
      this.#nextLook = performance.now() + this.retryEveryMs / 2; // the slots of a node move one after the other
    } else {
      attempt.before = ["ASKING"];
      attempt.askAt = to.address;
    }
    return true;
  }

  /** @internal Calls cannot wait in the server by the script, nor in a fake. */
  get canWait(): boolean {
    return this.#by === "module" && !this.route.clock;
  }

  /** Closes our connections; the next call opens new ones. The application's client stays open. */
  close(): void {
    this.unsettled.clear();
    this.#closeConnections();
  }

  #closeConnections(): void {
    for (const transport of this.#transports.values()) transport.close();
  }

  #transportAt(address: string): Transport {
    const known = this.#transports.get(address);
    if (known) return known;
    this.#forgetOthers();
    const { route, timeoutMs, retryEveryMs, log } = this;
    const who = `the ${route instanceof ClusterRoute ? "node" : "server"}${address && ` ${address}`}`;
    const circuit = new Circuit(who, retryEveryMs, log);
    const connect = () => route.connectionTo(address);
    const transport = new Transport(circuit, timeoutMs, connect, () => this.#lookForSlots());
    this.#transports.set(address, transport);
    return transport;
  }

  /** Forgets nodes that have left the cluster. A node that a slot moves to has none yet, but calls. */
  #forgetOthers(): void {
    if (!(this.route instanceof ClusterRoute)) return;
    const addresses = this.route.addresses();
    for (const [address, transport] of this.#transports) {
      if (addresses.has(address) || transport.isInUse) continue;
      transport.close();
      this.#transports.delete(address);
    }
  }

  /** Asks another node of a cluster which nodes have the slots of those that are away. */
  #lookForSlots(besides?: string): void {
    const { route } = this;
    const now = performance.now();
    if (!(route instanceof ClusterRoute) || now < this.#nextRefresh) return;
    this.#nextRefresh = now + this.retryEveryMs / 2;
    const addresses = [...route.addresses()];
    const there = addresses.find((address) => address !== besides && !this.#transportAt(address).circuit.isAway);
    if (there !== undefined) return this.#learnSlotsFrom(there, route);
    route.forget();
    // Tries one after the other: the others may have no calls that would.
    this.#transportAt(addresses[this.#looks++ % addresses.length]!).whyAway();
  }

  #learnSlotsFrom(address: string, route: ClusterRoute): void {
    this.#nextLook = performance.now() + MS_BETWEEN_LOOKS;
    const asked = this.#transportAt(address).ask((connection) => connection.send(["CLUSTER", "SLOTS"]));
    const replied = (slots: unknown) => {
      route.learnAll(slots, address);
      this.#forgetOthers();
    };
    asked.then(replied, () => {});
  }
}

function transmit(connection: Connection, attempt: Attempt): Promise<unknown> {
  const { command, call, before, untilMs } = attempt;
  if (before) connection.send(before).catch(() => {});
  if (call.together) return transaction(connection, call.together);
  if (untilMs === undefined) return connection.send(command);
  const leftMs = Math.max(Math.ceil(untilMs - performance.now()), 0);
  return connection.send(waiting(command, leftMs, call.ofShare));
}

async function transaction(connection: Connection, commands: readonly Command[]) {
  for (const words of [["MULTI"], ...commands]) connection.send(words).catch(() => {});
  const replies = await connection.send(["EXEC"]);
  for (const reply of replies as unknown[]) if (reply instanceof Error) throw reply;
  return replies;
}

/** Calls a hook of the application outside of everything: it may throw, be asynchronous, or ask a limiter. */
export function outside(hook: () => unknown): void {
  queueMicrotask(async () => {
    try {
      await hook();
    } catch (error) {
      process.emitWarning(`a hook of tokenbucket has failed: ${textOf(error)}`);
    }
  });
}

const servers = new WeakMap<Client, Server>();

/** Returns the given server, or the one that all limiters on this client share. */
export function serverOf(client: Client | Server): Server {
  if (client instanceof Server) return client;
  const server = servers.get(client) ?? new Server(client);
  servers.set(client, server);
  return server;
}
