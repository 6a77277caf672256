/**
 * Calls that wait their turn in the server. Each has a connection of its own: the server reads what follows on a
 * connection only after such a call has ended.
 */

import { isReply } from "../values/errors.js";
import { ownCall, type Call, type Sender } from "./call.js";
import type { Command } from "./command.js";
import type { Connection } from "./driver.js";
import { clearTimeout, setTimeout } from "./timers.js";
import { Transport } from "./transport.js";

const MOST_CONNECTING = 8;
const MOST_SENDS = 2;
/** How long an idle connection stays open. */
const IDLE_MS = 5000;
/** `CLIENT UNBLOCK` may overtake the call that it ends, so it is repeated. */
const UNBLOCK_EVERY_MS = 20;
const LONGEST_TIMER_MS = 2 ** 31 - 1;

interface WaitingCall extends Call {
  readonly leftMs: number;
  /** A write of its key that changes nothing. */
  readonly nothing: Command;
}

/** A transport by which calls can wait, too. */
export class WaitingTransport extends Transport {
  #idle: { connection: Connection; closing: NodeJS.Timeout }[] = [];
  #queued: Wait[] = [];
  #connecting = 0;

  /** Sends the call. The returned function ends its wait in the server. */
  wait(call: WaitingCall): () => void {
    const wait = new Wait(this, call);
    call.sender = wait;
    call.sends = 0;
    this.begin(wait);
    return () => wait.leave();
  }

  override leave(): boolean {
    this.closeIdle();
    return super.leave();
  }

  override close(): void {
    this.closeIdle();
    super.close();
  }

  closeIdle(): void {
    for (const { connection } of this.#idle.splice(0)) connection.close();
  }

  begin(wait: Wait): void {
    for (let idle = this.#idle.pop(); idle; idle = this.#idle.pop()) {
      clearTimeout(idle.closing);
      if (idle.connection.isOpen) return wait.send(idle.connection);
    }
    wait.call.connection = undefined;
    this.#queued.push(wait);
    this.#connectAsNeeded();
  }

  /** Keeps a connection by which no call waits any longer. */
  keep(connection: Connection): void {
    const next = this.#queued.shift();
    if (next) return next.send(connection);
    const close = () => {
      this.#idle = this.#idle.filter((one) => one.connection !== connection);
      connection.close();
    };
    this.#idle.push({ connection, closing: setTimeout(close, IDLE_MS).unref() });
  }

  /** Takes a call back that has left before there was a connection for it. */
  unqueue(wait: Wait): void {
    this.#queued = this.#queued.filter((one) => one !== wait);
  }

  #connectAsNeeded(): void {
    while (this.#connecting < Math.min(this.#queued.length, MOST_CONNECTING)) {
      this.#connecting++;
      const connected = this.connect().then(
        (connection) => this.keep(connection),
        (error: unknown) => {
          const calls = this.#queued.splice(0).map(({ call }) => call);
          this.notConnected(calls, error);
        },
      );
      void connected.finally(() => {
        this.#connecting--;
        this.#connectAsNeeded();
      });
    }
  }
}

/** A call on its way through one or two connections. */
class Wait implements Sender {
  /** The connection's client id: undefined until it is known, "" where it may not be asked. */
  #id: string | undefined;
  #timer: NodeJS.Timeout | undefined;
  #isOver = false;
  #hasLeft = false;

  constructor(
    readonly transport: WaitingTransport,
    readonly call: WaitingCall,
  ) {}

  send(connection: Connection): void {
    const { transport, call } = this;
    this.#id = undefined;
    // Asked before it: a server that is away does not tell its id, one that lets the call wait does.
    const known = (id: string) => {
      transport.heard(connection);
      this.#id = id;
      if (this.#isOver || this.#hasLeft) return;
      this.#stopExpecting();
      this.#rest();
    };
    connection.send(["CLIENT", "ID"]).then(
      (id) => known(String(id)),
      (error: unknown) => isReply(error) && known(""),
    );
    transport.transmit(call, connection);
    transport.watch.add(call);
  }

  /** Unless it rests, silence means that the server is away. */
  silent(call: WaitingCall, isAway: boolean): void {
    if (isAway) this.transport.failedBy("no reply");
    call.undecided(false);
    this.leave();
  }

  over(): void {
    this.#end();
    const connection = this.call.connection!;
    // Once its wait was to be ended, that may still come, and would end the next.
    if (this.#hasLeft) connection.close();
    else this.transport.keep(connection);
  }

  cutOff(call: WaitingCall, error: unknown): void {
    const { transport } = this;
    transport.closeIdle(); // those that the server had before have ended, too
    this.#stopExpecting();
    if (!this.#hasLeft && call.sends < MOST_SENDS) return transport.begin(this);
    this.#isOver = true;
    if (this.#hasLeft) return call.ended();
    transport.failed(error);
    call.undecided(false);
  }

  /** Ends the wait of a call whose caller has left. */
  leave(): void {
    if (this.#isOver || this.#hasLeft) return;
    this.#hasLeft = true;
    const { transport, call } = this;
    if (call.connection) return this.#unblock(call.connection, transport.watch.longestSilenceMs / UNBLOCK_EVERY_MS);
    this.#end();
    transport.unqueue(this);
  }

  #end(): void {
    this.#isOver = true;
    this.#stopExpecting();
  }

  #stopExpecting(): void {
    this.transport.watch.remove(this.call);
    clearTimeout(this.#timer);
  }

  /** Until then, silence means nothing. */
  #rest(): void {
    const { leftMs } = this.call;
    if (leftMs === 0) return this.transport.watch.add(this.call);
    this.#timer = setTimeout(() => this.#rest(), Math.min(leftMs, LONGEST_TIMER_MS));
  }

  /**
   * Ends the wait as if its time were over: the reply says whether it was granted before. Repeats that until the reply
   * has come; if it must not be or takes too long, closes the connection.
   */
  #unblock(connection: Connection, times: number): void {
    this.#stopExpecting();
    const id = this.#id;
    if (this.#isOver) return;
    if (id === "" || times <= 0) return connection.close();
    if (id !== undefined) {
      const commands = [this.call.nothing, ["CLIENT", "UNBLOCK", id]];
      this.transport.send(ownCall(commands, { failed: () => connection.close() }));
    }
    this.#timer = setTimeout(() => this.#unblock(connection, times - 1), UNBLOCK_EVERY_MS);
  }
}
