/** Runs the tests that the package @fastify/rate-limit holds, on token buckets. Those in DEVIATIONS fail, and no others. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync } from "node:fs";
import { createInterface } from "node:readline";
import { run } from "node:test";

import { DEVIATIONS, NOT_OFFERED } from "./deviations.mjs";

// A file takes seconds. One that does not end is stopped and named.
const LONGEST_FILE_MS = 120_000;
const MOST_TRIES = 4;

process.chdir(new URL("..", import.meta.url).pathname);
const tests = "node_modules/@fastify/rate-limit/test";
const files = readdirSync(tests, { recursive: true }).filter((file) => file.endsWith(".test.js"));

const launcher = spawn("python3", ["../../testing/launch.py", "serve"], { stdio: ["pipe", "pipe", "inherit"] });
const [started] = await once(createInterface(launcher.stdout), "line");
process.env.PORT = String(JSON.parse(started).nodes[0].port);
process.env.NODE_OPTIONS = `--require=${process.cwd()}/upstream-suites/on-buckets.cjs`;

/** Which tests of these files passed, and which failed, why. */
async function resultsOf(files, concurrency) {
  const [passed, failed] = [[], new Map()];
  const paths = files.map((file) => `${tests}/${file}`);
  for await (const { type, data } of run({ files: paths, concurrency, timeout: LONGEST_FILE_MS })) {
    if (type !== "test:pass" && type !== "test:fail") continue;
    const { type: kind, error } = data.details;
    const isSuite = kind === "suite" || data.file === undefined || data.name.endsWith(".js");
    const isStopped = error?.failureType === "testTimeoutFailure";
    if ((isSuite && !isStopped) || data.skip !== undefined) continue;
    const name = `${(data.file ?? data.name).split("/test/")[1]}: ${data.name}`;
    if (type === "test:pass") passed.push(name);
    else failed.set(name, error.cause ?? error);
  }
  return { passed, failed };
}

const { passed, failed } = await resultsOf(files, 2);
const isExpected = (name) => name in DEVIATIONS || NOT_OFFERED.test(failed.get(name).message);
// They sleep in real time, in which buckets refill: on a busy machine some sleep for too long. So those get another try.
for (let tries = 1; tries < MOST_TRIES; tries++) {
  const again = files.filter((file) => [...failed.keys()].some((name) => name.startsWith(file) && !isExpected(name)));
  if (again.length === 0) break;
  const results = await resultsOf(again, 1);
  for (const name of results.passed) {
    if (!results.failed.has(name) && failed.delete(name)) passed.push(name);
  }
}
launcher.stdin.end();

const unexpected = [...failed].filter(([name]) => !isExpected(name));
const expected = Object.keys(DEVIATIONS).filter((name) => !failed.has(name));
for (const [name, error] of unexpected) console.error(`failed: ${name}\n  ${error.message ?? error}`);
for (const name of expected) console.error(`passed, against deviations.mjs: ${name}`);
console.log(
  `${passed.length} of ${passed.length + failed.size} tests of @fastify/rate-limit pass; deviations.mjs says why others fail`,
);
process.exitCode = unexpected.length + expected.length > 0 || passed.length === 0 ? 1 : 0;
