/**
 * The timers of the program, for what is between it and the server. Tests replace the global ones for a while: a timer that
 * begins before that and ends during it would run for ever.
 */
export const { setTimeout, clearTimeout, setInterval, clearInterval, setImmediate } = globalThis;
