/** The errors of this package, and whose fault an error of the server is. */

/** The base of every error of this package: `error instanceof TokenBucketError`. */
export class TokenBucketError extends Error {}

/** An argument of the call is wrong; the message says which. */
export class BadArgument extends TokenBucketError {}

/** Throws a BadArgument for an option that does not exist, as a misspelt one would have no effect. */
export function checkOptions(options: object, known: readonly string[]): void {
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || known.includes(name)) continue;
    throw new BadArgument(`${name}: unknown option, known are ${known.join(", ")}`);
  }
}

/** The server did not decide, and `onError` is "throw". */
export class ServerAway extends TokenBucketError {}

/** The reply to a call that must happen once, such as `give`, was lost: the server may or may not have executed it. */
export class ReplyLost extends TokenBucketError {}

/** The server no longer has a hold: other calls may have its tokens. */
export class HoldLost extends TokenBucketError {}

/** The server has not loaded the tokenbucket module, which the call needs. */
export class ModuleMissing extends TokenBucketError {}

/** The buckets of one call are in several slots of a cluster: give their names a common hash tag. */
export class CrossSlot extends TokenBucketError {}

/** The server replied with an error that repeating the call does not change, such as WRONGTYPE or NOPERM. */
export class ServerError extends TokenBucketError {}

/**
 * The server does not decide this call: `onError` does. No caller sees it, and during an outage its stack trace would be
 * most of what a decision costs: so it is no Error.
 */
export class Undecided {
  readonly message: string;

  constructor(
    who: string,
    readonly cause: unknown,
    /** True if the server may have executed the call. */
    readonly sent = false,
  ) {
    this.message = `cannot ask ${who}: ${textOf(cause)}`;
  }
}

/** A call cannot wait in this server, which has or keeps no connection for it. */
export class CannotWait extends TokenBucketError {}

const KINDS = { BadArgument, ServerAway, ReplyLost, HoldLost, ModuleMissing, CrossSlot, ServerError, CannotWait };
// Written out, because minifiers rename classes.
for (const [name, kind] of Object.entries(KINDS)) {
  Object.defineProperty(kind.prototype, "name", { value: name, writable: true });
}

export type Fault =
  /** The call is wrong, or may not be made: it would be the next time as well. */
  | "caller"
  /** The server does not answer, or does not decide. */
  | "away"
  /** The server is there and refuses this write, which says nothing about the next. */
  | "refusing";

/** By such codes Node says that an option or a certificate of TLS is wrong. */
const OF_TLS = /^(ERR_(TLS|SSL|OSSL)|CERT_|CRL_|UNABLE_TO_|DEPTH_ZERO_|SELF_SIGNED_|INVALID_|HOSTNAME_)/;

const NOT_DECIDING = new Set(["LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "UNKILLABLE"]);
const REFUSING = new Set(["OOM", "READONLY", "MISCONF", "NOREPLICAS", "TRYAGAIN", "UNBLOCKED", "EXECABORT"]);

export function faultOf(error: unknown): Fault {
  // A TypeError is a driver's word for arguments, or a mistake of ours: nothing that passes by waiting.
  if (error instanceof TokenBucketError || error instanceof TypeError) return "caller";
  if (OF_TLS.test(String((error as { code?: unknown } | undefined)?.code))) return "caller";
  if (textOf(error).startsWith("ERR max number of clients")) return "away";
  const code = codeOf(error);
  if (isUnserved(error)) return "refusing"; // the node decides what is in its own slots
  if (code === undefined || NOT_DECIDING.has(code)) return "away";
  return REFUSING.has(code) ? "refusing" : "caller";
}

/** Returns whether a node knows of none that serves the slot. */
export function isUnserved(error: unknown): boolean {
  return textOf(error).startsWith("CLUSTERDOWN Hash slot not served");
}

/** Returns whether the error comes from a server that decides calls. */
export function isAnswer(error: unknown): boolean {
  return faultOf(error) !== "away";
}

/** Returns whether the server sent the error, rather than the driver. */
export function isReply(error: unknown): boolean {
  return codeOf(error) !== undefined;
}

/** Where the node says that the slot is. */
export function redirectionOf(error: unknown): { isMoved: boolean; slot: number; address: string } | undefined {
  const [, kind, slot, address = ""] = /^(MOVED|ASK) (\d+) (\S+)/.exec(textOf(error)) ?? [];
  return kind === undefined ? undefined : { isMoved: kind === "MOVED", slot: Number(slot), address };
}

export function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/**
 * The first word of what the server replied; undefined of what the driver says itself.
 *
 * The libraries share no class for the server's errors, but the server has a convention.
 */
export function codeOf(error: unknown): string | undefined {
  return /^[A-Z]{2,}(?= |$)/.exec(textOf(error))?.[0];
}

/** Returns the error for the caller of the server `who`, which says what to do where that is known. */
export function explained(error: unknown, who: string): unknown {
  if (error instanceof TokenBucketError) return error;
  if (/^ERR unknown command\W+TB\./i.test(textOf(error))) {
    const help = 'load it, or make a Server with by: "script"; the script has no holds, shares or alternatives';
    return new ModuleMissing(`${who} has no tokenbucket module: ${help}`, { cause: error });
  }
  if (codeOf(error) === "CROSSSLOT") {
    const help = "in a cluster, the names of one call have to share a hash tag, as in '{ada}:requests'";
    return new CrossSlot(help, { cause: error });
  }
  const isNode = redirectionOf(error) !== undefined;
  const text = isNode ? `${who} is a node of a cluster: use the cluster client` : `${textOf(error)} (${who})`;
  return new ServerError(text, { cause: error });
}
