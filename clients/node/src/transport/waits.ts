/**
 * Calls that wait their turn in the server. Each has a connection of its own: the server reads what follows on a
 * connection only after such a call has ended.
 */

import { faultOf, isAnswer, isReply } from "../values/errors.js";
import { backgroundCall, type WaitingCall } from "./call.js";
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

/** A call on its way through one or two connections. */
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

  /** Ends what is due, and what was to happen later. */
  rest(): void {
    if (this.due) this.due.isOver = true;
    clearTimeout(this.timer);
  }

  end(): void {
    this.isOver = true;
    this.rest();
  }
}

/** The connections to one server by which calls wait. */
export class Waits {
  #idle: { connection: Connection; closing: NodeJS.Timeout }[] = [];
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
    for (const { connection } of this.#idle.splice(0)) connection.close();
  }

  #begin(wait: Wait): void {
    for (let idle = this.#idle.pop(); idle; idle = this.#idle.pop()) {
      clearTimeout(idle.closing);
      if (idle.connection.isOpen) return this.#send(wait, idle.connection);
    }
    wait.connection = undefined;
    this.#queued.push(wait);
    this.#connectAsNeeded();
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

  #keep(connection: Connection): void {
    const next = this.#queued.shift();
    if (next) return this.#send(next, connection);
    const close = () => {
      this.#idle = this.#idle.filter((one) => one.connection !== connection);
      connection.close();
    };
    this.#idle.push({ connection, closing: setTimeout(close, IDLE_MS).unref() });
  }

  #send(wait: Wait, connection: Connection): void {
    const { transport } = this;
    const { call } = wait;
    wait.connection = connection;
    wait.id = undefined;
    wait.sends++;
    this.#expect(wait, connection);
    const untilMs = performance.now() + call.leftMs;
    // Asked before it: a server that is away does not tell its id, one that lets the call wait does.
    const known = (id: string) => {
      transport.heard(connection);
      wait.id = id;
      if (!wait.isOver && !wait.hasLeft) this.#rest(wait, connection, untilMs);
    };
    connection.send(["CLIENT", "ID"]).then(
      (id) => known(String(id)),
      (error: unknown) => isReply(error) && known(""),
    );
    call.transmit(connection).then(
      (reply) => {
        this.#over(wait, connection);
        transport.heard(connection);
        call.replied(reply);
      },
      (error: unknown) => {
        if (!isReply(error) && faultOf(error) === "away") return this.#cutOff(wait, connection, error);
        this.#over(wait, connection);
        if (isAnswer(error)) transport.heard(connection);
        else transport.failed(error);
        call.failed(error);
      },
    );
  }

  /** From now on, silence means that the server is away. */
  #expect(wait: Wait, connection: Connection): void {
    const onSilence = (isAway: boolean) => {
      if (isAway) this.transport.silent("no reply");
      wait.call.undecided(false);
      this.#leave(wait);
    };
    wait.due = this.transport.watch.add(new Due(connection, onSilence));
  }

  /** Until then, silence means nothing. */
  #rest(wait: Wait, connection: Connection, untilMs: number): void {
    wait.rest();
    const leftMs = Math.max(untilMs - performance.now(), 0);
    const next = leftMs > LONGEST_TIMER_MS ? this.#rest : this.#expect;
    wait.timer = setTimeout(() => next.call(this, wait, connection, untilMs), Math.min(leftMs, LONGEST_TIMER_MS));
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

  /**
   * Ends the wait as if its time were over: the reply says whether it was granted before. Repeats that until the reply
   * has come; if it must not be or takes too long, closes the connection.
   */
  #unblock(wait: Wait, connection: Connection, times: number): void {
    const { id, call } = wait;
    if (wait.isOver) return;
    if (id === "" || times <= 0) return connection.close();
    if (id !== undefined) {
      const transmit = (by: Connection) => {
        by.send(call.nothing).catch(() => {});
        return by.send(["CLIENT", "UNBLOCK", id]);
      };
      this.transport.send(backgroundCall({ transmit, failed: () => connection.close() }));
    }
    wait.timer = setTimeout(() => this.#unblock(wait, connection, times - 1), UNBLOCK_EVERY_MS);
  }
}
