import express, { type Express } from "express";
import type { Redis } from "ioredis";
import { Limiter, Server, type Limit } from "tokenbucket-redis";
import { rateLimit } from "tokenbucket-redis/express";

export interface AppSettings {
  /** Whose X-Forwarded-For is believed: addresses, networks, or names that Express knows. */
  trustedProxies: string[];
  onError: "local" | "open" | "closed";
  redisTimeoutMs: number;
  ipLimit: Limit;
  searchLimit: Limit;
  exportLimit: Limit;
}

export function createApp(redis: Redis, settings: AppSettings): Express {
  const app = express();
  // A list, never `true` or a number of hops: those believe what a client writes as soon as the
  // app can be reached past its proxy.
  app.set("trust proxy", settings.trustedProxies);
  const { onError, redisTimeoutMs: timeoutMs } = settings;
  const server = new Server(redis, { timeoutMs });
  const limiter = (limit: Limit, prefix: string) => new Limiter(server, limit, { prefix, onError });

  app.get("/healthz", (_req, res) => {
    res.json({ status: "ok" });
  });

  // Everything below: one bucket for each client address.
  app.use(rateLimit(limiter(settings.ipLimit, "tb:ip:")));

  app.get("/", (_req, res) => {
    res.json({ hello: "world" });
  });

  // A limit of its own, whose name tells it from the first one in the headers.
  app.get("/search", rateLimit(limiter(settings.searchLimit, "tb:search:"), { name: "search" }), (req, res) => {
    res.json({ q: req.query.q ?? "" });
  });

  // A cost of its own: one token a row. The cost is checked before it is taken.
  app.get(
    "/export",
    (req, res, next) => {
      if (/^[1-9]\d{0,8}$/.test(String(req.query.rows))) return next();
      res.status(400).json({ error: "rows: is not a whole number of at least 1" });
    },
    rateLimit(limiter(settings.exportLimit, "tb:export:"), { name: "export", cost: (req) => Number(req.query.rows) }),
    (req, res) => {
      res.json({ rows: Number(req.query.rows) });
    },
  );

  return app;
}
