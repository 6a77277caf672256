/** The words of commands, for the module and for the script. */

import { createHash } from "node:crypto";

import { FALLBACK } from "./fallback.js";

export type Command = readonly string[];

export const LOAD_SCRIPT: Command = ["SCRIPT", "LOAD", FALLBACK];
const SHA = createHash("sha1").update(FALLBACK).digest("hex");

const NEED_THE_MODULE = new Set(["TB.MHOLD", "TB.MRENEW", "TB.MSETTLE", "TB.TAKEANY", "TB.HOLDANY"]);
/** Where the first key stands, if not right behind the name. */
const FIRST_KEY: Record<string, number> = {
  "TB.MTAKE": 2,
  "TB.MSETTLE": 3,
  "TB.TAKEANY": 3,
  "TB.MHOLD": 4,
  "TB.MRENEW": 4,
  "TB.HOLDANY": 5,
  EVALSHA: 3,
};

/** Those that must not happen twice. */
const ONCE = new Set(["TB.GIVE", "TB.CHARGE", "TB.MSETTLE"]);

export function mustHappenOnce(command: Command): boolean {
  return ONCE.has(command[0] ?? "");
}

/** Returns the form of a command that waits its turn in the server; with a share, a hold is of one bucket. */
export function waiting([name = "", ...words]: Command, maxWaitMs: number, share: Command = []): Command {
  if (share.length > 0 && name === "TB.MHOLD") {
    const [, ttlMs = "", id = "", ...bucket] = words;
    return ["TB.BHOLD", ...bucket, ttlMs, id, String(maxWaitMs), ...share];
  }
  const at = name === "TB.MTAKE" ? 1 : name === "TB.MHOLD" ? 3 : words.length;
  return [name.replace("TB.", "TB.B"), ...words.slice(0, at), String(maxWaitMs), ...words.slice(at), ...share];
}

/** Returns the form of a `TB.MHOLD` that makes its hold last longer, and takes nothing if the hold is gone. */
export function renewing([, ...words]: Command): Command {
  return ["TB.MRENEW", ...words.filter((_, at) => at < 3 || (at - 3) % 4 !== 3)];
}

/** The key by which a cluster finds the node. */
export function keyOf(command: Command): string {
  return command[FIRST_KEY[command[0] ?? ""] ?? 1] ?? "";
}

export function needsModule([name = ""]: Command): boolean {
  return NEED_THE_MODULE.has(name);
}

const scriptKey = (key: string) => `${key}:script`;

/** Returns the form of a command for the script: keys first, under names that the module never uses. */
export function byScript([name = "", ...words]: Command): Command {
  if (name === "DEL") return [name, ...words.map(scriptKey)];
  const isJoint = name === "TB.MTAKE";
  const groups = isJoint ? words.slice(1) : words;
  const isKey = (at: number) => (isJoint ? at % 4 === 0 : at === 0);
  const keys = groups.filter((_, at) => isKey(at)).map(scriptKey);
  const rest = groups.filter((_, at) => !isKey(at));
  return ["EVALSHA", SHA, String(keys.length), ...keys, name.replace("TB.", ""), ...rest];
}

const ENCODED: Record<string, string> = { "%": "%25", "{": "%7B", "}": "%7D" };

/** A hash tag that is the name's alone, whatever it has of braces. */
export function hashTag(name: string): string {
  return `{${name === "" ? "%" : name.replace(/[%{}]/g, (char) => ENCODED[char]!)}}`;
}
