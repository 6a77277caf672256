/** The processes that the example is made of: a Redis with the module, and the app. */

import { spawn, type ChildProcess } from "node:child_process";
import { existsSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const HERE = fileURLToPath(new URL("../..", import.meta.url));
const READY_WITHIN_MS = 30_000;

/** What is left when this program ends early, by a signal or an error, ends with it. */
const services = new Set<Service>();
process.once("exit", () => services.forEach((service) => service.abandon()));
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
  process.once(signal, () => process.exit(1));
}

/** A child process that is ready once its port answers; ended by its own pid. */
export class Service {
  #child: ChildProcess | undefined;
  readonly #folder = mkdtempSync(join(tmpdir(), "tokenbucket-"));
  readonly #log = join(this.#folder, "log");

  constructor(
    readonly name: string,
    readonly port: number,
    private readonly command: string,
    private readonly args: string[],
    private readonly env: NodeJS.ProcessEnv,
  ) {}

  async start(): Promise<this> {
    const out = openSync(this.#log, "a");
    this.#child = spawn(this.command, this.args, {
      cwd: this.#folder,
      env: { ...process.env, ...this.env },
      stdio: ["ignore", out, out],
    });
    this.#child.on("error", () => {}); // seen as ended, below
    services.add(this);
    await waitFor(`${this.name} on port ${this.port}`, READY_WITHIN_MS, async () => {
      if (this.ended) throw new Error(`${this.name} ended at its start\n${this.output()}`.trim());
      return answers(this.port);
    });
    return this;
  }

  get ended(): boolean {
    const child = this.#child;
    return !child?.pid || child.exitCode !== null || child.signalCode !== null;
  }

  /** What it has written, of all its starts. */
  output(): string {
    return existsSync(this.#log) ? readFileSync(this.#log, "utf8") : "";
  }

  signal(signal: NodeJS.Signals): void {
    this.#child?.kill(signal);
  }

  async whenEnded(): Promise<number> {
    while (!this.ended) await sleep(20);
    return this.#child?.exitCode ?? 0;
  }

  async stop(): Promise<void> {
    if (this.ended) return;
    this.#terminate();
    const deadline = setTimeout(() => this.signal("SIGKILL"), 10_000);
    await this.whenEnded();
    clearTimeout(deadline);
  }

  async remove(): Promise<void> {
    await this.stop();
    this.abandon();
  }

  /** As remove, but waits for nothing. */
  abandon(): void {
    if (!this.ended) this.#terminate();
    rmSync(this.#folder, { recursive: true, force: true });
    services.delete(this);
  }

  #terminate(): void {
    this.signal("SIGCONT"); // one that a test has stopped could not obey
    this.signal("SIGTERM");
  }
}

export async function waitFor(
  what: string,
  withinMs: number,
  condition: () => Promise<boolean> | boolean,
): Promise<void> {
  const deadline = performance.now() + withinMs;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`${what}: not within ${withinMs} ms`);
    await sleep(20);
  }
}

/** A Redis with the module, which ../../testing/launch.py starts, and ends when its input ends. */
export class RedisServer {
  readonly #launcher: ChildProcess;
  readonly #lines: AsyncIterator<string>;
  port = 0;

  private constructor(options: string[]) {
    this.#launcher = spawn("../../testing/launch.py", ["serve", ...options], { cwd: HERE, stdio: ["pipe", "pipe", "inherit"] });
    this.#lines = createInterface(this.#launcher.stdout!)[Symbol.asyncIterator]();
  }

  static async launch(...options: string[]): Promise<RedisServer> {
    const redis = new RedisServer(options);
    const { nodes } = (await redis.#read()) as { nodes: [{ port: number }] };
    redis.port = nodes[0].port;
    return redis;
  }

  /** Starts it again, on its port and empty. */
  async start(): Promise<void> {
    await this.#tell("start", 0);
  }

  async stop(): Promise<void> {
    await this.#tell("stop", 0);
  }

  remove(): void {
    this.#launcher.stdin!.end();
  }

  async #tell(...words: unknown[]): Promise<void> {
    this.#launcher.stdin!.write(`${JSON.stringify(words)}\n`);
    await this.#read();
  }

  async #read(): Promise<unknown> {
    const { value, done } = await this.#lines.next();
    if (done) throw new Error("no server was started: run the tests with `make test`");
    return JSON.parse(value);
  }
}

export async function appService(env: NodeJS.ProcessEnv): Promise<Service> {
  const port = await freePort();
  const main = join(HERE, "dist/src/main.js");
  return new Service("app", port, process.execPath, [main], { PORT: String(port), ...env });
}

/** A port below those that the kernel gives to clients, so that it is still free for a restart. */
async function freePort(): Promise<number> {
  for (;;) {
    const port = 20_000 + Math.floor(Math.random() * 12_000);
    if (!(await answers(port))) return port;
  }
}

function answers(port: number): Promise<boolean> {
  return new Promise((done) => {
    const socket = connect({ port, host: "127.0.0.1" });
    socket.once("error", () => done(false));
    socket.once("connect", () => {
      socket.destroy();
      done(true);
    });
  });
}
