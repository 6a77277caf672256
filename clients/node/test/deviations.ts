/** The tables in docs/ of what a bucket does otherwise than a library's own store. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

/** What a library promises, as it is tried with its own store and with ours. */
export interface Compared {
  promise: string;
  /** The release that brought it, if the oldest one has it not. */
  since?: string;
  /** What both do, or the original alone. */
  expected: unknown;
  /** What a bucket does instead, and the row of its page that says why. */
  bucket?: { expected: unknown; row: string };
}

/** What `npm run test-older` imports in place of the newest release. */
export const older = process.env.OLDER;

/** Each row is in a case, and each case in a row. */
export function rowsAreCases(page: string, cases: Compared[]): void {
  const text = readFileSync(new URL(`../docs/${page}`, import.meta.url), "utf8");
  const section = /^## What differs from .*?\n(.*?)(?=^#|$(?![^]))/ms.exec(text)?.[1] ?? "";
  const rows = [...section.matchAll(/^\| (.*?) \|/gm)].map(([, first]) => first).slice(1);
  const explained = new Set(cases.flatMap(({ bucket }) => bucket?.row ?? []));
  assert.deepEqual(rows.toSorted(), [...explained].toSorted());
}
