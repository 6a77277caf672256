/** Asking a server: whether it is worth a try, for how long, what to send, and what an error means. */

import { createHash } from "node:crypto";

import { isOfModule, keyOf, needsModule, scriptArguments, scriptKey, type Command } from "./command.js";
import { connectionOf, type Client, type Connection } from "./connection.js";
import { CrossSlot, faultOf, isCrossSlot, isUnknownCommand, isUnknownScript, ModuleMissing, textOf } from "./errors.js";
import { FALLBACK } from "./fallback.js";

/** Told when the server goes and when it returns. */
export type Log = (line: string) => void;

export interface ServerOptions {
  timeoutMs: number;
  retryEveryMs: number;
  log: Log;
}

export interface How {
  /** Whether a script may decide where the server has no module. */
  script?: boolean;
  /** Asks also while the server is thought to be away. */
  always?: boolean;
}

const MS_BETWEEN_REFUSALS_LOGGED = 60_000;
const MS_BETWEEN_LOOKS_FOR_THE_MODULE = 60_000;
const SHA = createHash("sha1").update(FALLBACK).digest("hex");

/** Keeps calls from waiting for a server that is away; one at a time finds out whether it is back. */
class Circuit {
  #away = false;
  #probing = false;
  #nextProbe = 0;
  #answeredAt = 0;
  #nextRefusalLogged = 0;

  constructor(
    readonly who: string,
    readonly retryEveryMs: number,
    readonly log: Log,
  ) {}

