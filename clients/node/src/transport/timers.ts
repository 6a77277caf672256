/**
 * The timers of the program, for what is between it and the server. Tests replace the global ones for a while: a timer that
 * begins before that and ends during it would run for ever.
 */
export const { setTimeout, clearTimeout, setInterval, clearInterval, setImmediate } = globalThis;

/** A timer of Node that is to take more than 24 days fires at once. */
export const LONGEST_PAUSE_MS = 86_400_000;
