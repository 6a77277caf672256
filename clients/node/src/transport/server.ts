/** A server or a cluster, shared by its limiters. */

import { createHash } from "node:crypto";

import { ownCall, sendAll, type Call, type Sender } from "./call.js";
import type { Log } from "./circuit.js";
import {
  isOfModule,
  keyOf,
  mustHappenOnce,
  needsModule,
  scriptArguments,
  scriptKey,
  waiting,
  writesNothing,
  type Command,
} from "./command.js";
import {
  BadArgument,
  BadArgumentType,
  codeOf,
  explained,
  faultOf,
  isUnknownCommand,
  redirectionOf,
  textOf,
} from "../values/errors.js";
import { FALLBACK } from "./fallback.js";
import { routeOf } from "./clients.js";
import type { Client, Clock, Connection, Route } from "./driver.js";
import { ClusterRoute, listenToEnd, MACHINES_CLOCK } from "./route.js";
import { localLimiter } from "../local/local-limiter.js";
import { setTimeout } from "./timers.js";
import type { Transport } from "./transport.js";
import { WaitingTransport } from "./waits.js";

export interface ServerOptions {
  /** A call times out when nothing came from the server for this long; 100 by default. */
  timeoutMs?: number;
  /** How often to check whether a server that is away is back; 500 by default. */
  retryEveryMs?: number;
  /** "script": a Lua script decides where the server has no module. */
  fallback?: "script" | undefined;
  /** Gets one line when the server goes, and one when it returns; `console.warn` by default. */
  log?: Log;
}

/** Receives the outcome of a command. */
export interface Listener {
  /** Possibly after `undecided`. */
  replied(reply: unknown): void;
  failed(error: unknown): void;
  /** The server does not decide; `lost`: the command was sent and must not be sent again. */
  undecided(lost: boolean, why: string, cause: unknown): void;
  /** Its caller has left or was told, and the connection has ended before a reply. */
  ended?(): void;
}

export interface How {
  /** Sends the command also while the server counts as away. */
  always?: boolean;
  /** Keeps a grant that comes late. */
  keeps?: boolean;
  /** Sends the renewal of the hold; without the server, `onError` decides on the `TB.MHOLD`. */
  renews?: boolean;
  /** Waits its turn in the server, at most so long. */
  maxWaitMs?: number | undefined;
  /** The words that say as whose it waits. */
  share?: Command;
  /** Sends these in a transaction instead; the command only selects the node. */
  together?: readonly Command[];
}

const PLAINLY: How = {};
const MOST_REPEATS = 25;
/** How often a call is sent again within the timeout while its slot is on two nodes, with a redirection each time. */
const TRIES_OF_A_SPLIT_SLOT = 10;
/** The keys of a call are on two nodes, because their slot moves, or it waited at a node that no longer decides it. */
const NOT_HERE_NOW = new Set(["TRYAGAIN", "UNBLOCKED"]);
const SHA = createHash("sha1").update(FALLBACK).digest("hex");
/** `import` and `require` each load the class, and either's servers are for both. */
const MARK: unique symbol = Symbol.for("tokenbucket.server") as never;
const defaultLog: Log = (line) => console.warn(line);

/**
 * Pass this to limiters instead of the client to set timeouts, logging, and the fallback for servers without the
 * module. Limiters that get the client itself share one with the defaults.
 */
export class Server {
  readonly [MARK] = true;
  readonly log: Log;
  readonly clock: Clock;
  readonly canScript: boolean;
  readonly retryEveryMs: number;
  /** How many decisions `onError` made in place of the server. */
  degradedCount = 0;
  readonly local = localLimiter();
  readonly route: Route;
  readonly #transports = new Map<string, WaitingTransport>();
  readonly timeoutMs: number;
  #nextRefresh = 0;

  constructor(client: Client, options: ServerOptions = {}) {
    const { timeoutMs = 100, retryEveryMs = 500, fallback, log = defaultLog } = options;
    if (!(timeoutMs > 0)) throw new BadArgument(`timeoutMs: ${timeoutMs} is not above 0`);
    if (!(retryEveryMs >= 0)) throw new BadArgument(`retryEveryMs: ${retryEveryMs} is not at least 0`);
    if (fallback !== undefined && fallback !== "script") {
      throw new BadArgumentType(`fallback: '${String(fallback)}' is not 'script'`);
    }
    this.route = routeOf(client);
    this.timeoutMs = timeoutMs;
    this.retryEveryMs = retryEveryMs;
    this.log = (line) => outside(() => log(line));
    this.canScript = fallback === "script";
    this.clock = this.route.clock ?? MACHINES_CLOCK;
    if ("on" in client) listenToEnd(client, () => this.close());
  }

