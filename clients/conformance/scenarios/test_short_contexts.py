"""Callers that leave early find a silent server away, keep no slot, and lose nothing that they report."""

from __future__ import annotations

import time

import pytest

from conftest import Package, disconnect, eventually, level
from drivers import DriverError
from launch import ask
from proxy import Proxy
from services import Service

pytestmark = pytest.mark.only("go")

SHORT_US = 50_000
"""Half of the packages' default timeout."""


@pytest.mark.only("go", "redis-rs")
@pytest.mark.also_in_clusters
def test_callers_that_leave_before_the_timeout_find_a_silent_server_away(
    package: Package, proxy: Proxy
) -> None:
    package.limit(proxy, capacity=10, rate="10/h")
    proxy.stall()
    done = package.many(count=20, concurrency=1, deadline_us=SHORT_US)
    assert done["degraded"] > 0, done
    proxy.resume()
    eventually(lambda: package.many(count=1, deadline_us=1_000_000)["degraded"] == 0)


@pytest.mark.only("go", "redis-rs")
def test_a_stall_leaves_no_slot_to_callers_that_left(package: Package, proxy: Proxy, server: Service) -> None:
    package.limit(proxy, capacity=10, rate="1/h", prefix="other:")
    package.limiter("slots", capacity=10, rate="0", connect=False)
    words = {"on": "slots", "amount": 1, "ttl_ms": 600_000, "concurrency": 10, "count": 10}
    eventually(lambda: package.many("hold", **words)["degraded"] == 0)
    proxy.stall()
    begun = time.monotonic()
    done = package.many("hold", deadline_us=SHORT_US, **words)
    assert done["calls"] - done["cancelled"] == done["degraded"], done
    # Longer than anything waits that a package has sent.
    time.sleep(max(0.0, begun + 2 - time.monotonic()))
    proxy.resume()
    # What was sent before the stall comes first: the server grants it, to nobody.
    eventually(lambda: proxy.commands["TB.SETTLE"] + proxy.commands["TB.MSETTLE"] > 10)
    eventually(lambda: ask(server, "TB.HOLDS", "tb:user") == [])
    # If one of these times out, what it held is settled by its id: at once, and again a second later.
    eventually(lambda: package.many("hold", **words)["degraded"] == 0)
    eventually(lambda: ask(server, "TB.HOLDS", "tb:user") == [])


@pytest.mark.only("go", "python", "node", "rust")
@pytest.mark.parametrize("refusing", [False, True])
def test_a_hold_that_ends_during_an_outage_is_settled_after_it(
    package: Package, proxy: Proxy, server: Service, refusing: bool
) -> None:
    package.limit(proxy, capacity=100, rate="1/h", retry_every_ms=100)
    package.do("hold", amount=50, ttl_ms=600_000)
    if refusing:
        disconnect(proxy)
    else:
        proxy.stall()
    eventually(lambda: bool(package.take("other")["degraded"]))
    assert package.do("settle", used=20)["degraded"]
    if refusing:
        proxy.redirect(server.port)
    else:
        proxy.resume()
    eventually(lambda: ask(server, "TB.HOLDS", "tb:user") == [])
    assert level(server, full=100) == 80


@pytest.mark.also_in_clusters
def test_calls_after_close_are_errors_and_decide_nothing(package: Package, server: Service) -> None:
    package.limit(server, capacity=10, rate="10/h")
    package.driver.do("close", name="s")
    for _ in range(3):
        with pytest.raises(DriverError, match="closed"):
            package.take()
    assert package.degraded_count() == 0
