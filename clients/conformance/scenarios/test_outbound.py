"""Requests that wait for a token before they are sent: over all processes, and whatever happens to Redis."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import upstream as upstreams
from conftest import Package, StartProxy, eventually, until_waiting
from drivers import DriverError
from launch import ask
from services import Service
from upstream import Upstream

pytestmark = pytest.mark.only("python")

LONG_MS = 60_000
# One token in six minutes: nothing flows in while a scenario runs.
STILL = "10/h"
KEY = "tb:127.0.0.1"


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with upstreams.upstream() as one:
        yield one


@pytest.fixture
def another(package: Package) -> Package:
    return package.another()


def begin(package: Package, url: str, **words: Any) -> Future[Any]:
    return package.driver.begin("request", **{"on": "l", "url": url, "max_wait_ms": LONG_MS, **words})


def limited(package: Package, at: Any, capacity: int = 1, **options: Any) -> None:
    """With a timeout that no loaded machine reaches, so that the server decides."""
    package.server(at, **{"timeout_ms": 20_000, "retry_every_ms": 100, **options.pop("server", {})})
    package.limiter(capacity=capacity, rate=STILL, **options)


def test_in_shadow_mode_no_request_waits(package: Package, server: Service, upstream: Upstream) -> None:
    limited(package, server, shadow=True)
    sent = [begin(package, upstream.url, in_flight=1, ttl_ms=LONG_MS) for _ in range(10)]
    assert {one.result(30)["status"] for one in sent} == {200}
    assert ask(server, "TB.PEEK", KEY, 1, STILL, 0)[1] == 0


def test_a_request_costs_two_commands_at_most_whatever_the_latency(
    package: Package, server: Service, start_proxy: StartProxy, upstream: Upstream
) -> None:
    distant = start_proxy(server, delay_s=0.05)
    limited(package, distant, 100)
    before = distant.count("TB.")
    waits = [begin(package, upstream.url) for _ in range(50)]
    assert {one.result(30)["status"] for one in waits} == {200}
    # One that asks, and for those that were denied one that waits.
    assert distant.commands["TB.BTAKE"] <= 50
    assert distant.count("TB.") - before == 50 + distant.commands["TB.BTAKE"]
    assert package.degraded_count() == 0


def test_requests_wait_through_a_restart_of_redis(
    package: Package, server: Service, upstream: Upstream
) -> None:
    limited(package, server, on_error="closed", prefix="tb:")
    assert begin(package, upstream.url).result(30) == {"status": 200}
    waits = [begin(package, upstream.url) for _ in range(3)]
    until_waiting(server, 3)
    server.kill()
    eventually(lambda: package.degraded_count() >= 3)
    assert len(upstream.seen) == 1
    server.start()
    # Without a snapshot the bucket is full again: one token.
    upstream.until_seen(2)
    until_waiting(server, 2)
    assert sorted(one.done() for one in waits) == [False, False, True]
    ask(server, "TB.GIVE", KEY, 1, STILL, 1)
    upstream.until_seen(3)
    ask(server, "TB.GIVE", KEY, 1, STILL, 1)
    assert {one.result(30)["status"] for one in waits} == {200}


def test_a_pause_that_one_process_is_told_holds_for_all(
    package: Package, another: Package, server: Service, upstream: Upstream
) -> None:
    upstream.status, upstream.headers = 429, {"Retry-After": "600"}
    for one in (package, another):
        limited(one, server, 100)
    waits = [begin(package, f"{upstream.url}/slow") for _ in range(20)]
    upstream.until_seen(20)
    upstream.let_go()
    assert {one.result(30)["status"] for one in waits} == {429}
    with pytest.raises(DriverError) as denied:
        begin(another, upstream.url, max_wait_ms=500).result(30)
    assert denied.value.kind == "Denied"
    # The pause is as long as its caller would have waited, however many were told it.
    assert 30_000 < ask(server, "TB.PEEK", KEY, 100, STILL, 0)[2] <= LONG_MS + 1
    assert len(upstream.seen) == 20