  static [Symbol.hasInstance](value: unknown): boolean {
    return typeof value === "object" && value !== null && MARK in value;
  }

  ask(command: Command, listener: Listener, how?: How): void {
    new RoutedCall(this, command, listener, how).begin();
  }

  /** Returns whether the call can wait in the server: not with the script, nor in a fake. */
  canWaitFor(command: Command): boolean {
    if (this.route.clock) return false;
    return !(this.canScript && this.transportOf(keyOf(command)).circuit.usesScript);
  }

  /** Closes our connections; the next call opens new ones. The application's client stays open. */
  close(): void {
    for (const transport of this.#transports.values()) transport.close();
  }

  transportOf(key: string): WaitingTransport {
    return this.transportAt(this.route.addressOf(key));
  }

  transportAt(address: string): WaitingTransport {
    const known = this.#transports.get(address);
    if (known) return known;
    const transport = new WaitingTransport(address, this);
    const { route } = this;
    if (route instanceof ClusterRoute) transport.onAway = () => this.#lookForSlots(route, transport);
    this.#transports.set(address, transport);
    return transport;
  }

  /** Asks another node which node has the slots of one that is away. */
  #lookForSlots(route: ClusterRoute, away: Transport): void {
    const now = performance.now();
    if (now < this.#nextRefresh) return;
    this.#nextRefresh = now + this.retryEveryMs / 2;
    const others = [...route.addresses()].filter((address) => address !== away.address);
    const known = others.map((address) => this.transportAt(address)).filter(({ circuit }) => !circuit.isAway);
    const other = known.find(({ isConnected }) => isConnected) ?? known[0];
    const replied = (slots: unknown) => route.learnAll(slots, other!.address);
    other?.send(ownCall([["CLUSTER", "SLOTS"]], { replied }));
  }
}

/** A command that follows redirections, and uses the script on servers without the module. */
export class RoutedCall implements Call {
  connection: Connection | undefined;
  sender: Sender | undefined;
  sends = 0;
  readonly once: boolean;
  sinceTick = 0;
  isTold = false;
  place = -1;
  #transport: WaitingTransport;
  #isByScript = false;
  /** Goes right before the command. If it fails, the command fails too, and reports it. */
  #before: Command | undefined;
  #repeats = 0;
  /** When its wait in the server ends; undefined if it does not wait there. */
  readonly #untilMs: number | undefined;
  #leaveWait: (() => void) | undefined;
  /** True once its caller has left the queue, or was told. */
  #isLeft = false;

