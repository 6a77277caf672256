"""A loop that is busy hears nobody: that is no outage. A decision without the server is always logged."""

from __future__ import annotations

import pytest

from conftest import Package, StartProxy, eventually, executed, level, stopped
from launch import ask
from services import Service

pytestmark = pytest.mark.only("node", "redis-py-asyncio")

BUSY_MS = 2500
# For a starved machine; it is shorter than the loop is busy.
TIMEOUT_MS = 1000


def begin_busy(package: Package) -> None:
    """Keeps the loop from hearing anything for longer than connecting may take."""
    package.driver.begin("busy", ms=BUSY_MS)


def logged(package: Package) -> int:
    return package.driver.log.read_text().count("cannot ask")


@pytest.mark.also_in_clusters
def test_a_semaphore_lets_nobody_in_while_a_busy_loop_connects(
    package: Package, server: Service, start_proxy: StartProxy
) -> None:
    slow = start_proxy(server, delay_s=0.01)
    package.server(server if package.client.in_cluster else slow, timeout_ms=TIMEOUT_MS)
    package.limiter(capacity=10, rate="10/h", prefix="other:")
    package.limiter("slots", capacity=2, rate="0", connect=False)
    assert all(package.do("hold", on="slots", amount=1)["allowed"] for _ in range(2))
    waits = [package.begin("hold", on="slots", amount=1, max_wait_ms=2000 + BUSY_MS) for _ in range(2)]
    begin_busy(package)
    decisions = [one.result() for one in waits]
    assert [(one["allowed"], one["degraded"]) for one in decisions] == [(False, False)] * 2
    assert package.many(name="next", count=5)["degraded"] == 0
    assert logged(package) == 0


@pytest.mark.parametrize("connected", [False, True])
def test_a_loop_that_is_busy_while_it_connects_or_calls_is_no_outage(
    package: Package, server: Service, start_proxy: StartProxy, connected: bool
) -> None:
    package.server(start_proxy(server, delay_s=0.01), timeout_ms=TIMEOUT_MS)
    package.limiter(capacity=10, rate="10/h", connect=connected)
    takes = package.begin("many", op="take", count=20, concurrency=20)
    begin_busy(package)
    done = takes.result()
    assert (done["allowed"], done["degraded"], logged(package)) == (10, 0, 0)


def test_a_cold_start_under_load_asks_the_server_or_says_why_not(package: Package, server: Service) -> None:
    package.limit(server, capacity=10, rate="10/h", connect=False)
    done = package.many(count=10_000, concurrency=10_000)
    assert done["errors"] == {}
    if done["degraded"] == 0:
        assert (done["allowed"], logged(package)) == (10, 0)
    else:
        # On a starved machine connecting can outlast the timeout.
        assert (done["allowed"] <= 20, logged(package)) == (True, 1)


def test_calls_that_outlast_a_slow_start_are_logged_once(
    package: Package, server: Service, start_proxy: StartProxy
) -> None:
    # It connects, but not within the time for that.
    package.limit(start_proxy(server, delay_s=0.7), capacity=10, rate="10/h", connect=False)
    done = package.many(count=10_000, concurrency=10_000)
    assert (done["allowed"], done["degraded"]) == (10, 10_000)
    assert package.degraded_count() == 10_000
    eventually(lambda: logged(package) == 1)


@pytest.mark.only("node", "python")
def test_a_hold_that_an_outage_left_in_doubt_is_settled_after_it(package: Package, server: Service) -> None:
    package.limit(server, capacity=1000, rate="1/h", retry_every_ms=100)
    package.limiter("closed", capacity=1000, rate="1/h", on_error="closed")
    with stopped(server.pid):
        held = package.do("hold", on="closed", amount=10)
        assert (held["allowed"], held["degraded"]) == (False, True)
        # Until its connection is closed.
        package.many(name="meanwhile", for_ms=2000, concurrency=1, per_second=100)
    eventually(lambda: not package.take("later")["degraded"])
    eventually(lambda: executed(server, "tb.hold", "tb.mhold") == 1)
    eventually(lambda: ask(server, "TB.HOLDS", "tb:user") == [] and level(server) == 1000)
