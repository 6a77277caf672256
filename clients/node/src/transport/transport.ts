/** Sends calls to one server, or to one node of a cluster, by connections of the user's driver. */

import { faultOf, isAnswer, isReply, textOf } from "../values/errors.js";
import { Circuit, type Log } from "./circuit.js";
import { ownCall, type Call, type Sender } from "./call.js";
import type { Command } from "./command.js";
import type { Connection, Route } from "./driver.js";
import { ClusterRoute } from "./route.js";
import { setImmediate, setTimeout } from "./timers.js";
import { CONNECT_MS, Watch } from "./watch.js";

/** On a connection that was idle for this long, a PING precedes a call that must happen once. */
const STALE_MS = 500;
const MOST_SENDS = 3;
const PING: Command = ["PING"];

interface Settings {
  readonly timeoutMs: number;
  readonly retryEveryMs: number;
  readonly log: Log;
  readonly route: Route;
}

export class Transport implements Sender {
  readonly circuit: Circuit;
  readonly watch: Watch;
  /** Called when the server turns out to be away. */
  onAway = () => {};
  #connection: Connection | undefined;
  #connectedAtMs = 0;
  #isConnecting = false;
  #unsent: Call[] = [];

  constructor(
    readonly address: string,
    readonly server: Settings,
  ) {
    const { timeoutMs, retryEveryMs, log, route } = server;
    const who = `the ${route instanceof ClusterRoute ? "node" : "server"}${address && ` ${address}`}`;
    this.circuit = new Circuit(who, retryEveryMs, log);
    this.watch = new Watch(timeoutMs);
  }

  get isConnected(): boolean {
    return this.#connection?.isOpen === true;
  }

  /** Says why the server does not decide. */
  get reason(): string {
    return `cannot ask ${this.circuit.who}: ${textOf(this.circuit.lastError ?? "not connected yet")}`;
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
    this.send(ownCall([PING]));
    this.onAway();
  }

  /** Connects; fails when that takes longer than a second in which the event loop could have heard. */
  async connect(): Promise<Connection> {
    const connection = this.server.route.connectionTo(this.address);
    const due = ownCall([]);
    const tooLate = new Promise<never>((_, reject) => {
      due.sender = { silent: () => reject(new Error(`not connected within ${CONNECT_MS} ms`)), over() {}, cutOff() {} };
    });
    this.watch.add(due, CONNECT_MS - this.server.timeoutMs);
    try {
      await Promise.race([connection.connect().then(() => connection.send(PING)), tooLate]);
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
    if (performance.now() - this.#connectedAtMs < this.server.retryEveryMs) return false;
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
    this.failed(new Error(`${what} within ${this.server.timeoutMs} ms`));
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
      const proven = () => this.#sendUnsent();
      const hears = { replied: proven, failed: proven, undecided: proven };
      // Otherwise a PING is on its way.
      if (this.#unsent.push(call) === 1) this.send(ownCall([PING], hears));
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
    this.circuit.lookForModule();
    this.#sendUnsent();
  }

  #sendUnsent(): void {
    for (const call of this.#unsent.splice(0)) if (!call.isTold) this.#dispatch(call);
  }
}
