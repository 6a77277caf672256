/** Time that counts only while this process could have heard a reply. */

import { clearInterval, setImmediate, setInterval } from "./timers.js";

/** The longest time for connecting, unless the timeout is longer. */
export const CONNECT_MS = 1000;
const TURNS = 5;

/**
 * Calls `late` after `ms` in which nothing was heard, counted in turns of the event loop: a busy loop hears nothing. The
 * returned function stops that. Until then the process stays alive.
 */
export function afterSilence(ms: number, late: () => void, wasHeard = () => false): () => void {
  let turns = 0;
  let isOver = false;
  const stop = () => {
    isOver = true;
    clearInterval(timer);
  };
  const turn = () => {
    turns = isOver || wasHeard() ? 0 : turns + 1;
    if (isOver || turns < TURNS) return;
    stop();
    late();
  };
  // Timers run before the event loop reads what has arrived, and immediates after.
  const timer = setInterval(() => setImmediate(turn), Math.max(ms / TURNS, 1));
  return stop;
}

/** Resolves as `work` does; rejects if that takes longer than `ms` in which this process could have heard. */
export function within<T>(ms: number, work: Promise<T>, what: string): Promise<T> {
  return new Promise((done, failed) => {
    const stop = afterSilence(ms, () => failed(new Error(`${what} within ${ms} ms`)));
    void work.then(done, failed).finally(stop);
  });
}

/** Resolves once the event loop has read what has arrived. */
export function aTurn(): Promise<void> {
  return new Promise((passed) => setImmediate(() => setImmediate(passed)));
}
