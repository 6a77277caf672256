"""Callers that leave early find a silent server away, keep no slot, and lose nothing that they report."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from conftest import Package, StartProxy, ask, eventually, level
from drivers import DriverError
from proxy import Proxy
from services import Service

pytestmark = pytest.mark.only("go")

SHORT_US = 50_000
"""Half of the packages' default timeout."""


@pytest.mark.also_in_clusters
def test_callers_that_leave_before_the_timeout_find_a_silent_server_away(
    package: Package, proxy: Proxy
) -> None:
    package.server(proxy)
    package.limiter(capacity=10, rate="10/h")
    proxy.stall()
    done = package.many(count=20, concurrency=1, deadline_us=SHORT_US)
    assert done["degraded"] > 0, done
    proxy.resume()
    eventually(lambda: package.many(count=1, deadline_us=1_000_000)["degraded"] == 0)


def test_a_stall_leaves_no_slot_to_callers_that_left(
    package: Package, proxy: Proxy, admin: redis.Redis
) -> None:
    package.server(proxy)
    package.limiter(capacity=10, rate="1/h", prefix="other:")
    package.limiter("slots", capacity=10, rate="0", connect=False)
    words: dict[str, Any] = {"on": "slots", "amount": 1, "ttl_ms": 600_000, "concurrency": 10}
    eventually(lambda: package.many("hold", count=10, **words)["degraded"] == 0)
    proxy.stall()
    begun = time.monotonic()
    done = package.many("hold", count=10, deadline_us=SHORT_US, **words)
    assert done["calls"] - done["cancelled"] == done["degraded"], done
    # Longer than anything waits that a package has sent.
    time.sleep(max(0.0, begun + 2 - time.monotonic()))
    proxy.resume()
    # What was sent before the stall comes first: the server grants it, to nobody.
    eventually(lambda: proxy.commands["TB.SETTLE"] + proxy.commands["TB.MSETTLE"] > 10)
    eventually(lambda: ask(admin, "TB.HOLDS", "tb:user") == [])
    eventually(lambda: package.many("hold", count=10, **words)["degraded"] == 0)
    assert ask(admin, "TB.HOLDS", "tb:user") == []


def test_a_hold_that_ends_during_a_stall_is_settled_after_it(
    package: Package, proxy: Proxy, admin: redis.Redis
) -> None:
    package.server(proxy)
    package.limiter(capacity=100, rate="1/h")
    package.driver.do("hold", on="l", **{"as": "h"}, name="user", amount=50, ttl_ms=600_000)
    proxy.stall()
    eventually(lambda: bool(package.take("other")["degraded"]))
    assert package.driver.do("settle", hold="h", used=20)["degraded"]
    proxy.resume()
    eventually(lambda: ask(admin, "TB.HOLDS", "tb:user") == [])
    assert level(admin, "tb:user", full=100) == 80


def test_a_use_of_another_name_is_an_error_and_the_hold_stays(
    package: Package, server: Service, admin: redis.Redis
) -> None:
    package.server(server)
    package.limiter(capacity=1, rate="1/h", prefix="other:")
    package.driver.do("joint", name="j", server="s", limits={"tokens": [100, "1/h"], "jobs": [2, "0"]})
    amounts = {"tokens": 60, "jobs": 1}
    package.driver.do("hold", on="j", **{"as": "h"}, name="user", amount=amounts, ttl_ms=60_000)
    for used in ({"token": 5}, {"tokens": -1}):
        with pytest.raises(DriverError) as wrong:
            package.driver.do("settle", hold="h", used=used)
        assert wrong.value.kind == "BadArgument"
    assert len(ask(admin, "TB.HOLDS", "tb:{user}:tokens")) == 1
    package.driver.do("settle", hold="h", used={"tokens": 10})
    assert level(admin, "tb:{user}:tokens", full=100) == 90
    assert ask(admin, "TB.HOLDS", "tb:{user}:jobs") == []


def test_what_is_not_reported_counts_as_used_but_in_a_pool(
    package: Package, server: Service, admin: redis.Redis
) -> None:
    package.server(server)
    package.limiter(capacity=1, rate="1/h", prefix="other:")
    package.driver.do("joint", name="j", server="s", limits={"tokens": [100, "1/h"], "jobs": [2, "0"]})
    amounts = {"tokens": 60, "jobs": 1}
    package.driver.do("hold", on="j", **{"as": "h"}, name="user", amount=amounts, ttl_ms=60_000)
    package.driver.do("settle", hold="h")
    assert level(admin, "tb:{user}:tokens", full=100) == 40
    assert level(admin, "tb:{user}:jobs", full=2) == 2


@pytest.mark.also_in_clusters
def test_calls_after_close_are_errors_and_decide_nothing(package: Package, server: Service) -> None:
    package.server(server)
    package.limiter(capacity=10, rate="10/h")
    package.driver.do("close", name="s")
    for _ in range(3):
        with pytest.raises(DriverError, match="closed"):
            package.take()
    assert package.driver.do("degraded", server="s")["count"] == 0


def test_a_connection_slower_than_the_timeout_serves_later_calls(
    package: Package, server: Service, start_proxy: StartProxy
) -> None:
    # Opening a connection takes more than one round trip.
    package.server(start_proxy(server, delay_s=0.02), timeout_ms=100)
    package.limiter(capacity=10, rate="10/h", connect=False)
    eventually(lambda: not package.take()["degraded"])
    assert package.many(count=5)["degraded"] == 0
