import express from "express";
import { parseLimit } from "tokenbucket-redis";

import type { AppSettings } from "./app.js";

export interface Settings extends AppSettings {
  host: string;
  port: number;
  redisUrl: string;
}

/** Reads the environment; throws an Error that names the variable. */
export function readSettings(env: NodeJS.ProcessEnv): Settings {
  function read<T>(name: string, otherwise: string, parse: (text: string) => T): T {
    try {
      return parse(env[name] || otherwise);
    } catch (error) {
      throw new Error(`${name}: ${(error as Error).message}`);
    }
  }
  return {
    host: read("HOST", "127.0.0.1", String),
    port: read("PORT", "3000", wholeNumber(1, 65535)),
    redisUrl: read("REDIS_URL", "redis://127.0.0.1:6379", url),
    redisTimeoutMs: read("REDIS_TIMEOUT_MS", "100", wholeNumber(1, 60_000)),
    trustedProxies: read("TRUSTED_PROXIES", "", proxies),
    onError: read("ON_ERROR", "local", policy),
    ipLimit: read("IP_LIMIT", "20 10/s", parseLimit),
    searchLimit: read("SEARCH_LIMIT", "5 2/s", parseLimit),
    exportLimit: read("EXPORT_LIMIT", "10000 1000/s", parseLimit),
  };
}

function wholeNumber(least: number, most: number) {
  return (text: string): number => {
    const number = Number(text);
    if (/^\d+$/.test(text) && number >= least && number <= most) return number;
    throw new Error(`'${text}' is not a whole number from ${least} to ${most}`);
  };
}

function proxies(text: string): string[] {
  const names = text.split(",").map((name) => name.trim()).filter(Boolean);
  for (const name of names) {
    // Express would take both, and then anybody could choose a bucket with a header.
    if (name === "true" || /^\d+$/.test(name)) {
      throw new Error(`'${name}' trusts everybody; name the proxies, like '10.0.0.0/8'`);
    }
  }
  express().set("trust proxy", names); // throws for what is no address, network or name
  return names;
}

function policy(text: string): "local" | "open" | "closed" {
  if (text === "local" || text === "open" || text === "closed") return text;
  throw new Error(`'${text}' is neither 'local' nor 'open' nor 'closed'`);
}

function url(text: string): string {
  if (/^rediss?:\/\//.test(text) && URL.canParse(text)) return text;
  throw new Error(`'${text}' is not a URL like redis://127.0.0.1:6379`);
}
