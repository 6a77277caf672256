"""What a hold does not report counts as used, but slots of a pool come back; a wrong report loses no hold."""

from __future__ import annotations

import pytest

from conftest import Package, level
from drivers import DriverError
from launch import ask
from services import Service


@pytest.fixture(autouse=True)
def _connected(package: Package, server: Service) -> None:
    package.server(server)
    package.limiter("first", capacity=1, rate="1/h", prefix="first:")


def test_what_is_not_reported_counts_as_used(package: Package, server: Service) -> None:
    package.limiter(capacity=1000, rate="1/h")
    assert package.do("hold", amount=100)["allowed"]
    assert package.do("settle")["allowed"]
    assert (level(server), ask(server, "TB.HOLDS", "tb:user")) == (900, [])


def test_slots_of_a_pool_come_back(package: Package, server: Service) -> None:
    package.limiter(capacity=2, rate="0", connect=False)
    assert package.do("hold", amount=2)["allowed"]
    assert package.do("settle")["allowed"]
    assert ask(server, "TB.PEEK", "tb:user", 2, 0, 0)[1] == 2


def test_a_use_of_a_pool_is_an_error_and_the_hold_stays(package: Package, server: Service) -> None:
    package.limiter(capacity=2, rate="0", connect=False)
    package.do("hold", amount=2)
    with pytest.raises(DriverError, match=r"BadArgument: .*used"):
        package.do("settle", used=1)
    package.do("settle", used=0)
    assert ask(server, "TB.PEEK", "tb:user", 2, 0, 0)[1] == 2


def test_of_several_limits_each_counts_as_it_is(package: Package, server: Service) -> None:
    package.joint({"tokens": [1000, "1/h"], "slots": [2, "0"]})
    assert package.do("hold", on="j", amount={"tokens": 100, "slots": 1})["allowed"]
    package.do("settle", used={})
    assert level(server, "tb:{user}:tokens") == 900
    assert ask(server, "TB.PEEK", "tb:{user}:slots", 2, 0, 0)[1] == 2


def test_a_use_that_is_no_amount_is_an_error_and_the_hold_stays(package: Package, server: Service) -> None:
    package.limiter(capacity=1000, rate="1/h")
    assert package.do("hold", amount=100)["allowed"]
    for used in (-1, 1e13):
        with pytest.raises(DriverError, match="used"):
            package.do("settle", used=used)
    package.do("settle", used=5)
    assert (level(server), ask(server, "TB.HOLDS", "tb:user")) == (995, [])


@pytest.mark.only("python", "node", "go")  # The other has it among its own tests.
def test_a_use_of_an_unknown_limit_is_an_error_and_the_hold_stays(package: Package, server: Service) -> None:
    package.joint({"tokens": [1000, "1/h"]})
    assert package.do("hold", on="j", amount={"tokens": 100})["allowed"]
    for used in ({"token": 5}, {"tokens": -1}):
        with pytest.raises(DriverError, match=r"BadArgument: .*used"):
            package.do("settle", used=used)
        assert len(ask(server, "TB.HOLDS", "tb:{user}:tokens")) == 1
    package.do("settle", used={"tokens": 5})
    assert level(server, "tb:{user}:tokens") == 995
