"""Holds that could not be settled are settled once the server is back, however many others there were."""

from __future__ import annotations

import pytest

from conftest import Package, disconnect, eventually
from drivers import ANSWERS_WITHIN_S
from launch import ask
from proxy import Proxy
from services import Service

# More than a package remembers.
MANY = 3000


@pytest.mark.long
def test_holds_of_an_outage_keep_no_other_from_being_settled(
    package: Package, server: Service, proxy: Proxy
) -> None:
    package.limit(proxy, capacity=10, rate="0", connect=False, retry_every_ms=100)
    package.limiter("here", capacity=MANY, rate="0", prefix="here:", connect=False)
    for hold in ("first", "last"):
        assert package.do("hold", amount=1, **{"as": hold})["allowed"]
    disconnect(proxy)
    package.do("settle", hold="first")
    for operation in ("hold", "settle"):
        names = [f"h{number}" for number in range(MANY)]
        words = [{"as": name, "hold": name, "on": "here", "amount": 1} for name in names]
        assert all(
            done.result(ANSWERS_WITHIN_S)["degraded"]
            for done in [package.begin(operation, **each) for each in words]
        )
    package.do("settle", hold="last")
    assert len(ask(server, "TB.HOLDS", "tb:user")) == 2
    proxy.redirect(server.port)
    eventually(lambda: ask(server, "TB.HOLDS", "tb:user") == [], within_s=30)
