/** The tables in docs/ of what a bucket does otherwise than a library's own store. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

/** Each row is in a case, and each case in a row. */
export function rowsAreCases(page: string, cases: { bucket?: { row?: string } | undefined }[]): void {
  const text = readFileSync(new URL(`../docs/${page}`, import.meta.url), "utf8");
  const section = /^## What differs from .*?\n(.*?)(?=^#|$(?![^]))/ms.exec(text)?.[1] ?? "";
  const rows = [...section.matchAll(/^\| (.*?) \|/gm)].map(([, first]) => first).slice(1);
  const explained = new Set(cases.flatMap(({ bucket }) => bucket?.row ?? []));
  assert.deepEqual(rows.toSorted(), [...explained].toSorted());
}
