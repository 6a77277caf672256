"""What a hold does not report counts as used, but slots of a pool come back; a wrong report loses no hold."""

from __future__ import annotations

import pytest

from conftest import Package, level
from drivers import DriverError
from launch import ask
from services import Service


def test_what_is_not_reported_counts_as_used(package: Package, server: Service) -> None:
    package.limit(server, capacity=1000, rate="1/h")
    for report, left in (({}, 900), ({"used": 5}, 895)):
        assert package.do("hold", amount=100)["allowed"]
        for wrong in (-1, 1e13):
            with pytest.raises(DriverError, match="used"):
                package.do("settle", used=wrong)
        assert package.do("settle", **report)["allowed"]
        assert (level(server), ask(server, "TB.HOLDS", "tb:user")) == (left, [])


def test_of_several_limits_each_counts_as_it_is(package: Package, server: Service) -> None:
    package.limit(server, "first", capacity=1, rate="1/h", prefix="first:")
    package.joint({"tokens": [1000, "1/h"], "slots": [2, "0"]})
    # Rust has them among its own tests.
    wrong = [] if package.client.language == "rust" else [{"token": 5}, {"tokens": -1}, {"slots": 1}]
    for report, left in (({}, 900), ({"tokens": 5}, 895)):
        assert package.do("hold", on="j", amount={"tokens": 100, "slots": 1})["allowed"]
        for used in wrong:
            with pytest.raises(DriverError, match=r"BadArgument: .*used"):
                package.do("settle", used=used)
            assert len(ask(server, "TB.HOLDS", "tb:{user}:tokens")) == 1
        package.do("settle", used=report)
        assert level(server, "tb:{user}:tokens") == left
        assert ask(server, "TB.PEEK", "tb:{user}:slots", 2, 0, 0)[1] == 2
