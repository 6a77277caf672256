/** Runs operations with the package for Node, one JSON object a line; see the README.md of the suite. */

import { createInterface } from "node:readline";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import {
  JointLimiter,
  Limiter,
  Server,
  type Amount,
  type Client,
  type Decision,
  type Hold,
  type Policy,
} from "tokenbucket-redis";

import { clientFor, LIBRARIES } from "./clients.js";

// Replies alone go to stdout; a library may have more to say.
console.log = console.error;
setFlagsFromString("--expose-gc");
const collectGarbage = runInNewContext("gc") as () => void;

/** As it comes: the suite is trusted to say what it means. */
type Request = any;

/** A limiter of either kind, as `limiters` keeps it. */
type Either = Limiter & JointLimiter;

const servers = new Map<string, { client: Client; server: Server }>();
const limiters = new Map<string, Either>();
const holds = new Map<string, Hold>();

const COMMANDS: Record<string, (request: Request) => unknown> = {
  async server({ name, client: library, timeout_ms, retry_every_ms, by, ...place }) {
    const client = await clientFor(library, place);
    const log = (line: string) => console.error(line);
    const server = new Server(client, { timeoutMs: timeout_ms, retryEveryMs: retry_every_ms, by, log });
    servers.set(name, { client, server });
    return {};
  },
  limiter({ name, server, capacity, rate, batch, remember_denials, shadow, ...options }) {
    const kept = { batch, rememberDenials: remember_denials, shadow, ...policy(options) };
    const limiter = new Limiter(find(servers, server).server, { capacity, rate }, kept);
    limiters.set(name, limiter as Either);
    return {};
  },
  joint({ name, server, limits, shadow, ...options }) {
    const all = Object.entries(limits as Record<string, [Amount, Amount]>);
    const each = Object.fromEntries(all.map(([which, [capacity, rate]]) => [which, { capacity, rate }]));
    const limiter = new JointLimiter(find(servers, server).server, each, { ...policy(options), shadow });
    limiters.set(name, limiter as Either);
    return {};
  },
  ...Object.fromEntries(["take", "take_up_to", "charge", "give", "wait", "take_all", "take_any"].map((op) => [op, call])),
  async reset({ on, name }) {
    await find(limiters, on).reset(name);
    return {};
  },
  hold: keepHold,
  hold_any: keepHold,
  async settle({ hold, used }) {
    return told(await find(holds, hold).settle(used));
  },
  lost({ hold }) {
    const { lost, decision } = find(holds, hold);
    return { lost, granted: decision.granted };
  },
  /** Keeps the event loop from hearing anything. */
  busy({ ms }) {
    const end = performance.now() + ms;
    while (performance.now() < end);
    return {};
  },
  async hold_cancelled({ on, name, amount, ttl_ms, count }) {
    const cancelled = new Error("cancelled");
    const leaving: ((reason: Error) => void)[] = [];
    const work = () =>
      new Promise<never>((_, leave) => {
        if (leaving.push(leave) === count) for (const one of leaving) one(cancelled);
      });
    const limiter = find(limiters, on);
    const one = () => limiter.withHold(name, amount, work, { ttlMs: ttl_ms });
    const seen = await Promise.allSettled(Array.from({ length: count }, one));
    for (const { reason } of seen as PromiseRejectedResult[]) if (reason !== cancelled) throw reason;
    return {};
  },
  many,
  async cost({ on, server, command, bare, count, concurrency }) {
    const limiter = find(limiters, on);
    const client = find(servers, server).client as any;
    // Words of its own for each call, as an application has them.
    const execute = client.call ? () => client.call(...command) : () => client.sendCommand([...command]);
    async function calls() {
      for (let i = 0; i < count / concurrency; i++) await (bare ? execute() : limiter.take("user"));
    }
    const began = performance.now();
    await Promise.all(Array.from({ length: concurrency }, calls));
    return { per_call_us: ((performance.now() - began) * 1000) / count };
  },
  async http({ on, framework, name }) {
    // The frameworks are loaded when a scenario asks for one.
    const { ADAPTERS } = await import("./adapters.js");
    const serve = ADAPTERS[framework] ?? unsupported();
    return { port: await serve(find(limiters, on), name) };
  },
  degraded: ({ server }) => ({ count: find(servers, server).server.degradedCount }),
  memory() {
    collectGarbage();
    return { bytes: process.memoryUsage().heapUsed };
  },
  async close({ name }) {
    await limiters.get(name)?.close?.();
    servers.get(name)?.server.close();
    return {};
  },
};

