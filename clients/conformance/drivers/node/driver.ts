/** Runs operations with the package for Node, one JSON object a line; see the README.md of the suite. */

import type { AddressInfo } from "node:net";
import { createInterface } from "node:readline";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import express from "express";
// It has no types of its own.
// @ts-expect-error
import express4 from "express-4";
import Fastify from "fastify";
import Fastify4 from "fastify-4";
import { RateLimiterRedis } from "rate-limiter-flexible";
import {
  Decision,
  JointDecision,
  JointLimiter,
  Limiter,
  Server,
  type Amount,
  type Client,
  type Hold,
  type Limit,
  type Policy,
} from "tokenbucket-redis";
import { rateLimit as byExpress } from "tokenbucket-redis/express";
import { rateLimit as byFastify } from "tokenbucket-redis/fastify";

import { ADAPTERS, type Place } from "./adapters.js";
import { CLIENTS, clientFor } from "./clients.js";

// Replies alone go to stdout; a library may have more to say.
console.log = console.error;
setFlagsFromString("--expose-gc");
const collectGarbage = runInNewContext("gc") as () => void;

/** As it comes: the suite is trusted to say what it means. */
type Request = any;

const clients = new Map<string, Client>();
const servers = new Map<string, Server>();
const limiters = new Map<string, Limiter>();
/** Where each limiter is, for stores that make their own. */
const places = new Map<string, Place>();
const joints = new Map<string, JointLimiter>();
const holds = new Map<string, Hold>();

const COMMANDS: Record<string, (request: Request) => unknown> = {
  async server({ name, client, timeout_ms, retry_every_ms, fallback, ...place }) {
    const made = await clientFor(client, place);
    clients.set(name, made);
    const server = new Server(made, {
      ...(timeout_ms && { timeoutMs: timeout_ms }),
      ...(retry_every_ms !== undefined && retry_every_ms !== null && { retryEveryMs: retry_every_ms }),
      ...(fallback && { fallback }),
      log: (line) => console.error(line),
    });
    servers.set(name, server);
    return {};
  },
  limiter({ name, server, capacity, rate, batch = 0, remember_denials = 0, ...options }) {
    const limits = { batch: batch ?? 0, rememberDenials: remember_denials ?? 0 };
    const place = { server: find(servers, server), client: find(clients, server), limit: { capacity, rate } };
    places.set(name, { ...place, options: policy(options) });
    limiters.set(name, new Limiter(place.server, place.limit, { ...limits, ...policy(options) }));
    return {};
  },
  joint({ name, server, limits, ...options }) {
    const all = Object.entries(limits as Record<string, [Amount, Amount]>);
    const each = all.map(([which, [capacity, rate]]) => [which, { capacity, rate }] as [string, Limit]);
    joints.set(name, new JointLimiter(find(servers, server), Object.fromEntries(each), policy(options)));
    return {};
  },
  take: call,
  peek: call,
  take_up_to: call,
  charge: call,
  give: call,
  reserve: call,
  wait: call,
  reset: call,
  take_all: call,
  async hold({ on, as, name, amount, ttl_ms, max_wait_ms, share, weight }) {
    const options = { ...(ttl_ms && { ttlMs: ttl_ms }), maxWaitMs: max_wait_ms ?? 0, share, weight };
    const limiter = limiters.get(on);
    const hold = limiter ? limiter.hold(name, amount, options) : find(joints, on).hold(name, amount, options);
    holds.set(as, await hold);
    return told((await hold).decision);
  },
  async settle({ hold, used }) {
    return told(await find(holds, hold).settle(used ?? undefined));
  },
  /** Keeps the event loop from hearing anything. */
  busy({ ms }) {
    const end = performance.now() + ms;
    while (performance.now() < end);
    return {};
  },
  async settle_inside({ on, name, amount, ttl_ms, used }) {
    const settled: Decision[] = [];
    const work = async (hold: Hold) => void settled.push(await hold.settle(used), await hold.settle(used));
    await find(limiters, on).withHold(name, amount, work, { ttlMs: ttl_ms });
    return told(settled[0]);
  },
  async hold_cancelled({ on, name, amount, ttl_ms, count }) {
    const hangUp = new AbortController();
    const entered: Promise<void>[] = [];
    const all = Array.from({ length: count }, () => {
      let enter = () => {};
      entered.push(new Promise((resolve) => (enter = resolve)));
      const work = () => {
        enter();
        return new Promise((_, reject) => hangUp.signal.addEventListener("abort", () => reject(hangUp.signal.reason)));
      };
      const options = ttl_ms ? { ttlMs: ttl_ms } : {};
      const limiter = limiters.get(on);
      const done = limiter
        ? limiter.withHold(name, amount, work, options)
        : find(joints, on).withHold(name, amount, work, options);
      return done.catch((error: unknown) => {
        enter();
        if (error !== hangUp.signal.reason) throw error;
      });
    });
    await Promise.all(entered);
    hangUp.abort();
    await Promise.all(all);
    return {};
  },
  many,
  async cost({ on, server, command, bare, count, concurrency }) {
    const limiter = find(limiters, on);
    const client = find(clients, server) as any;
    // Words of its own for each call, as an application has them.
    const execute = client.call ? () => client.call(...command) : () => client.sendCommand([...command]);
    async function calls() {
      for (let i = 0; i < count / concurrency; i++) await (bare ? execute() : limiter.take("user"));
    }
    const began = performance.now();
    await Promise.all(Array.from({ length: concurrency }, calls));
    return { per_call_us: ((performance.now() - began) * 1000) / count };
  },
  second_runtime: unsupported,
  fork: unsupported,
  async http({ on, framework, name }) {
    const adapt = ADAPTERS[framework];
    if (adapt) return { port: await adapt(find(places, on), name) };
    const serve = FRAMEWORKS[framework];
    if (!serve) return unsupported();
    return { port: await serve(on, name) };
  },
  degraded: ({ server }) => ({ count: find(servers, server).degradedCount }),
  memory() {
    collectGarbage();
    return { bytes: process.memoryUsage().heapUsed };
  },
  async close({ name }) {
    await limiters.get(name)?.close();
    servers.get(name)?.close();
    return {};
  },
};

