/**
 * Calls that wait their turn in the server. Each has a connection for itself: the server reads what follows on a
 * connection only after such a call has ended.
 */

import type { Command } from "./command.js";
import { faultOf, isAnswer, isReply } from "../values/errors.js";
import { CONNECT_MS, type Line, type Route } from "./lines.js";
import type { Message } from "./message.js";
import { clearTimeout, setImmediate, setTimeout } from "./timers.js";

/** A call that waits in the server. */
export interface Turn extends Message {
  /** How long it may wait from now on. */
  readonly leftMs: number;
  /** A write of the same name and key that changes nothing. */
  readonly nothing: Command;
  /** Its caller has left, and its connection has ended before a reply. */
  ended(): void;
}

const MOST_CONNECTING = 8;
const MOST_SENDS = 2;
/** How long a connection stays open by which nobody waits. */
const IDLE_MS = 5000;
/** `CLIENT UNBLOCK` may overtake the call that it ends, so it is repeated. */
const UNBLOCK_EVERY_MS = 20;
const LONGEST_TIMER_MS = 2 ** 31 - 1;

interface Own {
  readonly line: Line;
  /** Its client id; undefined where that may not be asked. */
  readonly id: string | undefined;
  closing?: NodeJS.Timeout;
}

class Visit {
  own: Own | undefined;
  sends = 0;
  isOver = false;
  hasLeft = false;
  #timer: NodeJS.Timeout | undefined;

  constructor(readonly turn: Turn) {}

  /** Instead of what it was to do later. */
  later(ms: number, act: () => void): void {
    clearTimeout(this.#timer);
    const timer = setTimeout(() => this.#timer === timer && act(), ms);
    this.#timer = timer;
  }

  /** The same, after what has arrived by then was read. */
  laterHavingRead(ms: number, act: () => void): void {
    this.later(ms, () => {
      const timer = this.#timer;
      setImmediate(() => this.#timer === timer && act());
    });
  }

  end(): void {
    this.isOver = true;
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }
}

/** Ends the wait of another connection, as if its time were over: the reply says whether it was granted before. */
class Unblock implements Message {
  readonly once = false;

  constructor(
    readonly id: string,
    readonly first: Command,
    readonly failed: (error: unknown) => void,
  ) {}

  transmit(line: Line): Promise<unknown> {
    line.send(this.first).catch(() => {});
    return line.send(["CLIENT", "UNBLOCK", this.id]);
  }
  replied(): void {}
  undecided(): void {}
}

/** The node, as far as calls that wait concern it. */
interface Home {
  readonly options: { readonly timeoutMs: number };
  readonly route: Route;
  readonly address: string;
  readonly heardCount: number;
  readonly tickMs: number;
  readonly timeoutTicks: number;
  readonly dropTicks: number;
  heard(): void;
  failed(error: unknown): void;
  send(message: Message): void;
}

/** The connections to one node by which calls wait. */
export class Turns {
  #idle: Own[] = [];
  #queued: Visit[] = [];
  #connecting = 0;

  constructor(readonly node: Home) {}

  /** Sends the call. What is returned ends its wait in the server. */
  wait(turn: Turn): () => void {
    const visit = new Visit(turn);
    this.#begin(visit);
    return () => this.#leave(visit);
  }

  /** Closes the connections by which nobody waits. */
  close(): void {
    for (const own of this.#idle.splice(0)) this.#close(own);
  }

  #begin(visit: Visit): void {
    const own = this.#reused();
    if (own) return this.#send(visit, own);
    this.#queued.push(visit);
    this.#connectAsNeeded();
  }

  #reused(): Own | undefined {
    for (let own = this.#idle.pop(); own; own = this.#idle.pop()) {
      clearTimeout(own.closing);
      if (own.line.isOpen) return own;
      own.line.close();
    }
    return undefined;
  }

  #keep(own: Own): void {
    const next = this.#queued.shift();
    if (next) return this.#send(next, own);
    own.closing = setTimeout(() => {
      this.#idle = this.#idle.filter((one) => one !== own);
      own.line.close();
    }, IDLE_MS).unref();
    this.#idle.push(own);
  }

  #close(own: Own): void {
    clearTimeout(own.closing);
    own.line.close();
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
    const line = this.node.route.lineTo(this.node.address);
    try {
      const id = await withinMs(CONNECT_MS, greet(line));
      this.node.heard();
      this.#keep({ line, id });
    } catch (error) {
      line.close();
      const isAnswered = isAnswer(error);
      if (!isAnswered) this.node.failed(error);
      for (const visit of this.#queued.splice(0)) {
        visit.end();
        if (isAnswered) visit.turn.failed(error);
        else visit.turn.undecided(false);
      }
    }
  }

