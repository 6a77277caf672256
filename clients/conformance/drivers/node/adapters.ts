/** Apps limited by the package's middleware. */

import type { Server as NetServer } from "node:net";

import express from "express";
import Fastify from "fastify";
import type { Limiter } from "tokenbucket-redis";
import { rateLimit as ourExpress } from "tokenbucket-redis/express";
import { rateLimit as ourFastify } from "tokenbucket-redis/fastify";

const ANYWHERE = { port: 0, host: "127.0.0.1", backlog: 8192 };

/** Without a name, the default: by the address that the proxy on this machine tells. */
const keyed = (name?: string) => (name === undefined ? {} : { key: () => name });

/** Listening on a port of its own, with one route that is limited under that name. */
export const ADAPTERS: Record<string, (limiter: Limiter, name?: string) => Promise<number>> = {
  async express(limiter, name) {
    const app = express();
    app.set("trust proxy", "loopback");
    app.use(ourExpress(limiter, keyed(name)));
    app.get("/", (_request, response) => void response.send("passed"));
    const server: NetServer = app.listen(ANYWHERE as never);
    await new Promise((ready) => server.once("listening", ready));
    return (server.address() as { port: number }).port;
  },
  async fastify(limiter, name) {
    const app = Fastify({ trustProxy: "loopback" });
    app.addHook("onRequest", ourFastify(limiter, keyed(name)));
    app.get("/", async () => "passed");
    return Number(new URL(await app.listen(ANYWHERE)).port);
  },
};
