/** Callers who leave: their signals abort. */

import { clearTimeout, LONGEST_PAUSE_MS, setTimeout } from "./timers.js";

const callbacks = new WeakMap<AbortSignal, Set<() => void>>();

/** Calls back when the signal aborts. The returned function stops that. */
export function onAbort(signal: AbortSignal, leave: () => void): () => void {
  // One listener serves all calls that share a signal: Node warns of more than ten.
  let all = callbacks.get(signal);
  if (!all) {
    callbacks.set(signal, (all = new Set()));
    const leaveAll = () => callbacks.get(signal)!.forEach((callback) => callback());
    signal.addEventListener("abort", leaveAll, { once: true });
  }
  all.add(leave);
  return () => all.delete(leave);
}

/** Resolves as `asked` does, unless its caller leaves before: the server may still count the call. */
export function whileIn<T>(signal: AbortSignal | undefined, asked: Promise<T>): Promise<T> {
  if (!signal) return asked;
  return new Promise((replied, failed) => {
    const stop = onAbort(signal, () => failed(signal.reason));
    void asked.then(replied, failed).finally(stop);
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
