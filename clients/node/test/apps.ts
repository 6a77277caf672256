/** Applications that tests send requests to. */

import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo, Server } from "node:net";
import type { TestContext } from "node:test";

import type { ErrorRequestHandler, Express } from "express";
import type { Policy } from "tokenbucket-redis";

/** Serves it on a free port until the end of the test; errors are answered with their text. Returns its URL. */
export async function serveExpress(t: TestContext, app: Express): Promise<string> {
  app.use(((error: Error, _request, response, _next) => {
    response.status(500).send(`${error.name}: ${error.message}`);
  }) satisfies ErrorRequestHandler);
  return `http://127.0.0.1:${await portOf(t, createServer(app))}`;
}

/** Makes it listen until the end of the test. Returns the free port that it has. */
export async function portOf(t: TestContext, server: Server): Promise<number> {
  await once(server.listen(0, "127.0.0.1"), "listening");
  t.after(() => void server.close());
  return (server.address() as AddressInfo).port;
}

/** Requests to an app. */
export type Asked = ReturnType<typeof askAt>;

export function askAt(url: string) {
  const get = async (path = "/", headers: Record<string, string> = {}) => {
    const response = await fetch(url + path, { headers });
    const text = await response.text();
    return { status: response.status, text, header: (name: string) => response.headers.get(name) };
  };
  /** How many of so many requests, one after the other, pass. */
  const passed = async (times: number, ...request: Parameters<typeof get>) => {
    let passed = 0;
    for (let i = 0; i < times; i++) if ((await get(...request)).status === 200) passed++;
    return passed;
  };
  return { get, passed };
}

/** An app by each policy: local, open, closed, throw. */
export const byPolicy = <App>(start: (onError: Policy) => Promise<App>) =>
  Promise.all((["local", "open", "closed", "throw"] as const).map(start));

export const pass =
  (...requests: Parameters<Asked["passed"]>) =>
  ({ passed }: Asked) =>
    passed(...requests);

/** A header of the answer to one more request. */
export const header =
  (name: string) =>
  async ({ get }: Asked) =>
    (await get()).header(name);

/** What users write as a limit, and how many of five requests pass; from the environment comes a string. */
export const LIMITS: [unknown, number][] = [
  ["3", 3],
  [" 3 ", 3],
  ["3.9", 3],
  ["3e0", 3],
  ["0x3", 3],
  ["", 0],
  ["0", 0],
  [-1, 0],
  [3.9, 3],
  [Infinity, 5],
];
