"""The fake decides as the server does, call for call, by a clock that both obey."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import redis

from launch import Servers, fake_clock
from tokenbucket import BadArgument, Limit
from tokenbucket.local.limiter import _Chunk
from tokenbucket.testing import FakeServer

START = datetime(2026, 1, 1, tzinfo=UTC)
START_US = int(START.timestamp()) * 1_000_000


class Clock:
    """The time that a server sees."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now_us = START_US
        self.advance_us(0)

    def advance_us(self, by_us: int) -> None:
        self.now_us += by_us
        with self.path.open("r+b" if self.path.exists() else "w+b") as file:
            file.write(struct.pack(">q", self.now_us))


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


@pytest.fixture
def governed(tmp_path: Path, clock: Clock) -> Iterator[Any]:
    with (
        Servers(tmp_path, env=fake_clock(clock.path)) as servers,
        redis.Redis(port=servers.nodes[0].port) as client,
    ):
        yield client


# Rates at which whole micro-tokens flow in a microsecond or a step of the walk: of others the server
# rounds a micro-token down, and the fake does not.
LIMITS = [Limit(10, "1/s"), Limit(5, 3), Limit("2.5", "2/s"), Limit(100, "1/ms"), Limit(7, "6/m")]
STEP_US = 10
# How often a bucket has its own limit, and not another's.
MOSTLY = 0.9
SEED = int(os.environ.get("SEED", "1"))


def test_the_fake_decides_as_the_server(governed: Any, clock: Clock) -> None:
    pauses_us = [pause * STEP_US for pause in (0, 0, 0, 1, 50, 10_000, 70_000, 1_000_000, 30_000_000)]
    compare(governed, clock, pauses_us, lambda draw, _: draw_command(draw, LIMITS))


CALENDARS = [
    Limit(10, "5@10s"),
    Limit(3, "1@250ms"),
    Limit(100, "7@15m+05:45"),
    Limit(1000, "1000@d+09:00"),
    Limit("2.5", "0.5@2d-03:30"),
    Limit(20, "4@w-11:00"),
    Limit(12, "3@mo+14:00"),
    Limit(5, "1@y"),
    Limit(30, "20@mo+14d-05:00"),
    Limit(10, "10@3mo+30d"),
    Limit(9, "9@mo+28d+02:00"),
    Limit(8, "8@w+6d+09:00"),
]


