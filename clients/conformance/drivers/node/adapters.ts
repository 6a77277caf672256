/** Apps limited by libraries whose store is the package's, or the library's own over Redis. */

import { createRequire } from "node:module";
import type { AddressInfo, Server as NetServer } from "node:net";

import fastifyLimit from "@fastify/rate-limit";
import { createAdaptorServer } from "@hono/node-server";
import express from "express";
import { rateLimit, type Store as ExpressStore } from "express-rate-limit";
import Fastify, { type FastifyInstance } from "fastify";
import { Hono } from "hono";
import { RedisStore as HonoRedisStore, rateLimiter, type Store as HonoStore } from "hono-rate-limiter";
import type { Redis } from "ioredis";
import { RedisStore as ExpressRedisStore } from "rate-limit-redis";
import type { Client, Limit, Policy, Server } from "tokenbucket-redis";
import { TokenBucketStore as OurExpressStore } from "tokenbucket-redis/express-rate-limit";
import { tokenBucketStore } from "tokenbucket-redis/fastify-rate-limit";
import { TokenBucketStore as OurHonoStore } from "tokenbucket-redis/hono-rate-limiter";

export interface Place {
  server: Server;
  /** The libraries' own stores are used with ioredis. */
  client: Client;
  limit: Limit;
  options: { prefix?: string; onError?: Policy };
}

const rateLimit7 = createRequire(import.meta.url)("express-rate-limit-7").rateLimit as typeof rateLimit;

/** Listening on a port of its own, with one route that is limited under that name. */
export const ADAPTERS: Record<string, (place: Place, name: string) => Promise<number>> = {
  "express-rate-limit": (place, name) => byExpress(rateLimit, place, name, ourExpressStore(place)),
  "express-rate-limit-7": (place, name) => byExpress(rateLimit7, place, name, ourExpressStore(place)),
  "express-rate-limit with its Redis store": (place, name) =>
    byExpress(rateLimit, place, name, new ExpressRedisStore({ sendCommand: (...words) => call(place, words) })),
  "fastify-rate-limit": (place, name) =>
    byFastify(place, name, { store: tokenBucketStore(place.server, place.options) }),
  "fastify-rate-limit with its Redis store": (place, name) => byFastify(place, name, { redis: place.client }),
  "hono-rate-limiter": (place, name) => byHono(place, name, new OurHonoStore(place.server, place.options)),
  "hono-rate-limiter with its Redis store": (place, name) => byHono(place, name, honoRedisStore(place)),
};

function ourExpressStore({ server, options }: Place): ExpressStore {
  return new OurExpressStore(server, options);
}

function call({ client }: Place, words: string[]): Promise<any> {
  return (client as Redis).call(...(words as [string, ...string[]]));
}

function honoRedisStore(place: Place): HonoStore {
  const client = {
    scriptLoad: (script: string) => call(place, ["SCRIPT", "LOAD", script]),
    evalsha: (sha: string, keys: string[], words: unknown[]) =>
      call(place, ["EVALSHA", sha, String(keys.length), ...keys, ...words.map(String)]),
    decr: (key: string) => call(place, ["DECR", key]),
    del: (key: string) => call(place, ["DEL", key]),
  };
  return new HonoRedisStore({ client });
}

const PERIOD_MS: Record<string, number> = { s: 1000, m: 60_000, h: 3_600_000 };

/** The libraries' words for a bucket that fills from empty in a window. */
function windowOf({ limit: { capacity, rate } }: Place): { limit: number; windowMs: number } {
  const [, count = "", unit = ""] = /^([\d.]+)\/(\w)$/.exec(String(rate)) ?? [];
  return { limit: Number(capacity), windowMs: (Number(capacity) * PERIOD_MS[unit]!) / Number(count) };
}

function byExpress(limiting: typeof rateLimit, place: Place, name: string, store: ExpressStore): Promise<number> {
  const options = { store, keyGenerator: () => name, standardHeaders: true };
  return expressApp(express, limiting({ ...windowOf(place), ...options }));
}

function byHono(place: Place, name: string, store: HonoStore): Promise<number> {
  const app = new Hono();
  app.use(rateLimiter({ ...windowOf(place), store, keyGenerator: () => name }));
  app.get("/", (c) => c.text("passed"));
  return listening(createAdaptorServer(app).listen(ANYWHERE));
}

function byFastify(place: Place, name: string, store: object): Promise<number> {
  const { limit, windowMs } = windowOf(place);
  const options = { max: limit, timeWindow: windowMs, keyGenerator: () => name, enableDraftSpec: true };
  return fastifyApp(Fastify, (app) => app.register(fastifyLimit, { ...options, ...store }));
}

const ANYWHERE = { port: 0, host: "127.0.0.1", backlog: 8192 };

/** An app with one route behind the handler, on a port of its own. */
export function expressApp(make: typeof express, limit: express.RequestHandler): Promise<number> {
  const app = make();
  app.set("trust proxy", "loopback");
  app.use(limit);
  app.get("/", (_request, response) => void response.send("passed"));
  return listening(app.listen(ANYWHERE as never));
}

export async function fastifyApp(make: typeof Fastify, limit: (app: FastifyInstance) => unknown): Promise<number> {
  const app = make({ trustProxy: "loopback" });
  await limit(app);
  app.get("/", async () => "passed");
  return Number(new URL(await app.listen(ANYWHERE)).port);
}

function listening(server: NetServer): Promise<number> {
  return new Promise((ready) => server.once("listening", () => ready((server.address() as AddressInfo).port)));
}
