/**
 * Sends calls to one server, or to one node of a cluster, by connections of the user's driver: one for all calls, and one
 * for each call that waits its turn in the server.
 */

import { CONNECT_WITHIN_MS, PULSE_OF_A_WAIT_MS } from "../values/constants.js";
import { CannotWait, isAnswer, isReply, textOf, type Undecided } from "../values/errors.js";
import type { Circuit } from "./circuit.js";
import type { Connection } from "./driver.js";
import { aTurn, clearInterval, eachTurn, idleMs, setInterval, TURNS, whileIn, within } from "./time.js";

/** Sends a call by a connection, and resolves to the reply. */
export type Send = (connection: Connection) => Promise<unknown>;

const ping: Send = (connection) => connection.send(["PING"]);

/** How many timeouts a call may last while others are answered, if the event loop was idle for one: a flood is no silence. */
const OLD = 3;

/** A connection and its calls. The server is silent if replies are due and none comes, or if a call is too old. */
class Pipeline {
  #sent = 0;
  #heard = 0;
  /** Up to each of the last turns: how many calls were sent, how many answered, and for how long the loop was idle. */
  #turns: { sent: number; heard: number; idle: number }[] = [];
  #stopListening: (() => void) | undefined;
  readonly openedAtMs = performance.now();

  constructor(
    readonly connection: Connection,
    readonly timeoutMs: number,
    readonly onSilence: () => void,
  ) {}

  get hasCalls(): boolean {
    return this.#heard < this.#sent;
  }

  /** True if nothing is due, and nobody would notice that the connection is closed. */
  get isIdle(): boolean {
    return this.connection.isOpen && this.#stopListening === undefined;
  }

  /** Resolves to the reply, or to what `failed` makes of the error. */
  send(send: Send, failed: (error: unknown) => unknown): Promise<unknown> {
    const replied = send(this.connection);
    this.#sent++;
    this.#stopListening ??= eachTurn(this.timeoutMs / TURNS, () => this.#judge());
    return replied.then(
      (reply) => this.#hear(reply),
      (error) => failed(this.#hear(error)),
    );
  }

  #hear<T>(answer: T): T {
    this.#heard++;
    return answer;
  }

