/**
 * One server, or one node of a cluster: its connection, its pending calls, and when it counts as away.
 *
 * A server is away when it is silent, not when a caller is late. A busy event loop cannot hear the server, so time is
 * counted in ticks: rounds of the event loop in which this process could have read a reply. A call times out when
 * nothing at all came from the server for that many ticks.
 */

import { Circuit, Script, type Log } from "./circuit.js";
import { faultOf, isAnswer, isReply, textOf } from "../values/errors.js";
import { CONNECT_MS, type Line, type Route } from "./lines.js";
import type { Message } from "./message.js";
import { clearInterval, setImmediate, setInterval, setTimeout } from "./timers.js";
import { Turns } from "./turns.js";

export interface NodeOptions {
  timeoutMs: number;
  retryEveryMs: number;
  log: Log;
}

const TICKS_PER_TIMEOUT = 5;
const LONGEST_TICK_MS = 100;
/** On a connection that was idle for this long, a PING precedes a call that must happen once. */
const STALE_MS = 500;
const MOST_SENDS = 3;

/** A connection, and how many replies it owes. */
class Link {
  /** Replies still to come. */
  due = 0;
  dueSince = 0;
  /** How many messages were sent, and the last of them that has a reply. */
  sent = 0;
  answered = 0;
  bytesRead: number | undefined;
  readonly beganMs = performance.now();
  /** New messages use another connection. */
  isLeft = false;

  constructor(readonly line: Line) {}
}

/** A message on its way. */
class Flight {
  isSent = false;
  sends = 0;
  /** Its number on its connection. */
  number = 0;
  isWaiting = false;
  previous: Flight | undefined;
  next: Flight | undefined;

  constructor(
    readonly message: Message,
    readonly tick: number,
  ) {}
}

/**
 * Messages without a reply yet, oldest first. A `Set` would keep its former tables, and what they held, alive through
 * most garbage collections: that doubles the time of a call.
 */
class Waiting {
  size = 0;
  first: Flight | undefined;
  #last: Flight | undefined;

  add(flight: Flight): void {
    flight.isWaiting = true;
    flight.previous = this.#last;
    if (this.#last) this.#last.next = flight;
    else this.first = flight;
    this.#last = flight;
    this.size++;
  }

  /** False if it was removed before. */
  remove(flight: Flight): boolean {
    if (!flight.isWaiting) return false;
    const { previous, next } = flight;
    if (previous) previous.next = next;
    else this.first = next;
    if (next) next.previous = previous;
    else this.#last = previous;
    flight.isWaiting = false;
    flight.previous = flight.next = undefined;
    this.size--;
    return true;
  }

  /** Those that wait now. */
  all(): Flight[] {
    const all = [];
    for (let flight = this.first; flight; flight = flight.next) all.push(flight);
    return all;
  }
}

class Ping implements Message {
  readonly once = false;

  transmit(line: Line): Promise<unknown> {
    return line.canGoStale ? line.send(["PING"]) : Promise.resolve();
  }
  replied(): void {}
  failed(): void {}
  undecided(): void {}
}

export class Node {
  readonly circuit: Circuit;
  readonly script: Script;
  readonly who: string;
  /** Called when the node turns out to be away. */
  onAway = () => {};
  /** The calls that wait in the server. */
  readonly turns = new Turns(this);
  readonly tickMs: number;
  readonly timeoutTicks: number;
  /** A connection is dropped that tells nothing for so long while others do. */
  readonly dropTicks: number;
  /** How often anything came from the server, on any connection. */
  heardCount = 0;
  readonly #connectTicks: number;
  readonly #waiting = new Waiting();
  #link: Link | undefined;
  #connecting: { line: Line; tick: number } | undefined;
  #tick = 0;
  #heardTick = 0;
  #heardMs = 0;
  #timer: NodeJS.Timeout | undefined;

