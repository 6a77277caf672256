/** Timers of the program, callers who leave, and time that counts only while this process could have heard a reply. */

import { performance as meter } from "node:perf_hooks";

import type { Clock } from "./driver.js";

// Tests replace the global ones for a while: a timer that begins before that and ends during it would run for ever.
export const { setTimeout, clearTimeout, setInterval, clearInterval, setImmediate } = globalThis;

/** A timer of Node that is to take more than 24 days fires at once. */
export const LONGEST_PAUSE_MS = 86_400_000;
/** Silence is counted in turns of the event loop, so many in the time a call waits: a busy loop hears nothing. */
export const TURNS = 5;

const callers = new WeakMap<AbortSignal, Set<() => void>>();

/** Resolves as `asked` does, unless its caller leaves before: the server may still count the call. */
export function whileIn<T>(signal: AbortSignal | undefined, asked: Promise<T>): Promise<T> {
  if (!signal) return asked;
  // One listener serves all calls that share a signal: Node warns of more than ten.
  const all = callers.get(signal) ?? new Set();
  if (!callers.has(signal)) signal.addEventListener("abort", () => all.forEach((leave) => leave()), { once: true });
  callers.set(signal, all);
  return new Promise((replied, failed) => {
    const leave = () => failed(signal.reason);
    all.add(leave);
    void asked.then(replied, failed).finally(() => all.delete(leave));
  });
}

export async function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  let timer: NodeJS.Timeout | undefined;
  const pause = Math.min(ms, LONGEST_PAUSE_MS);
  const passed = new Promise<void>((done) => (timer = setTimeout(done, pause)));
  await whileIn(signal, passed).finally(() => clearTimeout(timer));
  if (ms > pause) await sleep(ms - pause, signal);
}

export const MACHINES_CLOCK: Clock = { now: () => performance.now(), sleep };

/** Returns how long the event loop has been idle in all; 0 where the runtime does not measure that. */
export function idleMs(): number {
  return meter.eventLoopUtilization?.().idle ?? 0;
}

/** Calls `turn` every `ms`, once the event loop has read what has arrived. The returned function stops that. */
export function eachTurn(ms: number, turn: () => void): () => void {
  let isOver = false;
  // Timers run before the event loop reads what has arrived, and immediates after.
  const timer = setInterval(() => setImmediate(() => isOver || turn()), Math.max(ms, 1));
  return () => {
    isOver = true;
    clearInterval(timer);
  };
}

/** Resolves as `work` does; rejects if that takes longer than `ms` in which this process could have heard. */
export function within<T>(ms: number, work: Promise<T>, what: string): Promise<T> {
  return new Promise((done, failed) => {
    let turns = 0;
    const stop = eachTurn(ms / TURNS, () => {
      if (++turns < TURNS) return;
      stop();
      failed(new Error(`${what} within ${ms} ms`));
    });
    void work.then(done, failed).finally(stop);
  });
}

/** Resolves once the event loop has read what has arrived. */
export function aTurn(): Promise<void> {
  return new Promise((passed) => setImmediate(() => setImmediate(passed)));
}
