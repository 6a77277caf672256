/**
 * Calls that wait their turn in the server. Each has a connection of its own: the server reads what follows on a
 * connection only after such a call has ended.
 */

import { faultOf, isAnswer, isReply } from "../values/errors.js";
import { BackgroundCall, type WaitingCall } from "./call.js";
import type { Command } from "./command.js";
import type { Connection } from "./driver.js";
import { clearTimeout, setTimeout } from "./timers.js";
import type { Transport } from "./transport.js";
import { Due } from "./watch.js";

const MOST_CONNECTING = 8;
const MOST_SENDS = 2;
/** How long an idle connection stays open. */
const IDLE_MS = 5000;
/** `CLIENT UNBLOCK` may overtake the call that it ends, so it is repeated. */
const UNBLOCK_EVERY_MS = 20;
const LONGEST_TIMER_MS = 2 ** 31 - 1;

class Wait {
  connection: Connection | undefined;
  /** The connection's client id: undefined until it is known, "" where it may not be asked. */
  id: string | undefined;
  due: Due | undefined;
  timer: NodeJS.Timeout | undefined;
  sends = 0;
  isOver = false;
  hasLeft = false;

  constructor(readonly call: WaitingCall) {}

  end(): void {
    this.isOver = true;
    this.rest();
  }

  /** Ends what is due, and what was to happen later. */
  rest(): void {
    if (this.due) this.due.isOver = true;
    clearTimeout(this.timer);
  }
}

interface Idle {
  readonly connection: Connection;
  readonly closing: NodeJS.Timeout;
}

/** The connections to one server by which calls wait. */
export class Waits {
  #idle: Idle[] = [];
  #queued: Wait[] = [];
  #connecting = 0;

  constructor(readonly transport: Transport) {}

  /** Sends the call. The returned function ends its wait in the server. */
  wait(call: WaitingCall): () => void {
    const wait = new Wait(call);
    this.#begin(wait);
    return () => this.#leave(wait);
  }

  /** Closes the idle connections. */
  close(): void {
    for (const { connection, closing } of this.#idle.splice(0)) {
      clearTimeout(closing);
      connection.close();
    }
  }

  #begin(wait: Wait): void {
    wait.connection = undefined;
    const connection = this.#reused();
    if (connection) return this.#send(wait, connection);
    this.#queued.push(wait);
    this.#connectAsNeeded();
  }

  #reused(): Connection | undefined {
    for (let idle = this.#idle.pop(); idle; idle = this.#idle.pop()) {
      clearTimeout(idle.closing);
      if (idle.connection.isOpen) return idle.connection;
      idle.connection.close();
    }
    return undefined;
  }

  #keep(connection: Connection): void {
    const next = this.#queued.shift();
    if (next) return this.#send(next, connection);
    const closing = setTimeout(() => {
      this.#idle = this.#idle.filter((one) => one.connection !== connection);
      connection.close();
    }, IDLE_MS).unref();
    this.#idle.push({ connection, closing });
  }

  #connectAsNeeded(): void {
    while (this.#connecting < Math.min(this.#queued.length, MOST_CONNECTING)) {
      this.#connecting++;
      void this.#connect().finally(() => {
        this.#connecting--;
        this.#connectAsNeeded();
      });
    }
  }

  async #connect(): Promise<void> {
    try {
      this.#keep(await this.transport.connect());
    } catch (error) {
      const isAnswered = isAnswer(error);
      if (!isAnswered) this.transport.failed(error);
      for (const wait of this.#queued.splice(0)) {
        wait.end();
        if (isAnswered) wait.call.failed(error);
        else wait.call.undecided(false);
      }
    }
  }

  #send(wait: Wait, connection: Connection): void {
    const { call } = wait;
    wait.connection = connection;
    wait.sends++;
    wait.id = undefined;
    this.#expect(wait, connection);
    const { leftMs } = call;
    // Asked before it, so that a server that is away is told from one that lets the call wait.
    const known = (id: string) => {
      this.transport.heard(connection);
      wait.id = id;
      if (!wait.isOver && !wait.hasLeft) this.#rest(wait, connection, performance.now() + leftMs);
    };
    connection.send(["CLIENT", "ID"]).then(
      (id) => known(String(id)),
      (error: unknown) => isReply(error) && known(""),
    );
    call.transmit(connection).then(
      (reply) => {
        this.#over(wait, connection);
        this.transport.heard(connection);
        call.replied(reply);
      },
      (error: unknown) => {
        if (!isReply(error) && faultOf(error) === "away") return this.#cutOff(wait, connection, error);
        this.#over(wait, connection);
        if (isAnswer(error)) this.transport.heard(connection);
        else this.transport.failed(error);
        call.failed(error);
      },
    );
  }

  /** From now on, silence means that the server is away. */
  #expect(wait: Wait, connection: Connection): void {
    const due = new Due(connection, (isAway) => {
      const { timeoutMs } = this.transport.options;
      if (isAway) this.transport.failed(new Error(`no reply within ${timeoutMs} ms`));
      wait.call.undecided(false);
      this.#leave(wait);
    });
    wait.due = this.transport.watch.add(due);
  }

  /** Until then, silence means nothing. */
  #rest(wait: Wait, connection: Connection, untilMs: number): void {
    wait.rest();
    const leftMs = Math.max(untilMs - performance.now(), 0);
    const isLong = leftMs > LONGEST_TIMER_MS;
    const next = () => (isLong ? this.#rest(wait, connection, untilMs) : this.#expect(wait, connection));
    wait.timer = setTimeout(next, isLong ? LONGEST_TIMER_MS : leftMs);
  }

  #over(wait: Wait, connection: Connection): void {
    wait.end();
    // Once its wait was to be ended, that may still come, and would end the next.
    if (wait.hasLeft) connection.close();
    else this.#keep(connection);
  }

  #cutOff(wait: Wait, connection: Connection, error: unknown): void {
    connection.close();
    this.close(); // those that the server had before have ended, too
    wait.rest();
    if (!wait.hasLeft && wait.sends < MOST_SENDS) return this.#begin(wait);
    wait.end();
    if (wait.hasLeft) return wait.call.ended();
    this.transport.failed(error);
    wait.call.undecided(false);
  }

  #leave(wait: Wait): void {
    if (wait.isOver || wait.hasLeft) return;
    wait.hasLeft = true;
    wait.rest();
    const { connection } = wait;
    if (connection) return this.#unblock(wait, connection, this.transport.watch.longestSilenceMs / UNBLOCK_EVERY_MS);
    wait.end();
    this.#queued = this.#queued.filter((one) => one !== wait);
  }

  /** Repeats until the reply has come; if that must not be or takes too long, closes the connection. */
  #unblock(wait: Wait, connection: Connection, times: number): void {
    if (wait.isOver) return;
    if (wait.id === "" || times <= 0) return connection.close();
    if (wait.id !== undefined) this.transport.send(new Unblock(wait.id, wait.call.nothing, () => connection.close()));
    wait.timer = setTimeout(() => this.#unblock(wait, connection, times - 1), UNBLOCK_EVERY_MS);
  }
}

/** Ends the wait of another connection, as if its time were over: the reply says whether it was granted before. */
class Unblock extends BackgroundCall {
  constructor(
    id: string,
    readonly first: Command,
    failed: (error: unknown) => void,
  ) {
    super(["CLIENT", "UNBLOCK", id], { failed });
  }

  override transmit(connection: Connection): Promise<unknown> {
    connection.send(this.first).catch(() => {});
    return super.transmit(connection);
  }
}
