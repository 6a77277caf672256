"""The fake decides as the server does, call for call, by a clock that both obey."""

from __future__ import annotations

import os
import random
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import tokenbucket
import tokenbucket.asyncio
from servers import REPOSITORY
from services import redis_server
from tokenbucket import Limit
from tokenbucket.testing import FakeServer

START_US = 1_767_225_600_000_000


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
    library = tmp_path / "fakeclock.so"
    source = REPOSITORY / "tests/common/fakeclock.c"
    compile = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(compile, check=True)
    env = {"LD_PRELOAD": str(library), "FAKECLOCK": str(clock.path)}
    server = redis_server(tmp_path, env=env)
    server.start()
    with redis.Redis(port=server.port) as client:
        yield client
    server.stop()


# Rates at which whole micro-tokens flow in a microsecond or a step of the walk: of others the server
# rounds a micro-token down, and the fake does not.
LIMITS = [Limit(10, "1/s"), Limit(5, 3), Limit("2.5", "2/s"), Limit(100, "1/ms"), Limit(7, "6/m")]
STEP_US = 10
SEED = int(os.environ.get("SEED", "1"))


def test_the_fake_decides_as_the_server(governed: Any, clock: Clock) -> None:
    """Walks at random over both, and compares every reply to the last field."""
    draw = random.Random(SEED)
    fake = FakeServer()
    for at in range(4000):
        by_us = draw.choice([0, 0, 0, 1, 50, 10_000, 70_000, 1_000_000, 30_000_000]) * STEP_US
        clock.advance_us(by_us)
        fake.advance(by_us / 1_000_000)
        words = draw_command(draw)
        expected = governed.execute_command(*words)
        assert listed(fake.execute_command(*words)) == listed(expected), f"call {at} of seed {SEED}: {words}"


def draw_command(draw: random.Random) -> list[str | int]:
    which = draw.randrange(len(LIMITS))
    key, limit = f"k{which}", LIMITS[which]
    bucket: list[str | int] = [key, str(limit.capacity), str(limit.rate)]
    amount = draw.choice(["0", "1", "1", "2", "0.5", "3", "1.25", "200"])
    match draw.choice(["TAKE", "PEEK", "TAKEUPTO", "RESERVE", "CHARGE", "GIVE", "MTAKE"]):
        case "TAKEUPTO":
            return ["TB.TAKEUPTO", *bucket, draw.randrange(1, 9)]
        case "RESERVE":
            return ["TB.RESERVE", *bucket, amount, draw.choice([0, 100, 1500, 60_000])]
        case "MTAKE":
            keys = draw.sample(range(len(LIMITS)), draw.randrange(1, 4))
            parts = [(f"k{one}", str(LIMITS[one].capacity), str(LIMITS[one].rate), amount) for one in keys]
            return ["TB.MTAKE", len(keys), *(word for part in parts for word in part)]
        case "CHARGE" if amount == "200":
            return ["TB.CHARGE", *bucket, "4"]
        case name:
            return [f"TB.{name}", *bucket, amount]


def listed(reply: list[object]) -> list[object]:
    return [list(one) if isinstance(one, list | tuple) else one for one in reply]


def test_the_fake_holds_as_the_server(governed: Any, clock: Clock) -> None:
    draw = random.Random(SEED)
    fake = FakeServer()
    pool = ["jobs", "5", "0"]
    flowing = ["tokens", "100", "5"]
    for at in range(1500):
        by_us = draw.choice([0, 0, 1000, 400_000, 3_000_000])
        clock.advance_us(by_us)
        fake.advance(by_us / 1_000_000)
        id = f"hold-{at if draw.random() < 0.6 else draw.randrange(max(at, 1))}"
        words: list[str | int] = (
            ["TB.MHOLD", 2, draw.choice([500, 5000]), f"hold-{at}", *pool, 1, *flowing, draw.choice([5, 40])]
            if draw.random() < 0.5
            else ["TB.MSETTLE", 2, id, *pool, 0, *flowing, draw.choice([0, 10, 60])]
        )
        expected = governed.execute_command(*words)
        assert listed(fake.execute_command(*words)) == listed(expected), f"call {at} of seed {SEED}: {words}"


def test_reserving_advances_the_fakes_time() -> None:
    server = FakeServer()
    limiter = tokenbucket.Limiter(server, Limit(1, "1/s"))
    for _ in range(3):
        assert limiter.reserve("a", max_wait_ms=10_000).allowed
    assert server.monotonic() == 2


async def asyncio_too() -> None:
    server = FakeServer()
    limiter = tokenbucket.asyncio.Limiter(server.asyncio, Limit(1, "1/s"))
    assert (await limiter.take("a")).allowed
    assert not (await limiter.take("a")).allowed
    await limiter.reserve("a", max_wait_ms=10_000)
    assert server.monotonic() == 1


def test_the_fake_serves_asyncio_too() -> None:
    import asyncio

    asyncio.run(asyncio_too())


def test_the_fake_raises_as_the_server_does() -> None:
    limiter = tokenbucket.Limiter(FakeServer(), Limit(1, 0))
    with pytest.raises(redis.ResponseError, match="rate"):
        limiter.take("a")
    with pytest.raises(redis.ResponseError, match="decimal"):
        limiter.take("a", -1, limit=Limit(1, 1))
    with pytest.raises(NotImplementedError, match="calendar"):
        limiter.take("a", limit=Limit(1, "1@d"))
