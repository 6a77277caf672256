/** The code of the README and of docs/ is type-checked and run, and prints what its comments say. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";

import { Redis } from "ioredis";

import { portOf } from "./apps.js";
import { clusterFor, serverFor, type Server } from "./servers.js";

const run = promisify(execFile);
const PACKAGE = resolve(import.meta.dirname, "..");
const FOLDER = join(PACKAGE, "build/readme");
const README = readFileSync(join(PACKAGE, "README.md"), "utf8");
const DOCS = join(PACKAGE, "docs");
const SOURCES = readdirSync(join(PACKAGE, "src"), { recursive: true, encoding: "utf8" })
  .filter((name) => name.endsWith(".ts"))
  .map((name) => readFileSync(join(PACKAGE, "src", name), "utf8"));
const PAGES = [README, ...readdirSync(DOCS).map((name) => readFileSync(join(DOCS, name), "utf8"))];
const MANIFEST = JSON.parse(readFileSync(join(PACKAGE, "package.json"), "utf8"));

const codeOf = (page: string) => [...page.matchAll(/^```ts\n(.*?)^```/gms)].map(([, code = ""]) => code);
const blocks = PAGES.flatMap(codeOf);
/** The examples of the comments, as editors show them. */
const examples = SOURCES.flatMap((source) => source.match(/^ *\/\*\*\n.*?\*\/$/gms) ?? [])
  .map((comment) => comment.replace(/^ *\* ?/gm, ""))
  .flatMap(codeOf);

/** Runs a program on that server. */
const runPatiently = (program: string, { clock }: Server) =>
  run(process.execPath, ["--import", join(PACKAGE, "test/patient.mjs"), program], {
    env: { ...process.env, CLOCK: clock },
    timeout: 30_000,
  });

test("the code of the README and of comments does what it says", async (t) => {
  const server = await serverFor(t);
  const cluster = await clusterFor(t);
  const free = createServer();
  const port = String(await portOf(t, free));
  await once(free.close(), "close");
  const redis = new Redis(server.url);
  t.after(() => redis.disconnect());
  rmSync(FOLDER, { recursive: true, force: true });
  mkdirSync(FOLDER, { recursive: true });
  for (const [at, code] of [...blocks, ...examples].entries()) {
    const here = code
      .replaceAll("redis://127.0.0.1:6379", code.includes("Cluster(") ? cluster.nodes[0]!.url : server.url)
      .replaceAll("3000", port);
    const asks = code.includes("3000") ? `await (globalThis as any).asked(${port});` : "";
    writeFileSync(join(FOLDER, `${at}.ts`), `${here}\n${asks}\nprocess.exit();\n`);
  }
  const compilerOptions = { rootDir: ".", outDir: "out" };
  const config = { extends: "../../test/tsconfig.json", compilerOptions, include: ["*.ts"] };
  writeFileSync(join(FOLDER, "tsconfig.json"), JSON.stringify(config));
  await run(join(PACKAGE, "node_modules/.bin/tsc"), ["-p", FOLDER]).catch(({ stdout }) => assert.fail(stdout));

  assert.ok(blocks.length >= 8);
  assert.ok(examples.length >= 6);
  for (const [at, code] of [...blocks, ...examples].entries()) {
    await redis.flushall();
    const { stdout, stderr } = await runPatiently(join(FOLDER, "out", `${at}.js`), server);
    const said = [...code.matchAll(/^console\.log\(.*\); \/\/ (.*)$/gm)].map(([, text]) => text);
    assert.deepEqual(stdout.split("\n").filter(Boolean), said, `block ${at}\n${stderr}`);
  }
});

