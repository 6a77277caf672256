"""A call that must happen once is sent once: done, or told that nobody knows."""

from __future__ import annotations

import pytest
import redis

from conftest import Package, level
from proxy import Proxy


@pytest.mark.parametrize("command, op, change", [("TB.GIVE", "give", 10), ("TB.CHARGE", "charge", -10)])
def test_a_reply_that_is_lost_means_done_once_or_told(
    package: Package, proxy: Proxy, admin: redis.Redis, command: str, op: str, change: int
) -> None:
    package.server(proxy.url)
    package.limiter(capacity=1000, rate="1/h")
    package.take(cost=500)
    proxy.cut[command] = 1
    told = package.driver.do(op, on="l", name="user", amount=10)
    assert told["lost"], told
    assert proxy.commands[command] == 1
    assert int(level(admin, "tb:user")) == 500 + change


def test_a_settlement_whose_reply_is_lost_is_not_made_twice(
    package: Package, proxy: Proxy, admin: redis.Redis
) -> None:
    package.server(proxy.url)
    package.limiter(capacity=1000, rate="1/h")
    package.driver.do("hold", on="l", **{"as": "h"}, name="user", amount=100, ttl_ms=60_000)
    proxy.cut["TB.MSETTLE"] = proxy.cut["TB.SETTLE"] = 1
    package.driver.do("settle", hold="h", used=30)
    package.driver.do("settle", hold="h", used=30)
    assert proxy.commands["TB.MSETTLE"] + proxy.commands["TB.SETTLE"] == 1
    assert proxy.commands["TB.CHARGE"] == 0
    assert int(level(admin, "tb:user")) == 970


def test_settling_twice_settles_once(package: Package, proxy: Proxy, admin: redis.Redis) -> None:
    package.server(proxy.url)
    package.limiter(capacity=1000, rate="1/h")
    package.driver.do("hold", on="l", **{"as": "h"}, name="user", amount=100, ttl_ms=60_000)
    first = package.driver.do("settle", hold="h", used=30)
    assert package.driver.do("settle", hold="h", used=30) == first
    assert int(level(admin, "tb:user")) == 970
