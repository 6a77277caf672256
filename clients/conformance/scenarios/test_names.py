"""No name of a user breaks a call, or meets another's bucket; all packages use the same keys."""

from __future__ import annotations

from typing import Any

from conftest import CLIENTS, LANGUAGES, Client, Package, StartDriver
from launch import ask
from services import Service

# The hash tag of each name.
NAMES = {
    "ada": "{ada}",
    "}x": "{%7Dx}",
    "{}": "{%7B%7D}",
    "": "{%}",
    "%": "{%25}",
    "%7Dx": "{%257Dx}",
    "a{b}c": "{a%7Bb%7Dc}",
}


def test_every_package_takes_from_the_same_bucket_of_a_name(
    start_driver: StartDriver, server: Service
) -> None:
    limits: dict[str, list[Any]] = {"requests": [10, "10/h"], "tokens": [100, "100/h"]}
    for language in LANGUAGES:
        package = Package(start_driver, Client(language, CLIENTS[language][0]))
        package.limit(server, capacity=1000, rate="1/h", prefix="other:")
        package.joint(limits, prefix="api:")
        for name in NAMES:
            taken = package.do("take_all", on="j", name=name, costs={"requests": 1, "tokens": 5})
            assert (taken["allowed"], taken["degraded"]) == (True, False), (language, name)
    keys = {f"api:{tag}:{which}" for tag in NAMES.values() for which in limits}
    assert set(ask(server, "KEYS", "api:*")) == keys
    for tag in NAMES.values():
        left = ask(server, "TB.PEEK", f"api:{tag}:requests", 10, "10/h", 0)[1]
        assert left == 10 - len(LANGUAGES), tag