test("the app of docs/nestjs.md is compiled and runs by the command of that page", async (t) => {
  const page = readFileSync(join(DOCS, "nestjs.md"), "utf8");
  const [, options = ""] = /tsc app\.ts (.*) && node app\.js/.exec(page)!;
  const folder = mkdtempSync(join(tmpdir(), "nest-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const app = join(folder, "app");
  for (const modules of [app, join(folder, "node_modules")]) mkdirSync(modules);
  symlinkSync(join(PACKAGE, "node_modules"), join(app, "node_modules"));
  symlinkSync(PACKAGE, join(folder, "node_modules/tokenbucket-redis"));
  const server = await serverFor(t);
  const [code = ""] = codeOf(page);
  const asked = `
    for (let i = 0; i <= 10; i++) console.log((await fetch(await app.getUrl())).status);
    process.exit();`;
  writeFileSync(join(app, "package.json"), '{ "type": "module" }');
  const here = code.replace("redis://127.0.0.1:6379", server.url).replace("3000", "0");
  writeFileSync(join(app, "app.ts"), here + asked);
  const tsc = join(PACKAGE, "node_modules/.bin/tsc");
  await run(tsc, ["app.ts", ...options.split(" ")], { cwd: app }).catch(({ stdout }) => assert.fail(stdout));
  const { stdout } = await runPatiently(join(app, "app.js"), server);
  assert.equal(stdout, `${"200\n".repeat(10)}429\n`);
});

const MIXED = `
const { RateLimiterMemory, RateLimiterRes, RateLimiterUnion } = require("rate-limiter-flexible");
const { RateLimiterTokenBucket } = require("tokenbucket-redis/rate-limiter-flexible");
const { FakeServer } = require("tokenbucket-redis/testing");
const ours = new RateLimiterTokenBucket({ storeClient: new FakeServer(), points: 2, duration: 60 });
const theirs = new RateLimiterMemory({ points: 2, duration: 60, keyPrefix: "theirs" });
(async () => {
  console.log((await ours.consume("a", 9).catch((refused) => refused)) instanceof RateLimiterRes);
  console.log(Object.keys(await new RateLimiterUnion(ours, theirs).consume("a")).join());
})();
`;

test("installed as the README says, it has the application's copies of other packages", async (t) => {
  const [, options = ""] = /npm install (.*)"\$TB\/clients\/node" ioredis/.exec(README)!;
  const app = mkdtempSync(join(tmpdir(), "app-"));
  t.after(() => rmSync(app, { recursive: true }));
  // From folders, in place of a registry.
  const names = ["rate-limiter-flexible", ...Object.keys(MANIFEST.dependencies)];
  for (const name of names) cpSync(join(PACKAGE, "node_modules", name), join(app, "from", name), { recursive: true });
  const others = names.map((name) => join(app, "from", name));
  const words = ["install", "--offline", ...options.split(" ").filter(Boolean), PACKAGE, ...others];
  await run("npm", [...words, "--prefix", app], { cwd: app });
  const { stdout } = await run(process.execPath, ["-e", MIXED], { cwd: app });
  assert.equal(stdout, "true\nrlflx,theirs\n");
});

test("the versions in the README are those that were tested", () => {
  const rows = [...README.matchAll(/^\| (\S+)(?: \(.*\))? \| (\d+\.\d+\.\d+) \| ([\d., ]*)\|$/gm)];
  assert.ok(rows.length >= 9);
  for (const [, name = "", version, also = ""] of rows) {
    assert.equal(MANIFEST.devDependencies[name], version, name);
    for (const older of also.match(/[\d.]+/g) ?? []) {
      assert.equal(MANIFEST.devDependencies[`${name}-${older.split(".")[0]}`], `npm:${name}@${older}`);
    }
  }
});

test("the oldest release that a peer range names is tested", () => {
  for (const [name, range] of Object.entries<string>(MANIFEST.peerDependencies)) {
    const [, least = "", rest = ""] = /^>=(\d+)([\d.]*)$/.exec(range)!;
    const oldest = [...`${least}${rest}`.split("."), "0", "0"].slice(0, 3).join(".");
    assert.equal(MANIFEST.devDependencies[`${name}-${least}`], `npm:${name}@${oldest}`);
  }
});

test("the package holds what it needs, and the script of all clients", async () => {
  const { stdout } = await run("npm", ["pack", "--dry-run", "--json", "--ignore-scripts"], { cwd: PACKAGE });
  const [packed] = Object.values(JSON.parse(stdout)) as { version: string; files: { path: string }[] }[];
  const files = packed!.files.map(({ path }) => path);
  for (const needed of ["README.md", "LICENSE", "package.json", "dist/index.js", "dist/package.json"]) {
    assert.ok(files.includes(needed), needed);
  }
  const strange = files.filter((path) => !/^(dist\/|README\.md$|LICENSE$|package\.json$)/.test(path));
  assert.deepEqual(strange, []);
  const cargo = readFileSync(join(PACKAGE, "../../Cargo.toml"), "utf8");
  assert.equal(packed!.version, /^version = "(.*)"/m.exec(cargo)?.[1]);
  const { FALLBACK } = (await import(join(PACKAGE, "dist/transport/fallback.js"))) as { FALLBACK: string };
  assert.equal(FALLBACK, readFileSync(join(PACKAGE, "../fallback.lua"), "utf8"));
});