  #send(visit: Visit, own: Own): void {
    const { turn } = visit;
    visit.own = own;
    visit.sends++;
    const { leftMs } = turn;
    const ponged = () => {
      this.node.heard();
      if (!visit.isOver && !visit.hasLeft) this.#rest(visit, performance.now() + leftMs);
    };
    // The PING before it tells a server that is away from one that lets the call wait.
    own.line.send(["PING"]).then(ponged, (error: unknown) => isReply(error) && ponged());
    this.#watch(visit);
    turn.transmit(own.line).then(
      (reply) => {
        this.#over(visit, own);
        this.node.heard();
        turn.replied(reply);
      },
      (error: unknown) => {
        if (!isReply(error) && faultOf(error) === "away") return this.#cutOff(visit, own);
        this.#over(visit, own);
        if (isAnswer(error)) this.node.heard();
        else this.node.failed(error);
        turn.failed(error);
      },
    );
  }

  #over(visit: Visit, own: Own): void {
    visit.end();
    // Once its wait was to be ended, that may still come, and would end the next.
    if (visit.hasLeft) this.#close(own);
    else this.#keep(own);
  }

  #cutOff(visit: Visit, own: Own): void {
    this.#close(own);
    this.close(); // those that the server had before have ended, too
    if (!visit.hasLeft && visit.sends < MOST_SENDS) return this.#begin(visit);
    visit.end();
    if (visit.hasLeft) visit.turn.ended();
    else visit.turn.undecided(false);
  }

  /** Until then, silence means nothing. */
  #rest(visit: Visit, untilMs: number): void {
    const leftMs = untilMs - performance.now();
    if (leftMs > LONGEST_TIMER_MS) visit.later(LONGEST_TIMER_MS, () => this.#rest(visit, untilMs));
    else visit.later(Math.max(leftMs, 0), () => this.#watch(visit));
  }

  /** Gives up when nothing came from the server for the timeout, or nothing for this call for long. */
  #watch(visit: Visit, silentTicks = 0, ticks = 0): void {
    const { node } = this;
    const heard = node.heardCount;
    visit.laterHavingRead(node.tickMs, () => {
      const silent = node.heardCount === heard ? silentTicks + 1 : 0;
      if (silent <= node.timeoutTicks && ticks < node.dropTicks) return this.#watch(visit, silent, ticks + 1);
      if (silent > node.timeoutTicks) node.failed(new Error(`no reply within ${node.options.timeoutMs} ms`));
      visit.turn.undecided(false);
      this.#leave(visit);
    });
  }

  #leave(visit: Visit): void {
    if (visit.isOver || visit.hasLeft) return;
    visit.hasLeft = true;
    const { own } = visit;
    if (own) return this.#unblock(visit, own, performance.now() + this.node.dropTicks * this.node.tickMs);
    visit.end();
    this.#queued = this.#queued.filter((one) => one !== visit);
  }

  /** Until its reply has come; if that must not be or takes too long, the connection is closed. */
  #unblock(visit: Visit, { line, id }: Own, untilMs: number): void {
    if (id === undefined || performance.now() > untilMs) return line.close();
    this.node.send(new Unblock(id, visit.turn.nothing, () => line.close()));
    visit.later(UNBLOCK_EVERY_MS, () => this.#unblock(visit, visit.own!, untilMs));
  }
}

/** Connects, and asks for the client id. */
async function greet(line: Line): Promise<string | undefined> {
  await line.connect();
  try {
    return String(await line.send(["CLIENT", "ID"]));
  } catch (error) {
    if (isAnswer(error) && line.isOpen) return undefined;
    throw error;
  }
}

function withinMs<T>(ms: number, work: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const late = () => reject(new Error(`not connected within ${ms} ms`));
    const timer = setTimeout(() => setImmediate(late), ms);
    work.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}
