"""Outages, servers that are full, and what is not accepted for a server."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio

import tokenbucket
import tokenbucket.asyncio
from conftest import Make
from services import Service
from tokenbucket import BadArgument, Limit

STILL = "10/h"


def test_while_the_server_is_away_the_same_limits_hold_here(
    make: Make, own_server: Service, caplog: Any
) -> None:
    limiter = make(own_server, Limit(10, STILL), on_error="local", retry_every_ms=60_000)
    joint = make(own_server, {"requests": Limit(3, STILL), "slots": Limit(1, 0)}, on_error="local")
    assert limiter.take("a", 10).allowed
    own_server.stop()
    assert [limiter.take("a", 5).allowed for _ in range(3)] == [True, True, False]
    assert len([record for record in caplog.records if record.name == "tokenbucket"]) == 1

    assert limiter.give("a", 6).remaining == 6
    assert limiter.take_up_to("a", 9).granted == 6
    assert limiter.charge("a", 2).remaining == -2
    assert 1_000_000 < limiter.reserve("a", max_wait_ms=2_000_000).retry_after_ms <= 3 * 360_000
    with joint.hold("a", {"requests": 1, "slots": 1}) as hold:
        assert joint.take_all("a", {"requests": 1}).remaining == 1
        assert not joint.hold("a", {"slots": 1}).allowed
        hold.used = {"requests": 1}
    assert joint.hold("a", {"slots": 1}).allowed
    reset = limiter.reset("a")
    assert (reset.allowed, reset.degraded) == (False, True), "the server keeps its bucket"
    assert limiter.peek("a", 0).remaining == 10


def test_an_unknown_client_is_refused(make: Make) -> None:
    for client in (object(), {"host": "localhost"}, "http://localhost", make):
        for package in (tokenbucket, tokenbucket.asyncio):
            with pytest.raises(BadArgument, match="client"):
                package.Limiter(client, Limit(1, 1))
    with pytest.raises(BadArgument, match=r"tokenbucket\.asyncio"):
        tokenbucket.Limiter(redis.asyncio.Redis(), Limit(1, 1))
    with pytest.raises(BadArgument, match="for the limiters of tokenbucket"):
        tokenbucket.asyncio.Limiter(redis.Redis(), Limit(1, 1))


def test_limiters_on_one_client_share_its_server() -> None:
    client = redis.Redis()
    one, other = (tokenbucket.Limiter(client, Limit(1, rate)) for rate in (1, 2))
    assert one.server is other.server
    assert tokenbucket.Limiter("redis://a", Limit(1, 1)).server is not one.server
    before, together = sys.getswitchinterval(), threading.Barrier(8)

    def make(at: int) -> tuple[Any, ...]:
        together.wait()
        return tuple(tokenbucket.Limiter(one, Limit(1, 1)).server for one in (clients[at], f"redis://a/{at}"))

    sys.setswitchinterval(1e-6)
    clients = [redis.Redis() for _ in range(100)]
    try:
        with ThreadPoolExecutor(8) as threads:
            for at in range(100):
                assert len(set(threads.map(make, [at] * 8))) == 1, "made in the same moment"
    finally:
        sys.setswitchinterval(before)
