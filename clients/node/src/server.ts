/** Asking a server: whether it is worth a try, for how long, what to send, and what an error means. */

import { createHash } from "node:crypto";

import { connectionOf, type Client, type Connection } from "./connection.js";
import { faultOf, isUnknownCommand, isUnknownScript, ModuleMissing, textOf } from "./errors.js";
import { FALLBACK } from "./fallback.js";

export type Command = readonly string[];

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
const NEED_THE_MODULE = new Set(["TB.HOLD", "TB.MHOLD", "TB.SETTLE", "TB.MSETTLE"]);

/** Keeps calls from waiting for a server that is away; one at a time finds out whether it is back. */
class Circuit {
  #away = false;
  #probing = false;
  #nextProbe = 0;
  #answeredAt = 0;
  #nextRefusalLogged = 0;

  constructor(
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
    if (this.#away) this.log("tokenbucket: the server is back, limiting again");
    this.#away = this.#probing = false;
    this.#answeredAt = performance.now();
  }

  /** A call that was begun at `began`: one that others have overtaken says nothing about now. */
  failed(error: unknown, began: number): void {
    if (began < this.#answeredAt) return;
    if (!this.#away) {
      this.log(`tokenbucket: cannot ask the server, each limit does as its onError says: ${textOf(error)}`);
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
    this.log(`tokenbucket: the server refuses, onError decides such calls: ${textOf(error)}`);
  }

  /** The connection is there again: the next call may find out at once. */
  hurry(): void {
    this.#nextProbe = 0;
  }
}

/** The commands as a Lua script, for servers without the module. */
class Script {
  static readonly #SHA = createHash("sha1").update(FALLBACK).digest("hex");
  #until = 0;
  #isNeeded = false;

  constructor(readonly log: Log) {}

  get isInUse(): boolean {
    return performance.now() < this.#until;
  }

  begin(): void {
    this.#until = performance.now() + MS_BETWEEN_LOOKS_FOR_THE_MODULE;
    if (!this.#isNeeded) this.log("tokenbucket: the server has no module, the script decides until it has");
    this.#isNeeded = true;
  }

  end(): void {
    if (this.#isNeeded) this.log("tokenbucket: the server has the module, the script decides no longer");
    this.#isNeeded = false;
  }

  /** Lets the next call try the module again: the server may be another. */
  lookForModule(): void {
    this.#until = 0;
  }

  async run(connection: Connection, command: Command): Promise<unknown> {
    const words = Script.#arguments(command);
    try {
      return await connection.send(["EVALSHA", Script.#SHA, ...words]);
    } catch (error) {
      if (!isUnknownScript(error)) throw error;
    }
    return connection.send(["EVAL", FALLBACK, ...words]);
  }

  /** What stands for a command inside a transaction. */
  static standIn(command: Command): Command {
    const [name = "", ...keys] = command;
    return name === "DEL" ? [name, ...keys.map(scriptKey)] : ["EVAL", FALLBACK, ...Script.#arguments(command)];
  }

  /** `TB.TAKE key capacity rate cost` as the script takes it: keys first, under names of its own. */
  static #arguments([name = "", ...words]: Command): Command {
    const operation = name.replace(/^TB\./, "");
    const isJoint = operation === "MTAKE";
    const groups = isJoint ? words.slice(1) : words;
    const isKey = (at: number) => (isJoint ? at % 4 === 0 : at === 0);
    const keys = groups.filter((_, at) => isKey(at)).map(scriptKey);
    return [String(keys.length), ...keys, operation, ...groups.filter((_, at) => !isKey(at))];
  }
}

/** No key is a bucket of the module at one time and one of the script at another. */
export function scriptKey(key: string): string {
  return `${key}:script`;
}

/** What limiters on one client share: what is known about who answers there. */
export class Server {
  readonly #connection: Connection;
  readonly #options: ServerOptions;
  readonly #circuit: Circuit;
  readonly #script: Script;
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
    this.#circuit = new Circuit(options.retryEveryMs, options.log);
    this.#script = new Script(options.log);
    this.#connection.onReady(() => this.#becameReady());
    this.#connection.onError((error) => this.#didNotConnect(error));
  }

  /** The server's reply, or undefined when it does not decide. Rejects for the caller's mistake. */
  ask(command: Command, how: How = {}): Promise<unknown> {
    return this.#decided(how, () => this.#send(command, how));
  }

  /** Their replies, in a transaction; to be called only after `ask` has found the module or none. */
  askTogether(commands: readonly Command[], how: How = {}): Promise<unknown> {
    return this.#decided(how, () => {
      const known = how.script && this.#script.isInUse;
      return this.#connection.transaction(known ? commands.map((one) => Script.standIn(one)) : commands);
    });
  }

  async #decided(how: How, send: () => Promise<unknown>): Promise<unknown> {
    if (!this.#circuit.admits() && !how.always) return undefined;
    const began = performance.now();
    try {
      const reply = await this.#inTime(send);
      this.#circuit.answered();
      return reply;
    } catch (error) {
      const fault = faultOf(error);
      if (fault === "caller") {
        this.#circuit.answered();
        throw error;
      }
      this.lastError = error;
      if (fault === "away") this.#circuit.failed(error, began);
      else this.#circuit.refused(error);
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
    this.#circuit.hurry();
    this.#script.lookForModule();
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

  async #send(command: Command, { script = false }: How): Promise<unknown> {
    const [name = ""] = command;
    const canScript = script && name.startsWith("TB.") && !NEED_THE_MODULE.has(name);
    if (canScript && this.#script.isInUse) return this.#script.run(this.#connection, command);
    try {
      const reply = await this.#connection.send(command);
      if (name.startsWith("TB.")) this.#script.end();
      return reply;
    } catch (error) {
      if (!isUnknownCommand(error)) throw error;
      if (NEED_THE_MODULE.has(name)) {
        throw new ModuleMissing("holds need the tokenbucket module, which the server has not loaded", { cause: error });
      }
      if (!canScript) {
        const help = 'load it, or set fallback: "script"';
        throw new ModuleMissing(`the server has no tokenbucket module: ${help}`, { cause: error });
      }
    }
    this.#script.begin();
    return this.#script.run(this.#connection, command);
  }
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