def test_the_fake_knows_the_calendar(governed: Any, clock: Clock) -> None:
    """Over decades, from boundary to boundary and to a microsecond before."""
    hour_us = 3_600_000_000
    pauses_us = [0, 0, 1, 999_999, 10_000_000, 15 * hour_us // 60, hour_us, 24 * hour_us, 7 * 24 * hour_us]
    pauses_us += [28 * 24 * hour_us - 1, 31 * 24 * hour_us]
    compare(governed, clock, pauses_us, lambda draw, _: draw_command(draw, CALENDARS))


Words = list[str | int]


def compare(
    governed: Any,
    clock: Clock,
    pauses_us: Sequence[int],
    draw_words: Callable[[random.Random, int], Words],
    calls: int = 4000,
) -> None:
    """Walks at random over both, and compares every reply to the last field."""
    draw = random.Random(SEED)
    fake = FakeServer(START)
    for at in range(calls):
        by_us = draw.choice(pauses_us)
        clock.advance_us(by_us)
        fake.advance(Fraction(by_us, 1_000_000))
        words = draw_words(draw, at)
        expected = governed.execute_command(*words)
        moment = START + timedelta(microseconds=clock.now_us - START_US)
        said = f"call {at} of seed {SEED}, at {moment}: {words}"
        assert listed(fake.execute_command(*words)) == listed(expected), said


def draw_command(draw: random.Random, limits: Sequence[Limit]) -> Words:
    which = draw.randrange(len(limits))

    def bucket_of(which: int) -> list[str]:
        limit = limits[which] if draw.random() < MOSTLY else draw.choice(limits)
        return [f"k{which}", str(limit.capacity), str(limit.rate)]

    bucket: list[str | int] = [*bucket_of(which)]
    amount = draw.choice(["0", "1", "1", "2", "0.5", "3", "1.25", "200"])
    match draw.choice(["TAKE", "PEEK", "TAKEUPTO", "RESERVE", "CHARGE", "GIVE", "MTAKE", "TAKEANY"]):
        case "TAKEUPTO":
            return ["TB.TAKEUPTO", *bucket, draw.randrange(1, 9)]
        case "RESERVE":
            return ["TB.RESERVE", *bucket, amount, draw.choice([0, 100, 1500, 60_000])]
        case "MTAKE":
            keys = draw.sample(range(len(limits)), draw.randrange(1, 4))
            return ["TB.MTAKE", len(keys), *(word for one in keys for word in (*bucket_of(one), amount))]
        case "TAKEANY":
            each, count = draw.randrange(1, 3), draw.randrange(1, 4)
            keys = [one for _ in range(count) for one in draw.sample(range(len(limits)), each)]
            groups = [word for one in keys for word in (*bucket_of(one), draw.choice(["0", "1", amount]))]
            return ["TB.TAKEANY", len(keys), each, *groups]
        case "CHARGE" if amount == "200":
            return ["TB.CHARGE", *bucket, "4"]
        case name:
            return [f"TB.{name}", *bucket, amount]


def listed(reply: list[object]) -> list[object]:
    return [list(one) if isinstance(one, list | tuple) else one for one in reply]


@pytest.mark.parametrize("rate", ["5", "7@2s+05:45"])
def test_the_fake_holds_as_the_server(
    governed: Any, clock: Clock, rate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A walk has few holds.
    monkeypatch.setattr(_Chunk, "MOST", 2)

    def draw_words(draw: random.Random, at: int) -> Words:
        pool = ["jobs", "5" if draw.random() < MOSTLY else "2", "0"]
        flowing = ["tokens", "100" if draw.random() < MOSTLY else "50", rate]
        ttl_ms = draw.choice([500, 5000])
        id = f"hold-{at if draw.random() < 0.6 else draw.randrange(max(at, 1))}"
        match draw.choice(["MHOLD"] * 4 + ["HOLDANY"] * 2 + ["MRENEW", "MSETTLE"]):
            case "MHOLD":
                id = f"hold-{at - draw.choice([0, 0, 1, 3])}"
                amounts = draw.choice([1, 1, 3, 6]), draw.choice([5, 40, 120])
                return ["TB.MHOLD", 2, ttl_ms, id, *pool, amounts[0], *flowing, amounts[1]]
            case "HOLDANY":
                return draw_any(draw, ttl_ms, id, pool, flowing)
            case "MRENEW":
                return ["TB.MRENEW", 2, ttl_ms, id, *pool, *flowing]
            case _:
                return ["TB.MSETTLE", 2, id, *pool, 0, *flowing, draw.choice([0, 10, 60])]

    compare(governed, clock, [0, 0, 1000, 400_000, 3_000_000], draw_words, calls=1500)


def draw_any(draw: random.Random, ttl_ms: int, id: str, *buckets: list[str]) -> Words:
    """Draws alternatives of the buckets and of others like them, some with nothing of one."""
    alternatives: Words = [
        word
        for at in draw.sample(["", ":b", ":c"], 2)
        for key, *limit in buckets
        for word in (draw.choice([key + at, key + ":common"]), *limit, draw.choice("0113"))
    ]
    return ["TB.HOLDANY", 2 * len(buckets), len(buckets), ttl_ms, id, *alternatives]


def test_the_fake_finds_a_hold_by_its_amounts_as_the_server(governed: Any) -> None:
    fake, bucket = FakeServer(START), ("tokens", 10, "1@w")
    for server in (fake, governed):
        server.execute_command("TB.TAKE", *bucket, 5)
    for amounts, number in (((8, 2), 2), ((8, 2), 2), ((8, 1), 0), ((1, 8), 1)):
        alternatives = [word for amount in amounts for word in (*bucket, amount)]
        words = ("TB.HOLDANY", 2, 1, 5000, "id", *alternatives)
        replies = [listed(server.execute_command(*words)) for server in (fake, governed)]
        assert replies[0] == replies[1]
        assert replies[0][0] == number


def test_the_fake_replies_to_a_deep_debt_as_the_server(governed: Any) -> None:
    words, fake = ("TB.CHARGE", "deep", 5, "1@w", 10**12), FakeServer(START)
    assert fake.execute_command(*words) == governed.execute_command(*words), "it takes ages"
    for server in (governed, fake):
        with pytest.raises((redis.ResponseError, BadArgument), match="more than 1e12 tokens in debt"):
            server.execute_command(*words)
    assert fake.execute_command("TB.PEEK", *words[1:]) == governed.execute_command("TB.PEEK", *words[1:])
