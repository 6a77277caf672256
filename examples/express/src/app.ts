import express, { type Express } from "express";
import type { Redis } from "ioredis";

import { clientAddress, rateLimitOn, type RateLimitOptions } from "./rate-limit.js";
import type { Limit } from "./tokenbucket.js";

export interface AppSettings {
  /** Whose X-Forwarded-For is believed: addresses, networks, or names that Express knows. */
  trustedProxies: string[];
  onError: NonNullable<RateLimitOptions["onError"]>;
  ipLimit: Limit;
  searchLimit: Limit;
  exportLimit: Limit;
}

export function createApp(redis: Redis, settings: AppSettings): Express {
  const app = express();
  // A list, never `true` or a number of hops: those believe what a client writes as soon as the
  // app can be reached past its proxy.
  app.set("trust proxy", settings.trustedProxies);
  const { onError } = settings;
  const rateLimit = rateLimitOn(redis);

  app.get("/healthz", (_req, res) => {
    res.json({ status: "ok" });
  });

  // Everything below: one bucket for each client address.
  app.use(rateLimit({ ...settings.ipLimit, key: (req) => `tb:ip:${clientAddress(req)}`, onError }));

  app.get("/", (_req, res) => {
    res.json({ hello: "world" });
  });

  // A limit of its own.
  app.get(
    "/search",
    rateLimit({ ...settings.searchLimit, key: (req) => `tb:search:${clientAddress(req)}`, onError }),
    (req, res) => {
      res.json({ q: req.query.q ?? "" });
    },
  );

  // A cost of its own: one token a row. The cost is checked before it is taken.
  app.get(
    "/export",
    (req, res, next) => {
      if (/^[1-9]\d{0,8}$/.test(String(req.query.rows))) return next();
      res.status(400).json({ error: "rows: is not a whole number of at least 1" });
    },
    rateLimit({
      ...settings.exportLimit,
      key: (req) => `tb:export:${clientAddress(req)}`,
      cost: (req) => Number(req.query.rows),
      onError,
    }),
    (req, res) => {
      res.json({ rows: Number(req.query.rows) });
    },
  );

  return app;
}
