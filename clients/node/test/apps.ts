/** Applications that tests send requests to. */

import type { AddressInfo } from "node:net";
import type { TestContext } from "node:test";

import type { ErrorRequestHandler, Express } from "express";

/** Serves it on a free port until the end of the test; errors are answered with their text. Returns its URL. */
export async function serveExpress(t: TestContext, app: Express): Promise<string> {
  app.use(((error: Error, _request, response, _next) => {
    response.status(500).send(`${error.name}: ${error.message}`);
  }) satisfies ErrorRequestHandler);
  const listening = app.listen(0, "127.0.0.1");
  await new Promise((ready) => listening.once("listening", ready));
  t.after(() => new Promise((closed) => listening.close(closed)));
  return `http://127.0.0.1:${(listening.address() as AddressInfo).port}`;
}

export interface Answer {
  status: number;
  text: string;
  header(name: string): string | null;
}

/** Requests to an app. */
export interface Asked {
  get(path?: string, headers?: Record<string, string>): Promise<Answer>;
  /** How many of so many requests, one after the other, pass. */
  passed(times: number, path?: string, headers?: Record<string, string>): Promise<number>;
}

export function askAt(url: string): Asked {
  const get = async (path = "/", headers: Record<string, string> = {}) => {
    const response = await fetch(url + path, { headers });
    const text = await response.text();
    return { status: response.status, text, header: (name: string) => response.headers.get(name) };
  };
  return {
    get,
    async passed(times, path, headers) {
      let passed = 0;
      for (let i = 0; i < times; i++) if ((await get(path, headers)).status === 200) passed++;
      return passed;
    },
  };
}

export const pass =
  (times: number, path?: string, headers?: Record<string, string>) =>
  ({ passed }: Asked) =>
    passed(times, path, headers);

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