  constructor(
    readonly server: Server,
    readonly command: Command,
    readonly listener: Listener,
    readonly how = PLAINLY,
  ) {
    this.once = mustHappenOnce(command);
    this.#transport = server.transportOf(keyOf(command));
    if (how.maxWaitMs) this.#untilMs = performance.now() + how.maxWaitMs;
    if (this.#canScript && this.#transport.circuit.usesScript) this.#route(true);
  }

  begin(): void {
    const transport = this.#transport;
    if (!transport.circuit.isAway || this.how.always) return this.#send();
    transport.probeNow();
    this.undecided(false);
  }

  /** A write of the same name and key that changes nothing. */
  get nothing(): Command {
    return writesNothing(this.#waiting(0));
  }

  /** How long it may wait from now on. */
  get leftMs(): number {
    return Math.max(this.#untilMs! - performance.now(), 0);
  }

  /** Takes a call that waits out of the queue: its caller has left. */
  leave(): void {
    if (this.#untilMs === undefined) return;
    this.#isLeft = true;
    this.#leaveWait?.();
  }

  #send(): void {
    if (this.#untilMs === undefined) this.#transport.send(this);
    else if (!this.#isLeft) this.#leaveWait = this.#transport.wait(this);
  }

  transmit(connection: Connection): Promise<unknown> {
    if (this.#before) connection.send(this.#before).catch(() => {});
    this.#before = undefined;
    if (this.how.together) return transaction(connection, this.how.together, this.#isByScript);
    if (this.#untilMs !== undefined) return connection.send(this.#waiting(Math.ceil(this.leftMs)));
    return connection.send(this.#isByScript ? evalsha(this.command) : this.command);
  }

  #waiting(maxWaitMs: number): Command {
    return waiting(this.command, maxWaitMs, this.how.share);
  }

  replied(reply: unknown): void {
    if (!this.#isByScript) this.#transport.circuit.hasModule();
    this.listener.replied(reply);
  }

  ended(): void {
    this.listener.ended?.();
  }

  undecided(lost: boolean): void {
    this.#isLeft = true;
    this.listener.undecided(lost, this.#transport.reason, this.#transport.circuit.lastError);
  }

  failed(error: unknown): void {
    if (this.#isLeft) return;
    if (this.#repeats++ < MOST_REPEATS && this.#isRepeatable(error)) {
      if (!NOT_HERE_NOW.has(codeOf(error)!)) return this.#send();
      setTimeout(() => this.#send(), this.server.timeoutMs / TRIES_OF_A_SPLIT_SLOT);
      return;
    }
    const fault = faultOf(error);
    if (fault === "caller") {
      const { who } = this.#transport.circuit;
      const situation = { who, isHold: needsModule(this.command), waits: this.#untilMs !== undefined };
      return this.listener.failed(explained(error, { ...situation, canScript: this.server.canScript }));
    }
    if (fault === "refusing") this.#transport.circuit.refused(error);
    this.undecided(false);
  }

  get #canScript(): boolean {
    if (!this.server.canScript || this.#untilMs !== undefined) return false;
    return isOfModule(this.command) && !needsModule(this.command);
  }

  /** Finds the node anew. The script's keys have other names, perhaps on another node. */
  #route(isByScript = this.#isByScript): void {
    this.#isByScript = isByScript;
    const key = keyOf(this.command);
    this.#transport = this.server.transportOf(isByScript ? scriptKey(key) : key);
  }

  /** Returns whether to send again, after an error which says that nothing happened. Also decides where and how. */
  #isRepeatable(error: unknown): boolean {
    const code = codeOf(error);
    const to = redirectionOf(error);
    if (code === "READONLY") return this.#transport.leave();
    if (code !== undefined && NOT_HERE_NOW.has(code)) {
      this.#route();
    } else if (code === "NOSCRIPT" && this.#isByScript) {
      this.#before = ["SCRIPT", "LOAD", FALLBACK];
    } else if (isUnknownCommand(error) && this.#canScript && !this.#isByScript) {
      this.#transport.circuit.hasNoModule();
      this.#route(true);
    } else if (!to || !(this.server.route instanceof ClusterRoute)) {
      return false;
    } else if (to.isMoved) {
      this.server.route.learn(to.slot, to.address);
      this.#route();
    } else {
      this.#before = ["ASKING"];
      this.#transport = this.server.transportAt(to.address);
    }
    return true;
  }
}

function evalsha(command: Command): Command {
  return ["EVALSHA", SHA, ...scriptArguments(command)];
}

/** Sends the commands in a transaction, or what the script has for them. */
async function transaction(connection: Connection, commands: readonly Command[], isByScript: boolean) {
  const byScript = (words: Command) => (isOfModule(words) ? evalsha(words) : [words[0]!, scriptKey(words[1]!)]);
  const replies = await sendAll(connection, [["MULTI"], ...(isByScript ? commands.map(byScript) : commands), ["EXEC"]]);
  for (const reply of replies as unknown[]) if (reply instanceof Error) throw reply;
  return replies;
}

/** Calls a hook of the application outside of everything: it may throw, or ask a limiter. */
export function outside(hook: () => void): void {
  queueMicrotask(() => {
    try {
      hook();
    } catch (error) {
      process.emitWarning(`a hook of tokenbucket has failed: ${textOf(error)}`);
    }
  });
}

const servers = new WeakMap<Client, Server>();

/** Returns the given server, or the one that all limiters on this client share. */
export function serverOf(client: Client | Server): Server {
  if (client instanceof Server) return client;
  const known = servers.get(client);
  if (known) return known;
  const server = new Server(client);
  servers.set(client, server);
  return server;
}
