/** Calendar rates are read as all packages and the module read them. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { BadArgument, Limiter } from "tokenbucket-redis";
import { FakeServer } from "tokenbucket-redis/testing";

const text = readFileSync(new URL("../../conformance/rates.txt", import.meta.url), "utf8");
const lines = text.split("\n").filter((line) => line !== "" && !line.startsWith("#"));

for (const line of lines) {
  const [rate = "", since, until] = line.split(" ");

  test(`rate ${line}`, async () => {
    const limit = { capacity: 10, rate };
    if (since === undefined || until === undefined) {
      assert.throws(() => new Limiter(new FakeServer(), limit), BadArgument);
      return;
    }
    const { resetAfterMs } = await new Limiter(new FakeServer(new Date(since)), limit).take("a", 10);
    assert.equal(resetAfterMs, Date.parse(until) - Date.parse(since));
  });
}