  admits(): boolean {
    if (!this.#away) return true;
    if (this.#probing || performance.now() < this.#nextProbe) return false;
    this.#probing = true;
    return true;
  }

  answered(): void {
    if (this.#away) this.log(`tokenbucket: ${this.who} is back, limiting again`);
    this.#away = this.#probing = false;
    this.#answeredAt = performance.now();
  }

  /** A call that was begun at `began`: one that others have overtaken says nothing about now. */
  failed(error: unknown, began: number): void {
    if (began < this.#answeredAt) return;
    if (!this.#away) {
      this.log(`tokenbucket: cannot ask ${this.who}, each limit does as its onError says: ${textOf(error)}`);
    }
    this.#away = true;
    this.#probing = false;
    this.#nextProbe = performance.now() + this.retryEveryMs;
  }

  /** The server is there, and did not decide this call. */
  refused(error: unknown): void {
    this.answered();
    const now = performance.now();
    if (now < this.#nextRefusalLogged) return;
    this.#nextRefusalLogged = now + MS_BETWEEN_REFUSALS_LOGGED;
    this.log(`tokenbucket: ${this.who} refuses, onError decides such calls: ${textOf(error)}`);
  }

  /** The connection is there again: the next call may find out at once. */
  hurry(): void {
    this.#nextProbe = 0;
  }
}

/** Whether a Lua script stands for the commands, on a server without the module. */
class Script {
  #until = 0;
  #isNeeded = false;

  constructor(
    readonly who: string,
    readonly log: Log,
  ) {}

  get isInUse(): boolean {
    return performance.now() < this.#until;
  }

  begin(): void {
    this.#until = performance.now() + MS_BETWEEN_LOOKS_FOR_THE_MODULE;
    if (!this.#isNeeded) this.log(`tokenbucket: ${this.who} has no module, the script decides until it has`);
    this.#isNeeded = true;
  }

  end(): void {
    if (this.#isNeeded) this.log(`tokenbucket: ${this.who} has the module, the script decides no longer`);
    this.#isNeeded = false;
  }

  /** Lets the next call try the module again: the server may be another. */
  lookForModule(): void {
    this.#until = 0;
  }
}

/** What is known about a server, or about one node of a cluster. */
class Node {
  readonly circuit: Circuit;
  readonly script: Script;

  constructor(name: string, { retryEveryMs, log }: ServerOptions) {
    const who = name === "" ? "the server" : `the node ${name}`;
    this.circuit = new Circuit(who, retryEveryMs, log);
    this.script = new Script(who, log);
  }
}

/** What limiters on one client share: what is known about who answers there. */
export class Server {
  readonly #connection: Connection;
  readonly #options: ServerOptions;
  readonly #nodes = new Map<string, Node>();
  /** What is to be sent once the connection is ready. */
  readonly #waiting = new Set<{ begin: () => void; failed: (error: unknown) => void }>();
  #connectError: unknown;
  readonly log: Log;
  /** Why the server was last thought to be away. */
  lastError: unknown;

  constructor(client: Client, options: ServerOptions) {
    this.#connection = connectionOf(client);
    this.#options = options;
    this.log = options.log;
    this.#connection.onReady(() => this.#becameReady());
    this.#connection.onError((error) => this.#didNotConnect(error));
  }

  /** The server's reply, or undefined when it does not decide. Rejects for the caller's mistake. */
  async ask(command: Command, how: How = {}): Promise<unknown> {
    const key = keyOf(command);
    const node = this.#nodeOf(key);
    const canScript = how.script && isOfModule(command) && !needsModule(command);
    if (!canScript || !node.script.isInUse) {
      try {
        return await this.#decided(node, how, () => this.#send(node, command));
      } catch (error) {
        if (!canScript || !(error instanceof ModuleMissing)) throw error;
      }
      node.script.begin();
    }
    // Its keys have other names, and so perhaps another node.
    return this.#decided(this.#nodeOf(scriptKey(key)), how, () => this.#runScript(command));
  }

  /** Their replies, in a transaction; to be called only after `ask` has found the module or none. */
  askTogether(commands: readonly Command[], how: How = {}): Promise<unknown> {
    const key = keyOf(commands[0] ?? []);
    const node = this.#nodeOf(key);
    if (!how.script || !node.script.isInUse) {
      return this.#decided(node, how, () => this.#connection.transaction(commands));
    }
    return this.#decided(this.#nodeOf(scriptKey(key)), how, () => this.#connection.transaction(commands.map(standIn)));
  }

  #nodeOf(key: string): Node {
    const name = this.#connection.nodeOf?.(key) ?? "";
    const known = this.#nodes.get(name);
    if (known) return known;
    const node = new Node(name, this.#options);
    this.#nodes.set(name, node);
    return node;
  }

  async #decided({ circuit }: Node, how: How, send: () => Promise<unknown>): Promise<unknown> {
    if (!circuit.admits() && !how.always) return undefined;
    const began = performance.now();
    try {
      const reply = await this.#inTime(send);
      circuit.answered();
      return reply;
    } catch (error) {
      const fault = faultOf(error);
      if (fault === "caller") {
        circuit.answered();
        throw isCrossSlot(error) ? crossSlot(error) : error;
      }
      this.lastError = error;
      if (fault === "away") circuit.failed(error, began);
      else circuit.refused(error);
      return undefined;
    }
  }

  /**
   * Nothing is handed to a library that is not connected: it would keep the command, and send it
   * long after it was answered by the policy.
   */
  #inTime(send: () => Promise<unknown>): Promise<unknown> {
    const { timeoutMs } = this.#options;
    let timer: NodeJS.Timeout | undefined;
    const reply = new Promise<unknown>((replied, failed) => {
      const waiting = { begin: () => void (async () => send())().then(replied, failed), failed };
      timer = setTimeout(() => {
        const what = this.#waiting.delete(waiting) ? this.#notConnected() : "no reply";
        failed(new Error(`${what} within ${timeoutMs} ms`));
      }, timeoutMs);
      if (this.#connection.isReady) return waiting.begin();
      this.#waiting.add(waiting);
      this.#connection.wake?.();
    });
    return reply.finally(() => clearTimeout(timer));
  }

  #notConnected(): string {
    return this.#connectError === undefined ? "not connected" : `not connected (${textOf(this.#connectError)})`;
  }

  #becameReady(): void {
    this.#connectError = undefined;
    for (const { circuit, script } of this.#nodes.values()) {
      circuit.hurry();
      script.lookForModule();
    }
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const { begin } of waiting) begin();
  }

  #didNotConnect(error: unknown): void {
    this.#connectError = error;
    // A wrong password, say: to wait longer does not make it right.
    if (faultOf(error) !== "caller") return;
    for (const { failed } of this.#waiting) failed(error);
    this.#waiting.clear();
  }

  async #send(node: Node, command: Command): Promise<unknown> {
    try {
      const reply = await this.#connection.send(command);
      if (isOfModule(command)) node.script.end();
      return reply;
    } catch (error) {
      if (!isUnknownCommand(error)) throw error;
      const help = needsModule(command)
        ? "holds need the tokenbucket module, which the server has not loaded"
        : 'the server has no tokenbucket module: load it, or set fallback: "script"';
      throw new ModuleMissing(help, { cause: error });
    }
  }

  async #runScript(command: Command): Promise<unknown> {
    const words = scriptArguments(command);
    try {
      return await this.#connection.send(["EVALSHA", SHA, ...words]);
    } catch (error) {
      if (!isUnknownScript(error)) throw error;
    }
    return this.#connection.send(["EVAL", FALLBACK, ...words]);
  }
}

/** What stands for a command inside a transaction where the script decides. */
function standIn(command: Command): Command {
  const [name = "", ...keys] = command;
  return name === "DEL" ? [name, ...keys.map(scriptKey)] : ["EVAL", FALLBACK, ...scriptArguments(command)];
}

function crossSlot(cause: unknown): CrossSlot {
  return new CrossSlot("in a cluster, the names of one call have to share a hash tag, as in '{ada}:requests'", {
    cause,
  });
}

const servers = new WeakMap<Client, { options: ServerOptions; server: Server }[]>();

/** The server behind `client`, shared by those who ask it in the same way. */
export function serverOf(client: Client, options: ServerOptions): Server {
  const known = servers.get(client) ?? [];
  servers.set(client, known);
  const names = ["timeoutMs", "retryEveryMs", "log"] as const;
  const same = known.find((one) => names.every((name) => one.options[name] === options[name]));
  if (same) return same.server;
  const server = new Server(client, options);
  known.push({ options, server });
  return server;
}
