"""Of several alternatives the first that allows is taken, and a hold is where it was granted alone."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from conftest import Package, disconnect, eventually, executed, level
from drivers import DriverError
from launch import ask
from proxy import Proxy
from services import Service

LIMITS: dict[str, list[Any]] = {
    "common": [1000, "10/h"],
    "slot1": [1, "0"],
    "tokens1": [1000, "10/h"],
    "slot2": [1, "0"],
    "tokens2": [1000, "10/h"],
}
TOKENS = [{"common": 1, "tokens1": 600}, {"common": 1, "tokens2": 600}]
HOLDS = [{"common": 1, "slot1": 1, "tokens1": 600}, {"common": 1, "slot2": 1, "tokens2": 600}]


def limit(package: Package, at: Service | Proxy, **options: Any) -> None:
    package.server(at, **{"timeout_ms": 5000, "retry_every_ms": 50, **options})
    package.limiter(capacity=10, rate="10/h", prefix="other:")
    package.joint(LIMITS)


def take_any(package: Package, *amounts: dict[str, float]) -> dict[str, Any]:
    taken: dict[str, Any] = package.do("take_any", on="j", alternatives=amounts or TOKENS)
    return taken


def hold_any(package: Package, hold: str = "h", **words: Any) -> dict[str, Any]:
    held: dict[str, Any] = package.do("hold_any", **{"on": "j", "alternatives": HOLDS, "as": hold, **words})
    return held


def held(server: Service) -> list[str]:
    """Which limits have holds."""
    return [which for which in LIMITS if ask(server, "TB.HOLDS", f"tb:{{user}}:{which}")]


@pytest.mark.also_in_clusters
def test_the_first_that_allows_is_taken(package: Package, server: Service) -> None:
    limit(package, server)
    taken = [take_any(package) for _ in range(3)]
    assert [one["granted"] for one in taken] == [1, 2, 0], taken
    assert {which: one["remaining"] for which, one in taken[1]["each"].items()} == {
        "common": 998,
        "tokens2": 400,
    }
    assert not taken[2].get("each")
    assert taken[2]["retry_after_ms"] > 0
    assert [level(server, f"tb:{{user}}:{which}") for which in ("common", "tokens1", "tokens2")] == [
        998,
        400,
        400,
    ]
    with pytest.raises(DriverError, match=r"BadArgument.*same number"):
        take_any(package, {"common": 1, "tokens1": 1}, {"tokens2": 1})
    with pytest.raises(DriverError, match="BadArgument"):
        take_any(package, {})


@pytest.mark.also_in_clusters
def test_a_hold_is_renewed_and_settled_where_it_was_granted(package: Package, server: Service) -> None:
    limit(package, server)
    assert [hold_any(package, "h1")["granted"], hold_any(package, "h2", ttl_ms=900)["granted"]] == [1, 2]
    assert not hold_any(package, "h3")["allowed"]
    eventually(lambda: executed(server, "tb.mrenew") >= 4)  # every 300 ms
    assert package.do("lost", hold="h2") == {"lost": False, "granted": 2}
    assert held(server) == [*LIMITS]
    package.do("settle", hold="h2", used={"common": 1, "tokens2": 100})
    assert held(server) == ["common", "slot1", "tokens1"]
    assert level(server, "tb:{user}:tokens2") == 900
    package.do("settle", hold="h1", used={"common": 0, "tokens1": 0})
    assert held(server) == []


@pytest.mark.also_in_clusters
def test_a_hold_whose_reply_is_lost_is_one(package: Package, server: Service, proxy: Proxy) -> None:
    limit(package, proxy)
    hold_any(package, "h1")
    proxy.cut["TB.HOLDANY"] = 1
    lost = hold_any(package, "h2")
    package.do("settle", hold="h1", used={"common": 0, "tokens1": 0})
    if lost["degraded"]:  # a package that sends nothing twice has decided by itself
        eventually(lambda: "slot2" not in held(server))
    package.do("settle", hold="h2", used=dict.fromkeys(lost["each"], 0))
    eventually(lambda: held(server) == [])


def test_a_call_that_is_sent_again_leaves_no_hold_of_nobody(
    package: Package, server: Service, proxy: Proxy
) -> None:
    """Alternatives of one bucket: the second send finds less in it than the first."""
    limit(package, proxy)
    take_any(package, {"common": 500})
    proxy.cut["TB.HOLDANY"] = 1
    one = hold_any(package, alternatives=[{"common": 800}, {"common": 200}])
    assert one["degraded"] or one["granted"] == 2, one
    package.do("settle", used={"common": 0})
    eventually(lambda: held(server) == [] and level(server, "tb:{user}:common") == 500)


@pytest.mark.only("go", "rust", "redis-py-asyncio")
def test_a_hold_whose_caller_has_gone_ends(package: Package, server: Service, proxy: Proxy) -> None:
    limit(package, proxy)
    hold_any(package, "h1")
    proxy.delay_s = 0.025
    for after_us in range(10_000, 120_000, 10_000):
        with suppress(DriverError):
            hold_any(package, "h2", deadline_us=after_us)
            package.do("settle", hold="h2", used={"common": 0, "tokens2": 0})
    proxy.delay_s = 0
    eventually(lambda: held(server) == ["common", "slot1", "tokens1"])


def test_the_process_decides_by_the_same_rule(package: Package, server: Service, proxy: Proxy) -> None:
    limit(package, proxy, timeout_ms=500)
    disconnect(proxy)
    taken = [take_any(package) for _ in range(3)]
    assert [(one["granted"], one["degraded"]) for one in taken] == [(1, True), (2, True), (0, True)], taken
    small = [{"slot1": 1}, {"slot2": 1}]
    for hold, granted in (("h1", 1), ("h2", 2), ("h3", 0)):
        one = hold_any(package, hold, alternatives=small, ttl_ms=1500)
        assert (one["granted"], one["degraded"]) == (granted, True), one
    proxy.redirect(server.port)
    eventually(lambda: held(server) == ["slot1", "slot2"])
    for hold in ("h1", "h2"):
        package.do("settle", hold=hold)
    eventually(lambda: held(server) == [])


def test_what_fills_up_an_alternative_is_not_settled(package: Package, server: Service) -> None:
    limit(package, server)
    either = [{"slot1": 1, "tokens1": 600}, {"slot2": 0, "tokens2": 600}]
    assert [hold_any(package, hold, alternatives=either)["granted"] for hold in ("h1", "h2")] == [1, 2]
    for hold, which in (("h1", "tokens1"), ("h2", "tokens2")):
        assert package.do("settle", hold=hold, used={which: 100})["allowed"]
        assert level(server, f"tb:{{user}}:{which}") == 900
