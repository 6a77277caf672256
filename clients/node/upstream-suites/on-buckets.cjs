/** Loaded before tests of @fastify/rate-limit: its two stores are ours, and Redis is the server of `PORT`. */

"use strict";

const Module = require("node:module");
const { after, beforeEach, mock } = require("node:test");

const { tokenBucketStore } = require("tokenbucket-redis/fastify-rate-limit");
const { FakeServer } = require("tokenbucket-redis/testing");
const { Server } = require("tokenbucket-redis");
const Redis = require("ioredis-5");

/** In the place of the store in memory: its time is that of `Date`, which the tests mock. */
class ServerInMemory extends FakeServer {
  #at = Date.now();

  send(words) {
    const now = Date.now();
    this.advance(now - this.#at);
    this.#at = now;
    return super.send(words);
  }
}

const clients = [];

// A test that fails neither empties the server, resets the time nor closes its client.
if (process.env.NODE_TEST_CONTEXT) {
  beforeEach(async () => {
    mock.timers.reset();
    const client = new Redis({ port: Number(process.env.PORT) });
    await client.flushall();
    client.disconnect();
  });
  after(() => clients.forEach((client) => client.disconnect()));
}

class OurRedis extends Redis {
  constructor(options) {
    super({ ...options, port: options.port ?? Number(process.env.PORT) });
    this.on("error", () => {});
    clients.push(this);
  }
}

function onBuckets({ redis, nameSpace, ...settings }) {
  if (settings.store) return settings;
  const place = redis ? new Server(redis, { timeoutMs: 5000, log() {} }) : new ServerInMemory();
  const prefix = nameSpace === undefined ? {} : { prefix: nameSpace };
  return { ...settings, store: tokenBucketStore(place, { ...prefix, onError: "throw" }) };
}

const load = Module.prototype.require;

Module.prototype.require = function (name) {
  if (name === "ioredis") return OurRedis;
  const loaded = load.call(this, name);
  return name.endsWith("../index") && loaded.fastifyRateLimit ? pluginOf(loaded) : loaded;
};

function pluginOf(library) {
  const plugin = async (app, settings) => library(app, onBuckets(settings));
  for (const key of Reflect.ownKeys(library)) {
    if (key !== "length" && key !== "name") plugin[key] = library[key];
  }
  return plugin;
}