  constructor(
    readonly address: string,
    readonly route: Route,
    readonly options: NodeOptions,
  ) {
    const { timeoutMs, retryEveryMs, log } = options;
    this.who = `the ${route.isCluster ? "node" : "server"}${address && ` ${address}`}`;
    this.circuit = new Circuit(this.who, retryEveryMs, log);
    this.script = new Script(this.who, log);
    this.tickMs = Math.min(Math.max(timeoutMs / TICKS_PER_TIMEOUT, 1), LONGEST_TICK_MS);
    this.timeoutTicks = Math.ceil(timeoutMs / this.tickMs);
    this.dropTicks = Math.ceil(Math.max(10 * timeoutMs, CONNECT_MS) / this.tickMs);
    this.#connectTicks = Math.ceil(CONNECT_MS / this.tickMs);
  }

  get isConnected(): boolean {
    return this.#link?.line.isOpen === true;
  }

  /** Why the node does not decide. */
  get reason(): string {
    return `cannot ask ${this.who}: ${textOf(this.circuit.lastError ?? "not connected yet")}`;
  }

  /** Sends the message, as soon as there is a connection. */
  send(message: Message): void {
    if (this.#isConnectingForLong) return message.undecided(false);
    const flight = new Flight(message, this.#tick);
    this.#waiting.add(flight);
    this.#timer ??= setInterval(() => this.#onTick(), this.tickMs);
    if (this.#link && !this.#link.line.isOpen) this.#drop(this.#link);
    if (!this.#link) this.#connect();
    else if (message.once && this.#isStale(this.#link)) this.#transmitBehindPing(flight, this.#link);
    else this.#transmit(flight, this.#link);
  }

  /** Sends a PING in the background, at most every `retryEveryMs`. */
  probeNow(): void {
    if (!this.circuit.isTimeToProbe()) return;
    this.send(new Ping());
    this.onAway();
  }

  /**
   * Opens another connection for what follows, because the endpoint may lead to another server now. False if this
   * connection is new: then another would lead to the same server.
   */
  leave(): boolean {
    this.turns.close();
    const link = this.#link;
    if (!link) return true;
    if (performance.now() - link.beganMs < this.options.retryEveryMs) return false;
    this.#link = undefined;
    link.isLeft = true;
    // Replies to earlier messages still arrive.
    if (link.due === 0) link.line.close();
    else setTimeout(() => link.line.close(), CONNECT_MS).unref();
    return true;
  }

  close(): void {
    if (this.#link) this.#drop(this.#link);
    this.turns.close();
  }

  /** The server has answered. */
  heard(): void {
    this.heardCount++;
    this.#heardTick = this.#tick;
    // While others wait, the ticks measure silence.
    if (this.#waiting.size === 0) this.#heardMs = performance.now();
    this.circuit.answered();
  }

  /** The server cannot be asked. */
  failed(error: unknown): void {
    this.circuit.failed(error);
    this.onAway();
  }

  get #isConnectingForLong(): boolean {
    return this.#connecting !== undefined && this.#ticksSince(this.#connecting.tick) > this.timeoutTicks;
  }

  #isStale({ line, due }: Link): boolean {
    return line.canGoStale && due === 0 && performance.now() - this.#heardMs > STALE_MS;
  }

  #connect(): void {
    if (this.#connecting) return;
    const line = this.route.lineTo(this.address);
    this.#connecting = { line, tick: this.#tick };
    const greeted = line.connect().then(() => new Ping().transmit(line));
    greeted.then(
      () => this.#connected(line),
      (error: unknown) => (isAnswer(error) && line.isOpen ? this.#connected(line) : this.#notConnected(line, error)),
    );
  }

  #connected(line: Line): void {
    if (this.#connecting?.line !== line) return line.close();
    this.#connecting = undefined;
    const link = (this.#link = new Link(line));
    this.heard();
    this.script.lookForModule();
    for (const flight of this.#waiting.all()) {
      if (this.#link === link && !flight.isSent) this.#transmit(flight, link);
    }
  }

  #notConnected(line: Line, error: unknown): void {
    if (this.#connecting?.line !== line) return;
    this.#connecting = undefined;
    line.close();
    // The server replied, with a wrong password for example: waiting does not help.
    const isAnswered = isAnswer(error);
    if (!isAnswered) this.failed(error);
    for (const flight of this.#waiting.all()) {
      if (flight.isSent || !this.#waiting.remove(flight)) continue;
      if (isAnswered) flight.message.failed(error);
      else flight.message.undecided(false);
    }
  }

  #transmitBehindPing(flight: Flight, link: Link): void {
    const next = () => {
      this.#received(link);
      // If this connection has ended, the next one sends the message.
      if (flight.isWaiting && !flight.isSent && this.#link === link) this.#transmit(flight, link);
    };
    this.#sends(link);
    new Ping().transmit(link.line).then(next, (error: unknown) => (isReply(error) ? next() : this.#ended(link)));
  }

  #transmit(flight: Flight, link: Link): void {
    flight.isSent = true;
    flight.sends++;
    flight.number = ++link.sent;
    this.#sends(link);
    flight.message.transmit(link.line).then(
      (reply) => {
        this.#waiting.remove(flight);
        link.answered = flight.number;
        this.#received(link);
        flight.message.replied(reply);
      },
      (error: unknown) => {
        if (!isReply(error) && faultOf(error) === "away") return this.#cutOff(flight, link);
        this.#waiting.remove(flight);
        this.#received(link, error);
        flight.message.failed(error);
      },
    );
  }

  #sends(link: Link): void {
    if (link.due++ === 0) link.dueSince = this.#tick;
  }

  #received(link: Link, error?: unknown): void {
    link.due--;
    if (error === undefined || isAnswer(error)) this.heard();
    else this.failed(error);
    if (link.isLeft && link.due === 0) link.line.close();
  }

  /** The connection ended before the reply. */
  #cutOff(flight: Flight, link: Link): void {
    const { message } = flight;
    const isRepeatable = !message.once && flight.sends < MOST_SENDS && flight.isWaiting;
    if (isRepeatable) flight.isSent = false;
    this.#ended(link);
    if (isRepeatable && this.#link) this.#transmit(flight, this.#link);
    else if (!isRepeatable && this.#waiting.remove(flight)) message.undecided(message.once);
  }

  #ended(link: Link): void {
    this.#drop(link);
    // The next connection sends what this one did not.
    if (!this.#link && this.#waiting.size > 0) this.#connect();
  }

  #drop(link: Link): void {
    if (this.#link === link) this.#link = undefined;
    link.line.close();
  }

  #onTick(): void {
    this.#tick++;
    if (this.#waiting.size === 0 && !this.#link?.due && !this.#connecting) {
      clearInterval(this.#timer);
      this.#timer = undefined;
      return;
    }
    // Timers run before the event loop reads what has arrived, and this runs after.
    setImmediate(() => this.#judge());
  }

  #judge(): void {
    if (this.#link) this.#listen(this.#link);
    const oldest = this.#waiting.first;
    if (oldest && this.#ticksSince(oldest.tick) > this.timeoutTicks) this.#expire(oldest);
    const link = this.#link;
    if (link?.due && this.#ticksSince(Math.max(link.dueSince, this.#heardTick)) > this.dropTicks) this.#drop(link);
    if (this.#connecting && this.#ticksSince(this.#connecting.tick) > this.#connectTicks) {
      this.#notConnected(this.#connecting.line, new Error(`not connected within ${CONNECT_MS} ms`));
    }
  }

  #ticksSince(tick: number): number {
    return this.#tick - tick;
  }

  /** If the library exposes its socket, part of a reply is a sign of life, too. */
  #listen(link: Link): void {
    const { bytesRead } = link.line;
    if (bytesRead !== link.bytesRead && link.due > 0) {
      this.#heardTick = this.#tick;
      this.heardCount++;
    }
    link.bytesRead = bytesRead;
  }

  /** Times out the oldest messages, unless the server answers others. */
  #expire(oldest: Flight): void {
    const link = this.#link;
    if (link && this.#ticksSince(this.#heardTick) <= this.timeoutTicks) {
      // Replies come in order: one that others have overtaken does not come.
      const isOvertaken = oldest.isSent && oldest.number < link.answered;
      if (!isOvertaken || this.#ticksSince(oldest.tick) <= this.dropTicks) return;
      this.#drop(link);
    } else if (link) {
      this.failed(new Error(`no reply within ${this.options.timeoutMs} ms`));
    }
    for (const flight of this.#waiting.all()) {
      if (this.#ticksSince(flight.tick) <= this.timeoutTicks) break;
      if (!this.#waiting.remove(flight)) continue;
      flight.message.undecided(flight.isSent && flight.message.once);
    }
  }
}