function policy({ prefix, on_error }: { prefix?: string; on_error?: string }) {
  const onError = on_error === "raise" ? "throw" : (on_error as Policy | undefined);
  return { ...(prefix !== undefined && prefix !== null && { prefix }), ...(onError && { onError }) };
}

function find<T>(named: Map<string, T>, name: string): T {
  const found = named.get(name);
  if (!found) throw new Error(`there is no '${name}'`);
  return found;
}

async function call(request: Request) {
  const { signal, stop } = within(request.deadline_us);
  try {
    return told(await ask(request.do, request, request.name, signal));
  } finally {
    stop();
  }
}

function ask(
  op: string,
  request: Request,
  name: string,
  signal?: AbortSignal,
): Promise<Decision | JointDecision | void> {
  const { on, cost = 1, amount, most, max_wait_ms, share, weight } = request;
  const options = { signal };
  const turn = { signal, maxWaitMs: max_wait_ms ?? 0, share, weight };
  const joint = joints.get(on);
  if (joint) return op === "reset" ? joint.reset(name) : joint.takeAll(name, request.costs, turn);
  const limiter = find(limiters, on);
  switch (op) {
    case "take":
      return limiter.take(name, cost ?? 1, turn);
    case "peek":
      return limiter.peek(name, cost ?? 1, options);
    case "take_up_to":
      return limiter.takeUpTo(name, most ?? cost, options);
    case "charge":
      return limiter.charge(name, amount ?? cost, options);
    case "give":
      return limiter.give(name, amount ?? cost, options);
    case "reserve":
      return limiter.reserve(name, cost ?? 1, { maxWaitMs: max_wait_ms, ...options });
    case "hold":
      return limiter.hold(name, amount, { ttlMs: request.ttl_ms ?? 30_000, ...turn }).then((hold) => hold.decision);
    case "wait":
      return limiter.wait(name, cost ?? 1, { maxWaitMs: max_wait_ms, ...options });
    case "reset":
      return limiter.reset(name);
    default:
      throw new Error(`no operation '${op}'`);
  }
}

/** A caller's own deadline. Timers count milliseconds, so that of microseconds is looked at in each turn. */
function within(deadlineUs: number | null | undefined): {
  signal?: AbortSignal;
  stop(): void;
} {
  if (deadlineUs === null || deadlineUs === undefined) return { stop() {} };
  const controller = new AbortController();
  const abort = () => controller.abort(Object.assign(new Error("the caller's deadline"), { name: "Cancelled" }));
  if (deadlineUs >= 2000) {
    const timer = setTimeout(abort, deadlineUs / 1000);
    return { signal: controller.signal, stop: () => clearTimeout(timer) };
  }
  const end = performance.now() + deadlineUs / 1000;
  let looking: NodeJS.Immediate = setImmediate(function look() {
    if (performance.now() >= end) abort();
    else looking = setImmediate(look);
  });
  return { signal: controller.signal, stop: () => clearImmediate(looking) };
}

