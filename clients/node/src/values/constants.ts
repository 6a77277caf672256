/** The constants that all packages share: `clients/conformance/rules.json` has the same. */

/** The defaults of a Server. */
export const TIMEOUT_MS = 100;
export const RETRY_EVERY_MS = 500;

/** The longest time for connecting, unless the timeout is longer. */
export const CONNECT_WITHIN_MS = 1000;
/** How often a server is asked whether it is there while calls wait in it. */
export const PULSE_OF_A_WAIT_MS = 500;

/** When a settlement is sent that could not be, and once more: a hold without a reply may still be in a socket. */
export const SETTLED_AGAIN_AFTER_MS = 500;
export const MOST_UNSETTLED_HOLDS = 1000;

export const MOST_REDIRECTIONS = 16;
/** How often a call is sent again within the timeout while its slot is on two nodes, with a redirection each time. */
export const TRIES_OF_A_SPLIT_SLOT = 10;

/** The longest wait, and the longest hold. */
export const LONGEST_MS = 30 * 86_400_000;
export const MOST_SHARE_BYTES = 128;
export const LEAST_WEIGHT = 0.001;
export const MOST_WEIGHT = 1000;
