/** Apps limited by the package's middleware, and by libraries whose store is the package's. */

import { createRequire } from "node:module";
import type { AddressInfo, Server as NetServer } from "node:net";

import fastifyLimit from "@fastify/rate-limit";
import { createAdaptorServer } from "@hono/node-server";
import express from "express";
// It has no types of its own.
// @ts-expect-error
import express4 from "express-4";
import { rateLimit, type Store as ExpressStore } from "express-rate-limit";
import Fastify, { type FastifyInstance } from "fastify";
import Fastify4 from "fastify-4";
import { Hono } from "hono";
import { rateLimiter, type Store as HonoStore } from "hono-rate-limiter";
import type { Client, Limiter, Policy, Server } from "tokenbucket-redis";
import { rateLimit as ourExpress } from "tokenbucket-redis/express";
import { TokenBucketStore as OurExpressStore } from "tokenbucket-redis/express-rate-limit";
import { rateLimit as ourFastify } from "tokenbucket-redis/fastify";
import { tokenBucketStore } from "tokenbucket-redis/fastify-rate-limit";
import { TokenBucketStore as OurHonoStore } from "tokenbucket-redis/hono-rate-limiter";

export interface Place {
  server: Server;
  client: Client;
  limiter: Limiter;
  options: { prefix?: string; onError?: Policy };
}

const rateLimit7 = createRequire(import.meta.url)("express-rate-limit-7").rateLimit as typeof rateLimit;

/** Listening on a port of its own, with one route that is limited under that name. */
export const ADAPTERS: Record<string, (place: Place, name: string) => Promise<number>> = {
  express: (place, name) => expressApp(express, ourExpress(place.limiter, keyed(name))),
  "express-4": (place, name) => expressApp(express4, ourExpress(place.limiter, keyed(name))),
  fastify: (place, name) => byHook(Fastify, place, name),
  "fastify-4": (place, name) => byHook(Fastify4 as never, place, name),
  "express-rate-limit": (place, name) =>
    byExpress(rateLimit, place, name, new OurExpressStore(place.server, place.options)),
  "express-rate-limit-7": (place, name) =>
    byExpress(rateLimit7, place, name, new OurExpressStore(place.server, place.options)),
  "fastify-rate-limit": (place, name) =>
    byFastify(place, name, { store: tokenBucketStore(place.server, place.options) }),
  "hono-rate-limiter": (place, name) => byHono(place, name, new OurHonoStore(place.server, place.options)),
};

/** Without a name, the default: by the address that the proxy on this machine tells. */
const keyed = (name?: string) => (name === undefined ? {} : { key: () => name });

function byHook(make: typeof Fastify, { limiter }: Place, name?: string): Promise<number> {
  return fastifyApp(make, (app) => app.addHook("onRequest", ourFastify(limiter, keyed(name))));
}

const PERIOD_MS: Record<string, number> = { s: 1000, m: 60_000, h: 3_600_000 };

/** The libraries' words for a bucket that fills from empty in a window. */
function windowOf({ limiter }: Place): { limit: number; windowMs: number } {
  const { capacity, rate } = limiter.limit;
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
function expressApp(make: typeof express, limit: express.RequestHandler): Promise<number> {
  const app = make();
  app.set("trust proxy", "loopback");
  app.use(limit);
  app.get("/", (_request, response) => void response.send("passed"));
  return listening(app.listen(ANYWHERE as never));
}

async function fastifyApp(make: typeof Fastify, limit: (app: FastifyInstance) => unknown): Promise<number> {
  const app = make({ trustProxy: "loopback" });
  await limit(app);
  app.get("/", async () => "passed");
  return Number(new URL(await app.listen(ANYWHERE)).port);
}

function listening(server: NetServer): Promise<number> {
  return new Promise((ready) => server.once("listening", () => ready((server.address() as AddressInfo).port)));
}
