/** The tables in docs/ of what a bucket does otherwise than a library's own store. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

/** What `npm run test-older` imports in place of the newest release. */
export const older = process.env.OLDER;

/** Something tried with a library's own store and with ours. What it returns is compared, unless it is undefined. */
export type Step<Subject> = (subject: Subject) => Promise<unknown>;

export async function seen<Subject>(subject: Subject, steps: Step<Subject>[]): Promise<unknown[]> {
  const all: unknown[] = [];
  for (const step of steps) all.push(await step(subject));
  return all.filter((one) => one !== undefined);
}

/** What a library promises, as steps in an app. */
export interface Case<Subject> {
  steps: Step<Subject>[];
  /** What both do, or the original alone. */
  expected: unknown[];
  /** What a bucket does instead, and the row of the page that says why. */
  bucket?: { expected: unknown[]; row: string };
}

/** The cases of each value, by their names. */
export const ofEach = <Value, One>(values: readonly Value[], casesOf: (value: Value) => Record<string, One>) =>
  Object.assign({}, ...values.map(casesOf)) as Record<string, One>;

export const rowsOf = (cases: Record<string, Case<never>>) =>
  Object.values(cases).flatMap(({ bucket }) => bucket?.row ?? []);

/** Each row is in a case, and each case in a row. */
export function rowsAreCases(page: string, cases: Iterable<string>): void {
  const text = readFileSync(new URL(`../docs/${page}`, import.meta.url), "utf8");
  const section = /^## What differs from .*?\n(.*?)(?=^#|$(?![^]))/ms.exec(text)?.[1] ?? "";
  const rows = [...section.matchAll(/^\| (.*?) \|/gm)].map(([, first]) => first).slice(1);
  assert.deepEqual(rows.toSorted(), [...new Set(cases)].toSorted());
}