  #judge(): void {
    const [turns, heard] = [this.#turns, this.#heard];
    const idle = idleMs();
    turns.push({ sent: this.#sent, heard, idle });
    const then = turns.at(-1 - TURNS);
    const long = turns.at(-1 - OLD * TURNS);
    const isSilent =
      (then?.heard === heard && heard < then.sent) || (long && heard < long.sent && idle - long.idle > this.timeoutMs);
    if (isSilent || heard === this.#sent) {
      this.#stopListening = void this.#stopListening?.();
      this.#turns = [];
    } else if (long) turns.shift();
    if (isSilent) this.onSilence();
  }
}

export class Transport {
  #pipeline: Pipeline | undefined;
  #connecting: Promise<Pipeline> | undefined;
  /** Connections on which calls wait. */
  readonly #waiting = new Set<Connection>();
  #pulse: NodeJS.Timeout | undefined;

  constructor(
    readonly circuit: Circuit,
    readonly timeoutMs: number,
    /** Makes another connection to the server. */
    readonly newConnection: () => Connection,
    /** Called while the server is away: another may have its slots by now. */
    readonly onAway: () => void,
  ) {}

  get isInUse(): boolean {
    const pipeline = this.#pipeline;
    return !!this.#connecting || this.#waiting.size > 0 || (!!pipeline?.connection.isOpen && pipeline.hasCalls);
  }

  /** Sends the call, and once more if its connection breaks before the reply, unless it must happen `once`. */
  ask(send: Send, once = false, isFirst = true): Promise<unknown> {
    // Most calls pass no async function: each would cost a tenth of the driver's work.
    const pipeline = this.#pipeline;
    const isReady = pipeline?.connection.isOpen && !this.circuit.isAway && !(once && pipeline.isIdle);
    if (isReady) return this.#exchange(pipeline, send, once, isFirst);
    return this.#ready(once, !isFirst).then((opened) => this.#exchange(opened, send, once, isFirst));
  }

  /** Returns what a call gets while the server is away, and tries the server from time to time. */
  whyAway(wasSent = false): Undecided | undefined {
    if (!this.circuit.isAway) return undefined;
    if (this.circuit.isTimeToAsk()) {
      this.#connect().catch(() => {});
      this.onAway();
    }
    return this.circuit.undecided(wasSent);
  }

  /**
   * Sends a call that waits its turn in the server; throws `CannotWait` if it has or keeps no connection for that. The
   * `signal` closes the connection: the server then grants nothing.
   */
  async wait(send: Send, untilMs: number, signal?: AbortSignal): Promise<unknown> {
    try {
      return await this.#waitOn(await this.#open(), send, untilMs, signal);
    } catch (error) {
      signal?.throwIfAborted();
      if (isAnswer(error)) throw error;
      throw new CannotWait(`no connection to wait on: ${textOf(error)} (${this.circuit.who})`, { cause: error });
    }
  }

  /**
   * Opens another connection for what follows, because the endpoint may lead to another server now. False if this
   * connection is new: then another would lead to the same server.
   */
  leave(): boolean {
    const pipeline = this.#pipeline;
    if (pipeline && performance.now() - pipeline.openedAtMs < this.circuit.retryEveryMs) return false;
    pipeline?.connection.close(); // its other calls are sent again, too
    return true;
  }

  /** Closes the connections, so that the driver fails their calls; the next call opens others. */
  close(): void {
    this.#pipeline?.connection.close();
    for (const connection of this.#waiting) connection.close();
  }

  #exchange(pipeline: Pipeline, send: Send, once: boolean, isFirst: boolean): Promise<unknown> {
    return pipeline.send(send, (error) => {
      if (isAnswer(error)) throw error;
      if (isReply(error)) {
        this.#failed(error);
        throw this.circuit.undecided(!isFirst);
      }
      pipeline.connection.close();
      if (!isFirst && !this.circuit.isAway) this.#failed(error);
      if (once || this.circuit.isAway) throw this.circuit.undecided(true, error);
      return this.ask(send, once, false);
    });
  }

  async #ready(once: boolean, wasSent: boolean): Promise<Pipeline> {
    if (once && this.#pipeline?.isIdle) await aTurn(); // shows whether the server has closed it meanwhile
    const away = this.whyAway(wasSent);
    if (away) throw away;
    try {
      return this.#pipeline?.connection.isOpen ? this.#pipeline : await this.#connect();
    } catch (error) {
      throw isAnswer(error) ? error : this.circuit.undecided(wasSent, error);
    }
  }

  /** Makes the connection of all calls. Those that come meanwhile wait for the same one. */
  #connect(): Promise<Pipeline> {
    return (this.#connecting ??= this.#open()
      .then(
        (connection) => {
          this.circuit.reached();
          const silent = () => this.#failed(new Error(`no reply within ${this.timeoutMs} ms`));
          return (this.#pipeline = new Pipeline(connection, this.timeoutMs, silent));
        },
        (error: unknown) => {
          // Some answers are mistakes, such as a wrong password, and waiting does not help.
          if (isAnswer(error)) this.circuit.reached();
          else this.#failed(error);
          throw error;
        },
      )
      .finally(() => (this.#connecting = undefined)));
  }

  async #open(): Promise<Connection> {
    const connection = this.newConnection();
    const connected = connection.connect().then(() => ping(connection));
    const ms = Math.max(CONNECT_WITHIN_MS, this.timeoutMs);
    // A user without the right to PING is connected. One with a wrong password is not.
    const failure = await within(ms, connected, "not connected").then(
      () => connection.refusal,
      (error: unknown) => connection.refusal ?? (isAnswer(error) && connection.isOpen ? undefined : error),
    );
    if (failure === undefined) return connection;
    connection.close();
    throw failure;
  }

  async #waitOn(connection: Connection, send: Send, untilMs: number, signal?: AbortSignal): Promise<unknown> {
    if (this.#waiting.size === 0)
      this.#pulse = setInterval(() => void this.ask(ping).catch(() => {}), PULSE_OF_A_WAIT_MS);
    this.#waiting.add(connection);
    try {
      signal?.throwIfAborted();
      // Bounded even if this connection alone is dead and nothing says so.
      const mostMs = Math.max(untilMs - performance.now(), 0) + 2 * this.timeoutMs;
      return await whileIn(signal, within(mostMs, send(connection), "no reply"));
    } finally {
      this.#waiting.delete(connection);
      if (this.#waiting.size === 0) clearInterval(this.#pulse);
      connection.close();
    }
  }

  /** Begins an outage. Calls on their way go on elsewhere, or `onError` decides them. */
  #failed(error: unknown): void {
    this.circuit.failed(error);
    this.close();
    this.onAway();
  }
}
