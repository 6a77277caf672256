/** The fake beside a real server: the same calls at the same times get the same decisions. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Limiter } from "tokenbucket-redis";
import { FakeServer } from "tokenbucket-redis/testing";

import { emptiedClientFor, sharedServer } from "./servers.js";

const server = await sharedServer();

type Sequence = ReturnType<typeof sequenceOf>;

/** A sequence that is the same at each run: a linear congruential generator. */
function sequenceOf(state: number) {
  const below = (n: number): number => {
    state = (state * 1_664_525 + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
  };
  return { below, of: <T>(choices: readonly T[]): T => choices[below(choices.length)]! };
}

/** Calls at random: of the words of a template, A to C are the names of limits and these, the others what `words` say. */
interface Walk {
  templates: string[];
  limits: string[];
  words: Record<string, string[]>;
  pausesMs: number[];
}

const either = (text: string) => text.split("|").map((one) => one.trim());

const STEADILY: Walk = {
  templates: either(`TB.TAKE A SOME | TB.PEEK A SOME | TB.TAKEUPTO A MOST | TB.RESERVE A SOME WAIT | TB.CHARGE A DEBT |
    TB.GIVE A SOME | TB.MTAKE 2 A SOME B SOME | TB.MTAKE 3 C SOME A 1 B SOME | TB.TAKEANY 2 1 A SOME B SOME |
    TB.TAKEANY 4 2 A SOME B 1 C SOME A 1`),
  limits: either(`10 5/s | 3 100/m | 0.5 10/10s | 1000 1/250ms | 2.5 .5 | 10 0.25 | 3 1e-3 | 0.5 7/3s | 1000 1000/h |
    2.5 3/d | 1000 1000`),
  words: {
    SOME: either("0 | 1 | 2 | 0.1 | 0.3 | 7 | 100"),
    DEBT: either("0 | 1 | 2 | 0.1 | 0.3 | 7 | 100 | 1e12"),
    MOST: either("1 | 4 | 9"),
    WAIT: either("0 | 100 | 1500 | 5000"),
  },
  pausesMs: [0, 0, 1, 10, 0.25, 333, 2500, 60_000], // microseconds, too: 0.25 of a millisecond
};
const HOUR_MS = 3_600_000;
const BY_THE_CALENDAR: Walk = {
  ...STEADILY,
  limits: either(`10 5@10s | 3 1@250ms | 0.5 7@15m+05:45 | 1000 1000@d+09:00 | 2.5 0.5@2d-03:30 | 10 4@w-11:00 |
    3 3@mo+14:00 | 0.5 1@y | 1000 20@mo+14d-05:00 | 2.5 10@3mo+30d | 10 9@mo+28d+02:00 | 3 8@w+6d+09:00`),
  pausesMs: [0, 0, 0.001, 999.999, 10_000, HOUR_MS / 4, HOUR_MS, 24 * HOUR_MS, 31 * 24 * HOUR_MS - 0.001],
};
const holding = (rate: string): Walk => ({
  templates:
    either(`TB.MHOLD 2 TTL NEW JOBS 1 TOKENS SOME | TB.MHOLD 2 TTL ID JOBS FEW TOKENS SOME | TB.TAKE TOKENS SOME |
    TB.MRENEW 2 TTL ID JOBS TOKENS | TB.MRENEW 1 TTL ID JOBS | TB.MSETTLE 2 ID JOBS 0 TOKENS SOME | TB.GIVE TOKENS SOME |
    TB.HOLDANY 4 2 TTL ID JOBS FEW TOKENS SOME other 2 0 FEW TOKENS SOME |
    TB.HOLDANY 2 1 TTL ID TOKENS FEW TOKENS FEW`),
  limits: [],
  words: {
    TTL: either("500 | 5000 | 3000000"),
    ID: either("NEW | OLD"),
    FEW: either("0 | 1 | 2"),
    SOME: either("0 | 0.5 | 1 | 5 | 12"),
    JOBS: either("jobs 3 0 | jobs 3 0 | jobs 5 0"),
    TOKENS: either(`t 20 ${rate} | t 20 ${rate} | t 4 4/s | t 100 1/h`),
  },
  pausesMs: [0, 10, 0.25, 1000, 60_000, 1_000_000],
});

/** The call of that number, by a template. */
function draw(walk: Walk, sequence: Sequence, at: number, template: string): string[] {
  const { limits, words } = walk;
  const first = sequence.below(limits.length);
  return template.split(" ").flatMap((word) => {
    if (words[word]) return draw(walk, sequence, at, sequence.of(words[word]));
    if (word === "NEW") return `hold-${at}`;
    if (word === "OLD") return `hold-${at - sequence.below(Math.min(at + 1, 9))}`;
    if (!"ABC".includes(word)) return word;
    const which = (first + "ABC".indexOf(word)) % limits.length;
    // Now and then with another's limit: that of a name may change.
    const limit = sequence.below(10) === 0 ? sequence.of(limits) : limits[which]!;
    return [`k${which}`, ...limit.split(" ")];
  });
}

for (const [what, walk] of Object.entries({
  "all the time": STEADILY,
  "by the calendar": BY_THE_CALENDAR,
  "of holds": holding("7@2s+05:45"),
  "of holds, slowly": holding("1000/h"),
})) {
  test(`a walk: ${what}`, async (t) => {
    const { send } = await emptiedClientFor(t, server);
    const [sequence, fake] = [sequenceOf(1), new FakeServer(server.wholeMs())];
    let refused = 0;
    for (let at = 0; at < 1500; at++) {
      const call = draw(walk, sequence, at, sequence.of(walk.templates));
      const seen = [send(...call), fake.send(call)].map((reply) => reply.catch(() => "an error"));
      const [real, faked] = await Promise.all(seen);
      assert.deepEqual(faked, real, `call ${at}: ${call.join(" ")}`);
      refused += Number(real === "an error");
      const passedMs = sequence.of(walk.pausesMs);
      for (const one of [server, fake]) one.advance(passedMs);
    }
    assert.ok(refused < 100, `${refused} calls were errors`);
  });
}

test("ten thousand holds of a name hardly slow down a decision", async () => {
  const perCallUs = async (count: number) => {
    const limiter = new Limiter(new FakeServer(), { capacity: 1e6, rate: 0 });
    for (let i = 0; i < count; i++) await limiter.hold("a", 1, { ttlMs: 60_000 + ((i * 7919) % count) });
    const times = [];
    for (let i = 0; i < 50; i++) {
      const began = performance.now();
      await limiter.hold("a", 1);
      times.push(performance.now() - began);
    }
    return times.toSorted((a, b) => a - b)[10]! * 1000;
  };
  const [few, many] = [await perCallUs(100), await perCallUs(10_000)];
  assert.ok(many < 10 * few, `${few} µs with 100 holds, ${many} µs with 10,000`);
});
