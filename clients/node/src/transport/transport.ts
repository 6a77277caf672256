/** Sends calls to one server, or to one node of a cluster, by connections of the user's driver. */

import { faultOf, isAnswer, isReply, textOf } from "../values/errors.js";
import { Circuit, Script, type Log } from "./circuit.js";
import { backgroundCall, PING, type Call } from "./call.js";
import type { Connection, Route } from "./driver.js";
import { setImmediate, setTimeout } from "./timers.js";
import { Waits } from "./waits.js";
import { CONNECT_MS, Due, Watch } from "./watch.js";

export interface TransportOptions {
  timeoutMs: number;
  retryEveryMs: number;
  log: Log;
}

/** On a connection that was idle for this long, a PING precedes a call that must happen once. */
const STALE_MS = 500;
const MOST_SENDS = 3;

/** A call until its reply. */
class Attempt extends Due {
  sends = 0;

  constructor(
    readonly call: Call,
    onSilence: (isAway: boolean) => void,
  ) {
    super(undefined, onSilence);
  }
}

export class Transport {
  readonly circuit: Circuit;
  readonly script: Script;
  readonly who: string;
  readonly watch: Watch;
  /** The calls that wait in the server. */
  readonly waits = new Waits(this);
  /** Called when the server turns out to be away. */
  onAway = () => {};
  #connection: Connection | undefined;
  #connectedAtMs = 0;
  #heardAtMs = 0;
  #isConnecting = false;
  #isProving = false;
  #unsent: Attempt[] = [];

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
    const attempt: Attempt = new Attempt(call, (isAway) => this.#silent(attempt, isAway));
    this.#dispatch(this.watch.add(attempt));
  }

  /** Sends a PING in the background, at most every `retryEveryMs`. */
  probeNow(): void {
    if (!this.circuit.isTimeToProbe()) return;
    this.send(backgroundCall({ transmit: PING }));
    this.onAway();
  }

  /** Connects; fails when that takes longer than a second in which the event loop could have heard. */
  connect(): Promise<Connection> {
    const connection = this.route.connectionTo(this.address);
    return new Promise((resolve, reject) => {
      const fail = (error: unknown) => {
        connection.close();
        reject(error as Error);
      };
      const tooLate = () => fail(new Error(`not connected within ${CONNECT_MS} ms`));
      const due = this.watch.add(new Due(undefined, tooLate, this.watch.ticks(CONNECT_MS)));
      const greeted = connection.connect().then(() => PING(connection));
      const connected = () => {
        due.isOver = true;
        if (due.isTold) return connection.close();
        this.heard(connection);
        resolve(connection);
      };
      greeted.then(connected, (error: unknown) => {
        // A user without the right to PING is connected. One with a wrong password is not.
        if (isAnswer(error) && connection.isOpen) return connected();
        due.isOver = true;
        fail(error);
      });
    });
  }

  /**
   * Opens another connection for what follows, because the endpoint may lead to another server now. False if this
   * connection is new: then another would lead to the same server.
   */
  leave(): boolean {
    this.waits.close();
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
    this.waits.close();
  }

  /** Notes that the server has answered. */
  heard(connection: Connection): void {
    this.watch.heard(connection);
    this.#heardAtMs = performance.now();
    this.circuit.answered();
  }

  /** Notes that the server cannot be asked. */
  failed(error: unknown): void {
    this.circuit.failed(error);
    this.onAway();
  }

  /** Notes that the server is silent. */
  silent(what: string): void {
    this.failed(new Error(`${what} within ${this.options.timeoutMs} ms`));
  }

  #dispatch(attempt: Attempt): void {
    const connection = this.#connection;
    if (!connection?.isOpen) {
      this.#unsent.push(attempt);
      void this.#connect();
    } else if (attempt.call.once && performance.now() - this.#heardAtMs > STALE_MS) {
      this.#unsent.push(attempt);
      this.#prove();
    } else this.#transmit(attempt, connection);
  }

  async #connect(): Promise<void> {
    if (this.#isConnecting) return;
    this.#isConnecting = true;
    try {
      this.#connection = await this.connect();
    } catch (error) {
      this.#isConnecting = false;
      return this.#notConnected(error);
    }
    this.#isConnecting = false;
    this.#connectedAtMs = performance.now();
    this.script.lookForModule();
    this.#sendUnsent();
  }

  #notConnected(error: unknown): void {
    // The server replied, with a wrong password for example: waiting does not help.
    const isAnswered = isAnswer(error);
    if (!isAnswered) this.failed(error);
    for (const attempt of this.#unsent.splice(0)) {
      if (attempt.isTold) continue;
      attempt.isOver = true;
      if (isAnswered) attempt.call.failed(error);
      else attempt.call.undecided(false);
    }
  }

  /** Asks on a connection that was idle whether there is still a server behind it. */
  #prove(): void {
    if (this.#isProving) return;
    this.#isProving = true;
    const proven = () => {
      this.#isProving = false;
      this.#sendUnsent();
    };
    const undecided = () => (this.#isProving = false);
    this.send(backgroundCall({ transmit: PING, replied: proven, failed: proven, undecided }));
  }

  #sendUnsent(): void {
    for (const attempt of this.#unsent.splice(0)) if (!attempt.isTold) this.#dispatch(attempt);
  }

  #transmit(attempt: Attempt, connection: Connection): void {
    const { call } = attempt;
    attempt.connection = connection;
    attempt.sends++;
    call.transmit(connection).then(
      (reply) => {
        attempt.isOver = true;
        this.heard(connection);
        call.replied(reply);
      },
      (error: unknown) => {
        if (!isReply(error) && faultOf(error) === "away") return this.#cutOff(attempt, error);
        attempt.isOver = true;
        if (isAnswer(error)) this.heard(connection);
        else this.failed(error);
        call.failed(error);
      },
    );
  }

  /** The connection ended before the reply. */
  #cutOff(attempt: Attempt, error: unknown): void {
    const { call, connection, isTold } = attempt;
    connection!.close();
    if (this.#connection === connection) this.#connection = undefined;
    if (!isTold && !call.once && attempt.sends < MOST_SENDS) {
      attempt.connection = undefined;
      return this.#dispatch(attempt);
    }
    attempt.isOver = true;
    if (isTold) return call.ended();
    if (call.once) this.circuit.lastError = error;
    else this.failed(error);
    call.undecided(call.once);
  }

  #silent(attempt: Attempt, isAway: boolean): void {
    const { call, connection } = attempt;
    if (isAway) this.silent(connection ? "no reply" : "not connected");
    if (!connection) attempt.isOver = true;
    call.undecided(call.once && connection !== undefined);
  }
}