function policy({ prefix, on_error }: { prefix?: string; on_error?: string }) {
  return { prefix, onError: (on_error === "raise" ? "throw" : on_error) as Policy | undefined };
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

async function keepHold(request: Request) {
  const hold = await holdOf(request, request.name);
  holds.set(request.as, hold);
  return told(hold.decision);
}

function turnOf({ max_wait_ms, share, weight, limit }: Request, signal?: AbortSignal) {
  return { signal, maxWaitMs: max_wait_ms, share, weight, ...limitOf(limit) };
}

function limitOf(limit?: [Amount, Amount]) {
  return limit && { limit: { capacity: limit[0], rate: limit[1] } };
}

function holdOf(request: Request, name: string, signal?: AbortSignal): Promise<Hold> {
  const limiter = find(limiters, request.on);
  const { ttl_ms: ttlMs, alternatives } = request;
  if (alternatives) return limiter.holdAny(name, alternatives, { ttlMs, signal });
  return limiter.hold(name, request.amount, { ttlMs, ...turnOf(request, signal) });
}

async function ask(op: string, request: Request, name: string, signal?: AbortSignal): Promise<Decision> {
  const { on, cost = 1, amount, max_wait_ms } = request;
  const limiter = find(limiters, on);
  const turn = turnOf(request, signal);
  const calls: Record<string, () => Promise<Decision>> = {
    take: () => limiter.take(name, cost, turn),
    take_up_to: () => limiter.takeUpTo(name, amount, { signal }),
    charge: () => limiter.charge(name, amount, { signal }),
    give: () => limiter.give(name, amount, { signal, ...limitOf(request.limit) }),
    hold: async () => (await holdOf(request, name, signal)).decision,
    wait: () => limiter.wait(name, cost, { signal, maxWaitMs: max_wait_ms }),
    take_any: () => limiter.takeAny(name, request.alternatives, { signal }),
    take_all: () => limiter.takeAll(name, request.costs, turn),
  };
  return (calls[op] ?? unsupported)();
}

/** A caller's own deadline. Timers count milliseconds, so that of microseconds is looked at in each turn. */
function within(deadlineUs?: number): { signal?: AbortSignal; stop(): void } {
  if (deadlineUs === undefined) return { stop() {} };
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
  const began = performance.now();
  const end = for_ms ? began + for_ms : Infinity;

  async function one(name: string) {
    const { signal, stop } = within(deadline_us);
    try {
      const decision = await ask(op, request, name, signal);
      if (decision.allowed) seen.allowed++;
      else seen.denied++;
      if (decision.degraded) seen.degraded++;
    } catch (error) {
      const kind = kindOf(error);
      if (kind === "Cancelled") seen.cancelled++;
      else seen.errors[kind] = (seen.errors[kind] ?? 0) + 1;
    }
    stop();
    seen.calls++;
  }

  async function worker() {
    while (begun < count) {
      const number = begun++;
      const now = performance.now();
      const due = per_second ? began + (number * 1000) / per_second : now;
      if (Math.max(due, now) >= end) return;
      if (due > now) await new Promise((resolve) => setTimeout(resolve, due - now));
      await one(names ? `n${number % names}` : request.name);
    }
  }

  await Promise.all(Array.from({ length: Math.min(concurrency, count) }, worker));
  return { ...seen, per_call_us: ((performance.now() - began) * 1000) / seen.calls };
}

function unsupported(): never {
  throw Object.assign(new Error("not in this language"), { name: "Unsupported" });
}

function told(decision: Decision): object {
  const { retryAfterMs, each, ...same } = decision;
  const own = { retry_after_ms: retryAfterMs, ...same };
  if (Object.keys(each).length === 0) return own;
  return { ...own, each: Object.fromEntries(Object.entries(each).map(([which, one]) => [which, told(one)])) };
}

const KINDS = "ServerAway ModuleMissing CrossSlot Denied ReplyLost BadArgument Cancelled Unsupported".split(" ");

function kindOf(error: unknown): string {
  const name = error instanceof Error ? error.name : "";
  return KINDS.includes(name) ? name : "Other";
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
    say({ id: request.id, error: { kind: kindOf(error), text: (error as Error).message } });
  }
}

createInterface({ input: process.stdin })
  .on("line", (line) => void answer(line))
  .on("close", () => process.exit());
say({ ready: true, clients: LIBRARIES });
