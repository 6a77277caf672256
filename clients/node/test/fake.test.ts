/** The fake beside a real server: the same calls at the same times get the same decisions. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { JointLimiter, Limiter, type Hold, type Limit } from "tokenbucket-redis";
import { FakeServer } from "tokenbucket-redis/testing";

import { emptiedClientFor, sharedServer } from "./servers.js";

const server = await sharedServer();
const CALLS = 400;

/** A sequence that is the same at each run: a linear congruential generator. */
class Sequence {
  #state: number;

  constructor(seed: number) {
    this.#state = seed;
  }

  below(n: number): number {
    this.#state = (this.#state * 1_664_525 + 1_013_904_223) >>> 0;
    return Math.floor((this.#state / 2 ** 32) * n);
  }

  of<T>(choices: readonly T[]): T {
    return choices[this.below(choices.length)]!;
  }
}

const RATES = ["5/s", "100/m", "10/10s", "1/250ms", ".5", 0.25, "1e-3", "7/3s", "1000/h", "3/d", 1000];
const PAUSES_MS = [0, 0, 1, 10, 0.25, 333, 2500, 60_000]; // microseconds, too: 0.25 of a millisecond
const CALENDARS = (
  "5@10s 1@250ms 7@15m+05:45 1000@d+09:00 0.5@2d-03:30 4@w-11:00 3@mo+14:00 1@y " +
  "20@mo+14d-05:00 10@3mo+30d 9@mo+28d+02:00 8@w+6d+09:00"
).split(" ");
const HOUR_MS = 3_600_000;
const LONG_PAUSES_MS = [0, 0, 0.001, 999.999, 10_000, HOUR_MS / 4, HOUR_MS, 24 * HOUR_MS, 31 * 24 * HOUR_MS - 0.001];

const WALKS = [
  ...[1, 2, 3, 4, 5].map((seed) => ({ seed, rates: RATES, pauses: PAUSES_MS })),
  ...[6, 7, 8, 9].map((seed) => ({ seed, rates: CALENDARS, pauses: LONG_PAUSES_MS })),
];

for (const { seed, rates, pauses } of WALKS) {
  const what = rates === CALENDARS ? "by the calendar" : "all the time";

  test(`walk ${seed}, ${what}: buckets`, async (t) => {
    const { buckets } = await emptiedClientFor(t, server);
    const sequence = new Sequence(seed);
    const fake = new FakeServer(server.wholeMs());
    const limits: Limit[] = rates.map((rate) => ({ capacity: sequence.of([3, 10, 0.5, 1000, "2.5"]), rate }));
    const both = [buckets, fake].map((one) => new Limiter(one, limits[0]!));
    const joints = [buckets, fake].map((one) => new JointLimiter(one, { x: limits[1]!, y: limits[2]! }));

    for (let i = 0; i < CALLS; i++) {
      const [name, limit] = [`name${sequence.below(4)}`, sequence.of(limits)];
      const amount = sequence.of([0, 1, 2, 0.1, 0.3, 7, 100]);
      const most = 1 + sequence.below(9);
      const maxWaitMs = sequence.below(5000);
      const call = sequence.of([
        (one: number) => both[one]!.take(name, amount, { limit }),
        (one: number) => both[one]!.take(name, amount, { limit }),
        (one: number) => both[one]!.peek(name, amount, { limit }),
        (one: number) => both[one]!.takeUpTo(name, most, { limit }),
        (one: number) => both[one]!.reserve(name, amount, { limit, maxWaitMs }),
        (one: number) => both[one]!.charge(name, amount, { limit }),
        (one: number) => both[one]!.give(name, amount, { limit }),
        (one: number) => joints[one]!.takeAll("both", { x: amount, y: 1 }),
        (one: number) => joints[one]!.takeAny("both", [{ x: amount }, { y: 1 }, { x: 0 }].slice(0, 1 + (most % 3))),
        (one: number) =>
          joints[one]!.takeAny("both", [
            { x: amount, y: 1 },
            { y: 2, x: 0 },
          ]),
      ]);
      assert.deepEqual(
        await call(1),
        await call(0),
        `call ${i} of walk ${seed}: ${call} ${JSON.stringify({ name, limit, amount })}`,
      );
      const passedMs = sequence.of(pauses);
      server.advance(passedMs);
      fake.advance(passedMs);
    }
  });

  test(`walk ${seed}, ${what}: holds`, async (t) => {
    const { buckets } = await emptiedClientFor(t, server);
    const sequence = new Sequence(seed + 100);
    const fake = new FakeServer(server.wholeMs());
    const limits = { tokens: { capacity: 20, rate: sequence.of(rates) }, running: { capacity: 3, rate: 0 } };
    const joints = [buckets, fake].map((one) => new JointLimiter(one, limits));
    const singles = [buckets, fake].map((one) => new Limiter(one, limits.tokens, { prefix: "tb:{a}:" }));
    const others = [limits.tokens, { capacity: 4, rate: "4/s" }, { capacity: 100, rate: "1/h" }];
    const open: Hold[][] = [];

    for (let i = 0; i < CALLS / 4; i++) {
      const tokens = sequence.of([1, 5, 0.5, 12]);
      const choice = sequence.below(4);
      if (choice === 0 && open.length > 0) {
        for (const hold of open.splice(sequence.below(open.length), 1)[0]!) await hold.settle({ tokens });
      } else if (choice === 1 && open.length > 0) {
        const [real, faked] = sequence.of(open);
        assert.deepEqual(await faked!.renew(), await real!.renew(), `renewal ${i} of walk ${seed}`);
      } else if (choice === 2) {
        const limit = sequence.of(others);
        const call = sequence.of([
          (one: Limiter) => one.take("tokens", tokens, { limit }),
          (one: Limiter) => one.give("tokens", tokens, { limit }),
        ]);
        const [real, faked] = await Promise.all(singles.map(call));
        assert.deepEqual(faked, real, `call ${i} of walk ${seed}: ${call} ${JSON.stringify({ limit, tokens })}`);
      } else {
        const amounts = { tokens, running: 1 };
        // Nobody renews it but the walk.
        const ttlMs = 3_000_000 + sequence.below(1000);
        const holds = await Promise.all(joints.map((joint) => joint.hold("a", amounts, { ttlMs })));
        assert.deepEqual(holds[1]!.decision, holds[0]!.decision, `hold ${i} of walk ${seed}`);
        if (holds[0]!.allowed) open.push(holds);
      }
      const passedMs = sequence.of([0, 10, 0.25, 60_000, 1_000_000, 3_000_000]);
      server.advance(passedMs);
      fake.advance(passedMs);
    }
  });
}

for (const limit of [
  { capacity: 10, rate: "10@w" },
  { capacity: 10, rate: "3@mo" },
  { capacity: 10, rate: "5@y+09:00" },
  { capacity: 1, rate: "1/36500d" },
]) {
  test(`a debt of ages lasts as long: ${limit.rate}`, async (t) => {
    const { buckets } = await emptiedClientFor(t, server);
    const fake = new FakeServer(server.wholeMs());
    const both = [buckets, fake].map((one) => new Limiter(one, limit));
    const [real, faked] = await Promise.all(both.map((one) => one.charge("a", 1e12)));
    assert.deepEqual(faked, real);
    for (const one of [server, fake]) one.advance(0.95);
    const [later, fakedLater] = await Promise.all(both.map((one) => one.peek("a")));
    assert.deepEqual(fakedLater, later);
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