async function many(request: Request) {
  const { op, names, count = Infinity, concurrency = 1, for_ms, per_second, deadline_us } = request;
  const seen = { calls: 0, allowed: 0, denied: 0, degraded: 0, cancelled: 0, errors: {} as Record<string, number> };
  let begun = 0;
  let slowestMs = 0;
  const began = performance.now();
  const end = for_ms ? began + for_ms : Infinity;
  const most = count ?? Infinity;

  async function one() {
    const name = names ? `n${begun % names}` : request.name;
    begun++;
    const { signal, stop } = within(deadline_us);
    const since = performance.now();
    try {
      const decision = (await ask(op, request, name, signal)) as Decision | undefined;
      if (!decision || decision.allowed) seen.allowed++;
      else seen.denied++;
      if (decision?.degraded) seen.degraded++;
    } catch (error) {
      const kind = kindOf(error);
      if (kind === "Cancelled") seen.cancelled++;
      else seen.errors[kind] = (seen.errors[kind] ?? 0) + 1;
    }
    stop();
    seen.calls++;
    slowestMs = Math.max(slowestMs, performance.now() - since);
  }

  /** Whether one more is to begin; with a pace, only when it is due. */
  async function isNext() {
    for (;;) {
      const now = performance.now();
      if (begun >= most || now >= end) return false;
      if (!per_second || begun < ((now - began) * per_second) / 1000) return true;
      await new Promise((due) => setTimeout(due, 1));
    }
  }

  async function worker() {
    while (await isNext()) await one();
  }

  if (!per_second && concurrency >= most) await Promise.all(Array.from({ length: most }, one));
  else await Promise.all(Array.from({ length: Math.min(concurrency, most) }, worker));
  const elapsedMs = performance.now() - began;
  return { ...seen, slowest_ms: slowestMs, elapsed_ms: elapsedMs, per_call_us: (elapsedMs * 1000) / seen.calls };
}

/** Apps with one route, limited by the package's own middleware; and by another's, to compare. */
const FRAMEWORKS: Record<string, (on: string, name?: string) => Promise<number>> = {
  express: (on, name) => expressApp(express, byExpress(find(limiters, on), keyed(name))),
  "express-4": (on, name) => expressApp(express4, byExpress(find(limiters, on), keyed(name))),
  "express with rate-limiter-flexible"(on, name) {
    const storeClient = find(clients, "s");
    const { capacity, rate } = find(limiters, on).limit;
    const duration = Number(capacity) / parseFloat(String(rate));
    const limiter = new RateLimiterRedis({ storeClient, useRedisPackage: true, points: Number(capacity), duration });
    return expressApp(express, (_request, response, next) => {
      limiter.consume(name!).then(
        () => next(),
        (reason) => void response.status(reason instanceof Error ? 500 : 429).end(),
      );
    });
  },
  fastify: (on, name) => fastifyApp(Fastify, byFastify(find(limiters, on), keyed(name))),
  "fastify-4": (on, name) => fastifyApp(Fastify4 as never, byFastify(find(limiters, on), keyed(name))),
};

/** Without a name, the default: by the address that the proxy on this machine tells. */
function keyed(name?: string): { key?: () => string } {
  return name === undefined ? {} : { key: () => name };
}

function expressApp(make: typeof express, limit: express.RequestHandler): Promise<number> {
  const app = make();
  app.set("trust proxy", "loopback");
  app.use(limit);
  app.get("/", (_request, response) => void response.send("passed"));
  return new Promise((ready) => {
    const listening = app.listen({ port: 0, host: "127.0.0.1", backlog: 8192 } as never);
    listening.once("listening", () => ready((listening.address() as AddressInfo).port));
  });
}

async function fastifyApp(make: typeof Fastify, limit: ReturnType<typeof byFastify>): Promise<number> {
  const app = make({ trustProxy: "loopback" });
  app.addHook("onRequest", limit);
  app.get("/", async () => "passed");
  const listening = await app.listen({ port: 0, host: "127.0.0.1", backlog: 8192 });
  return Number(new URL(listening).port);
}

function unsupported(): never {
  throw Object.assign(new Error("not in this language"), { name: "Unsupported" });
}

function told(decision: Decision | void): object {
  if (!decision) return {};
  const { allowed, granted, remaining, retryAfterMs, resetAfterMs, degraded, lost } = decision;
  const own = {
    allowed,
    granted,
    remaining,
    retry_after_ms: retryAfterMs,
    reset_after_ms: resetAfterMs,
    degraded,
    lost,
  };
  if (!(decision instanceof JointDecision)) return own;
  return { ...own, each: Object.fromEntries(Object.entries(decision.each).map(([which, one]) => [which, told(one)])) };
}

const KINDS = new Set([
  "ServerAway",
  "ModuleMissing",
  "CrossSlot",
  "Denied",
  "ReplyLost",
  "BadArgument",
  "Cancelled",
  "Unsupported",
]);

function kindOf(error: unknown): string {
  const name = error instanceof Error ? error.name : "";
  return KINDS.has(name) ? name : "Other";
}

function say(line: object): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

async function answer(line: string): Promise<void> {
  const request = JSON.parse(line) as Request;
  try {
    const command = COMMANDS[request.do] ?? unsupported;
    say({ id: request.id, ok: await command(request) });
  } catch (error) {
    say({
      id: request.id,
      error: { kind: kindOf(error), text: error instanceof Error ? error.message : String(error) },
    });
  }
}

createInterface({ input: process.stdin })
  .on("line", (line) => void answer(line))
  .on("close", () => process.exit());
say({ ready: true, clients: Object.keys(CLIENTS) });
