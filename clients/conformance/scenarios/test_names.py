"""No name of a user breaks a call, or meets another's bucket; all packages use the same keys."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from conftest import CLIENTS, LANGUAGES, Package, url_of
from drivers import Driver
from services import Service

NAMES = {
    "ada": "{ada}",
    "}x": "{%7Dx}",
    "{}": "{%7B%7D}",
    "": "{%}",
    "%7Dx": "{%257Dx}",
    "a{b}c": "{a%7Bb%7Dc}",
}


@pytest.mark.parametrize("name", NAMES)
def test_every_package_takes_from_the_same_bucket_of_a_name(
    start_driver: Callable[[str], Driver], server: Service, admin: redis.Redis, name: str
) -> None:
    for language in LANGUAGES:
        package = Package(start_driver, (language, CLIENTS[language][0]))
        package.server(url_of(server))
        limits = {"requests": [10, "10/h"], "tokens": [100, "100/h"]}
        package.driver.do("joint", name="j", server="s", limits=limits, prefix="api:")
        taken = package.driver.do("take_all", on="j", name=name, costs={"requests": 1, "tokens": 5})
        assert taken["allowed"]
    keys = {f"api:{NAMES[name]}:{which}" for which in ("requests", "tokens")}
    assert set(admin.keys("*")) == keys
    left = admin.execute_command("TB.PEEK", f"api:{NAMES[name]}:requests", 10, "10/h", 0)[1]
    assert left == 10 - len(LANGUAGES)
