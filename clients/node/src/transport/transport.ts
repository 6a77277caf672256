/** Sends calls to one server, or to one node of a cluster, by connections of the user's driver. */

import { faultOf, isAnswer, isReply, textOf } from "../values/errors.js";
import { Circuit, Script, type Log } from "./circuit.js";
import { backgroundCall, PING, type Call, type Sender } from "./call.js";
import type { Connection, Route } from "./driver.js";
import { setImmediate, setTimeout } from "./timers.js";
import { CONNECT_MS, NEW_DUE, Watch } from "./watch.js";

export interface TransportOptions {
  timeoutMs: number;
  retryEveryMs: number;
  log: Log;
}

/** On a connection that was idle for this long, a PING precedes a call that must happen once. */
const STALE_MS = 500;
const MOST_SENDS = 3;

export class Transport implements Sender {
  readonly circuit: Circuit;
  readonly script: Script;
  readonly who: string;
  readonly watch: Watch;
  /** Called when the server turns out to be away. */
  onAway = () => {};
  #connection: Connection | undefined;
  #connectedAtMs = 0;
  #isConnecting = false;
  #isProving = false;
  #unsent: Call[] = [];

  constructor(
    readonly address: string,
    readonly route: Route,
    readonly options: TransportOptions,
  ) {
    const { timeoutMs, retryEveryMs, log } = options;
    this.who = `the ${route.isCluster ? "node" : "server"}${address && ` ${address}`}`;
    this.circuit = new Circuit(this.who, retryEveryMs, log);
    this.script = new Script(this.who, log);
    this.watch = new Watch(timeoutMs);
  }

  get isConnected(): boolean {
    return this.#connection?.isOpen === true;
  }

  /** Says why the server does not decide. */
  get reason(): string {
    return `cannot ask ${this.who}: ${textOf(this.circuit.lastError ?? "not connected yet")}`;
  }

  /** Sends the call, as soon as there is a connection. */
  send(call: Call): void {
    call.connection = undefined;
    call.sender = this;
    call.sends = 0;
    this.watch.add(call);
    this.#dispatch(call);
  }

  /** Sends a PING in the background, at most every `retryEveryMs`. */
  probeNow(): void {
    if (!this.circuit.isTimeToProbe()) return;
    this.send(backgroundCall({ transmit: PING }));
    this.onAway();
  }

  /** Connects; fails when that takes longer than a second in which the event loop could have heard. */
  async connect(): Promise<Connection> {
    const connection = this.route.connectionTo(this.address);
    const due = { ...NEW_DUE, connection: undefined, sender: { silent() {} } };
    const tooLate = new Promise<never>((_, reject) => {
      due.sender.silent = () => reject(new Error(`not connected within ${CONNECT_MS} ms`));
    });
    this.watch.addConnecting(due);
    try {
      await Promise.race([connection.connect().then(() => PING(connection)), tooLate]);
    } catch (error) {
      // A user without the right to PING is connected. One with a wrong password is not.
      if (!isAnswer(error) || !connection.isOpen) {
        connection.close();
        throw error;
      }
    } finally {
      this.watch.remove(due);
    }
    this.heard(connection);
    return connection;
  }

  /**
   * Opens another connection for what follows, because the endpoint may lead to another server now. False if this
   * connection is new: then another would lead to the same server.
   */
  leave(): boolean {
    const connection = this.#connection;
    if (!connection) return true;
    if (performance.now() - this.#connectedAtMs < this.options.retryEveryMs) return false;
    this.#connection = undefined;
    // Replies to earlier calls still arrive.
    setTimeout(() => setImmediate(() => connection.close()), CONNECT_MS).unref();
    return true;
  }

  close(): void {
    this.#connection?.close();
  }

  /** Sends the call by this connection, and tells it what becomes of it. */
  transmit(call: Call, connection: Connection): void {
    const sender = call.sender!;
    call.connection = connection;
    call.sends++;
    call.transmit(connection).then(
      (reply) => {
        sender.over(call);
        this.heard(connection);
        call.replied(reply);
      },
      (error: unknown) => {
        if (!isReply(error) && faultOf(error) === "away") {
          connection.close();
          return sender.cutOff(call, error);
        }
        sender.over(call);
        if (isAnswer(error)) this.heard(connection);
        else this.failed(error);
        call.failed(error);
      },
    );
  }

  /** Notes that the server has answered. */
  heard(connection: Connection): void {
    this.watch.heard(connection);
    this.circuit.answered();
  }

  /** Notes that the server cannot be asked. */
  failed(error: unknown): void {
    this.circuit.failed(error);
    this.onAway();
  }

  /** Notes that the server is silent. */
  failedBy(what: string): void {
    this.failed(new Error(`${what} within ${this.options.timeoutMs} ms`));
  }

  /** Notes that there is no connection for these calls. */
  notConnected(calls: Call[], error: unknown): void {
    // The server replied, with a wrong password for example: waiting does not help.
    const isAnswered = isAnswer(error);
    if (!isAnswered) this.failed(error);
    for (const call of calls) {
      this.watch.remove(call);
      if (call.isTold) continue;
      if (isAnswered) call.failed(error);
      else call.undecided(false);
    }
  }

  silent(call: Call, isAway: boolean): void {
    const { connection } = call;
    if (isAway) this.failedBy(connection ? "no reply" : "not connected");
    if (!connection) this.watch.remove(call);
    call.undecided(call.once && connection !== undefined);
  }

  over(call: Call): void {
    this.watch.remove(call);
  }

  cutOff(call: Call, error: unknown): void {
    if (this.#connection === call.connection) this.#connection = undefined;
    if (!call.isTold && !call.once && call.sends < MOST_SENDS) {
      call.connection = undefined;
      return this.#dispatch(call);
    }
    this.watch.remove(call);
    if (call.isTold) return call.ended();
    if (call.once) this.circuit.lastError = error;
    else this.failed(error);
    call.undecided(call.once);
  }

  #dispatch(call: Call): void {
    const connection = this.#connection;
    if (!connection?.isOpen) {
      this.#unsent.push(call);
      void this.#connect();
    } else if (call.once && performance.now() - this.watch.heardAtMs > STALE_MS) {
      this.#unsent.push(call);
      this.#prove();
    } else this.transmit(call, connection);
  }

  async #connect(): Promise<void> {
    if (this.#isConnecting) return;
    this.#isConnecting = true;
    try {
      this.#connection = await this.connect();
    } catch (error) {
      this.#isConnecting = false;
      return this.notConnected(this.#unsent.splice(0), error);
    }
    this.#isConnecting = false;
    this.#connectedAtMs = performance.now();
    this.script.lookForModule();
    this.#sendUnsent();
  }

  /** Asks on a connection that was idle whether there is still a server behind it. */
  #prove(): void {
    if (this.#isProving) return;
    this.#isProving = true;
    const undecided = () => (this.#isProving = false);
    const proven = () => {
      undecided();
      this.#sendUnsent();
    };
    this.send(backgroundCall({ transmit: PING, replied: proven, failed: proven, undecided }));
  }

  #sendUnsent(): void {
    for (const call of this.#unsent.splice(0)) if (!call.isTold) this.#dispatch(call);
  }
}
