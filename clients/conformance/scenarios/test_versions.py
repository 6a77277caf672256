"""Older releases, and every shape of client that people have: a few calls of each."""

from __future__ import annotations

import pytest

from conftest import LANGUAGES, OTHERS, Client, Package, eventually
from launch import ask
from services import Service

pytestmark = pytest.mark.versions

CLUSTERS = ["node-redis-4", "node-redis-5", "ioredis-5"]


# The package for Python tests itself on older releases of redis-py.
RELEASES = [
    *(Client(language, library) for language in LANGUAGES for library in OTHERS[language]),
    *(Client("node", library, in_cluster=True) for library in CLUSTERS if "node" in LANGUAGES),
]


@pytest.mark.parametrize("client", RELEASES, ids=str)
def test_it_limits_as_the_newest_does(package: Package, server: Service) -> None:
    package.limit(server, capacity=10, rate="10/h", retry_every_ms=100, timeout_ms=1000)
    done = package.many(count=50, concurrency=10)
    assert (done["allowed"], done["denied"], done["degraded"], done["errors"]) == (10, 40, 0, {})

    package.do("hold", name="held", amount=4)
    assert len(ask(server, "TB.HOLDS", "tb:held")) == 1
    package.do("settle", used=1)
    assert (ask(server, "TB.HOLDS", "tb:held"), package.take("held", cost=9)["allowed"]) == ([], True)

    package.limiter("b", capacity=100, rate="100/h", batch=10, prefix="b:")
    done = package.many(on="b", count=200, concurrency=10)
    assert (done["allowed"], done["degraded"], done["errors"]) == (100, 0, {})

    server.stop()
    eventually(lambda: package.take("away")["degraded"])
    done = package.many(name="away", count=50, concurrency=10)
    assert (done["allowed"] <= 10, done["degraded"]) == (True, 50)
