"""What a hold does not report counts as used, but slots of a pool come back; a wrong report loses no hold."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from conftest import Package, ask, level
from drivers import DriverError
from services import Service


def connect(package: Package, server: Service) -> None:
    package.server(server)
    package.limiter("first", capacity=1, rate="1/h", prefix="first:")


def hold(package: Package, name: str, on: str = "l", amount: Any = 100) -> None:
    words = {"on": on, "as": name, "name": "user", "amount": amount, "ttl_ms": 60_000}
    assert package.driver.do("hold", **words)["allowed"]


def test_what_is_not_reported_counts_as_used(package: Package, server: Service, admin: redis.Redis) -> None:
    connect(package, server)
    package.limiter(capacity=1000, rate="1/h")
    hold(package, "h")
    assert package.driver.do("settle", hold="h")["allowed"]
    assert (level(admin, "tb:user"), ask(admin, "TB.HOLDS", "tb:user")) == (900, [])


def test_slots_of_a_pool_come_back(package: Package, server: Service, admin: redis.Redis) -> None:
    connect(package, server)
    package.limiter("slots", capacity=2, rate="0", connect=False)
    hold(package, "h", on="slots", amount=2)
    assert package.driver.do("settle", hold="h")["allowed"]
    assert ask(admin, "TB.PEEK", "tb:user", 2, 0, 0)[1] == 2


def test_of_several_limits_each_counts_as_it_is(
    package: Package, server: Service, admin: redis.Redis
) -> None:
    connect(package, server)
    limits = {"tokens": [1000, "1/h"], "slots": [2, "0"]}
    package.driver.do("joint", name="j", server="s", limits=limits)
    hold(package, "h", on="j", amount={"tokens": 100, "slots": 1})
    package.driver.do("settle", hold="h", used={})
    assert level(admin, "tb:{user}:tokens") == 900
    assert ask(admin, "TB.PEEK", "tb:{user}:slots", 2, 0, 0)[1] == 2


@pytest.mark.only("python")  # The others have it among their own tests.
def test_a_use_of_an_unknown_limit_is_an_error_and_the_hold_stays(
    package: Package, server: Service, admin: redis.Redis
) -> None:
    connect(package, server)
    package.driver.do("joint", name="j", server="s", limits={"tokens": [1000, "1/h"]})
    hold(package, "h", on="j", amount={"tokens": 100})
    for used in ({"token": 5}, {"tokens": -1}):
        with pytest.raises(DriverError, match=r"BadArgument: .*used"):
            package.driver.do("settle", hold="h", used=used)
        assert len(ask(admin, "TB.HOLDS", "tb:{user}:tokens")) == 1
    package.driver.do("settle", hold="h", used={"tokens": 5})
    assert level(admin, "tb:{user}:tokens") == 995
