/** Whose fault an error is. */

/** The server cannot be asked, and `onError` is "throw". */
export class ServerAway extends Error {
  override readonly name = "ServerAway";
}

/** The server has no tokenbucket module. */
export class ModuleMissing extends Error {
  override readonly name = "ModuleMissing";
}

/** The buckets of one call are in several slots of a cluster. */
export class CrossSlot extends Error {
  override readonly name = "CrossSlot";
}

export type Fault =
  /** The call is wrong, or may not be made: it would be the next time as well. */
  | "caller"
  /** Nobody answers, or nobody who decides. */
  | "away"
  /** The server is there and refuses this write, which says nothing about the next. */
  | "refusing";

const NOT_DECIDING = new Set(["LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "UNKILLABLE", "MOVED", "ASK"]);
const REFUSING = new Set(["OOM", "READONLY", "MISCONF", "NOREPLICAS", "TRYAGAIN", "EXECABORT"]);

export function faultOf(error: unknown): Fault {
  // A TypeError is a client library's word for arguments, or a mistake of ours: nothing that passes by waiting.
  if (error instanceof ModuleMissing || error instanceof TypeError) return "caller";
  const code = codeOf(error);
  if (code === undefined || NOT_DECIDING.has(code)) return "away";
  return REFUSING.has(code) ? "refusing" : "caller";
}

export function isCrossSlot(error: unknown): boolean {
  return codeOf(error) === "CROSSSLOT";
}

/** The node has not, or not yet, the slot of the call. */
export function isRedirection(error: unknown): boolean {
  return /^(MOVED|ASK) /.test(textOf(error));
}

export function isUnknownCommand(error: unknown): boolean {
  return codeOf(error) === "ERR" && /unknown command/i.test(textOf(error));
}

export function isUnknownScript(error: unknown): boolean {
  return codeOf(error) === "NOSCRIPT";
}

export function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/**
 * The first word of what the server replied; undefined of what the client library says itself.
 *
 * The libraries share no class for the server's errors, but the server has a convention.
 */
function codeOf(error: unknown): string | undefined {
  return /^[A-Z]{2,}(?= |$)/.exec(textOf(error))?.[0];
}
