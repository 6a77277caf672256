"""A call that must happen once is sent once: it is done, or the caller learns that nobody knows."""

from __future__ import annotations

import pytest

from conftest import Package, level
from drivers import DriverError
from launch import ask
from proxy import Proxy
from services import Service

pytestmark = pytest.mark.also_in_clusters


@pytest.mark.parametrize(("command", "op", "change"), [("TB.GIVE", "give", 10), ("TB.CHARGE", "charge", -10)])
def test_a_call_whose_reply_is_lost_is_done_once_and_says_so(
    package: Package, proxy: Proxy, server: Service, command: str, op: str, change: int
) -> None:
    package.limit(proxy, capacity=1000, rate="1/h")
    package.take(cost=500)
    proxy.cut[command] = 1
    told = package.do(op, amount=10)
    assert told["lost"], told
    assert proxy.commands[command] == 1
    assert level(server) == 500 + change
    # One reply that did not come is no outage.
    assert not package.take()["degraded"]
    package.limiter(capacity=1000, rate="1/h", on_error="raise")
    proxy.cut[command] = 1
    with pytest.raises(DriverError, match="ReplyLost"):
        package.do(op, amount=10)


def test_a_settlement_whose_reply_is_lost_is_not_made_twice(
    package: Package, proxy: Proxy, server: Service
) -> None:
    package.limit(proxy, capacity=1000, rate="1/h")
    package.do("hold", amount=100)
    proxy.cut["TB.SETTLE"] = proxy.cut["TB.MSETTLE"] = 1
    first = package.do("settle", used=30)
    assert first["lost"], first
    assert package.do("settle", used=40) == first
    assert proxy.commands["TB.SETTLE"] + proxy.commands["TB.MSETTLE"] == 1
    assert proxy.commands["TB.CHARGE"] == 0
    assert level(server) == 970


def test_the_charge_of_a_lost_hold_whose_reply_is_lost_is_made_once_and_says_so(
    package: Package, proxy: Proxy, server: Service
) -> None:
    package.limit(proxy, capacity=1000, rate="1/h")
    package.do("hold", amount=100)
    ask(server, "DEL", "tb:user")
    proxy.cut["TB.CHARGE"] = 1
    settled = package.do("settle", used=30)
    assert settled["lost"], settled
    assert proxy.commands["TB.CHARGE"] == 1
    assert level(server) == 970
