"""Shadow mode: the limit decides and counts as always, and denies and delays nobody."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import FRAMEWORKS, Package, eventually, executed, get, level
from launch import ask
from services import Service

HOLDING = ("tb.hold", "tb.mhold")
RENEWING = ("tb.renew", "tb.mrenew")
SETTLING = ("tb.settle", "tb.msettle")
# A renewal may be late by two thirds of it, on a starved machine.
TTL_MS = 3000
# A call that waited would outlast the suite's patience.
MAX_WAIT_MS = 3_600_000
passed = {"allowed": True, "shadowed": False, "degraded": False}
let_pass = {"allowed": True, "shadowed": True, "degraded": False}


def outcome(decision: dict[str, Any]) -> dict[str, Any]:
    return {name: decision[name] for name in passed}


@pytest.fixture(autouse=True)
def _connected(package: Package, server: Service) -> None:
    package.limit(server, "first", capacity=1, rate="1/h", prefix="first:", timeout_ms=5000)


@pytest.mark.also_in_clusters
def test_a_denial_passes_says_so_and_takes_nothing(package: Package, server: Service) -> None:
    package.limiter(capacity=10, rate="10/h", shadow=True)
    assert outcome(package.take(cost=8)) == passed
    denied = package.take(cost=8)
    assert (outcome(denied), denied["granted"], denied["remaining"]) == (let_pass, 1, 2)
    assert denied["retry_after_ms"] > 0
    assert package.take(cost=11)["retry_after_ms"] == -1
    assert level(server) == 2
    # The same bucket, without shadow mode.
    package.limiter(capacity=10, rate="10/h", connect=False)
    denied = package.take(cost=8)
    assert (denied["allowed"], denied["shadowed"]) == (False, False)


def test_no_call_waits(package: Package, server: Service) -> None:
    package.limiter(capacity=1, rate="1/h", shadow=True)
    assert outcome(package.take(max_wait_ms=MAX_WAIT_MS)) == passed
    assert outcome(package.take(max_wait_ms=MAX_WAIT_MS)) == let_pass
    assert outcome(package.do("hold", amount=1, max_wait_ms=MAX_WAIT_MS)) == let_pass
    assert executed(server, "tb.btake", "tb.bhold", "tb.bmhold") == 0
    # Reserved as always, an hour ahead. The next would have to wait for two.
    for expected in (passed, let_pass):
        waited = package.do("wait", max_wait_ms=MAX_WAIT_MS)
        assert (outcome(waited), waited["retry_after_ms"], waited["remaining"]) == (expected, 0, -1)


def test_a_hold_that_is_denied_is_open_and_holds_nothing(package: Package, server: Service) -> None:
    package.limiter(capacity=1000, rate="1/h", shadow=True)
    assert outcome(package.take(cost=800)) == passed
    assert outcome(package.do("hold", amount=500, ttl_ms=TTL_MS)) == let_pass
    # Another hold is renewed meanwhile.
    package.limiter("renewed", capacity=1, rate="0", prefix="renewed:", connect=False)
    assert package.do("hold", on="renewed", amount=1, ttl_ms=TTL_MS, **{"as": "other"})["allowed"]
    eventually(lambda: executed(server, *RENEWING) > 1)
    assert executed(server, *HOLDING) == 2
    assert not package.do("lost")["lost"]
    assert outcome(package.do("settle", used=300)) == let_pass
    assert (executed(server, *SETTLING), executed(server, "tb.charge"), level(server)) == (0, 0, 200)


def test_a_hold_that_is_granted_is_settled_and_never_lost(package: Package, server: Service) -> None:
    package.limiter(capacity=1000, rate="1/h", shadow=True)
    assert outcome(package.do("hold", amount=500, ttl_ms=TTL_MS)) == passed
    ask(server, "DEL", "tb:user")
    ask(server, "TB.CHARGE", "tb:user", 1000, "1/h", 900)
    before = executed(server, *HOLDING, *RENEWING)
    # One may be on its way when the bucket is deleted.
    eventually(lambda: executed(server, *HOLDING, *RENEWING) >= before + 2)
    assert not package.do("lost")["lost"]
    package.do("settle", used=30)
    assert (level(server), ask(server, "TB.HOLDS", "tb:user")) == (70, [])


def test_remembered_denials_and_batches_pass(package: Package, server: Service) -> None:
    package.limiter(capacity=5, rate="1/h", shadow=True, remember_denials=10, connect=False)
    before = executed(server, "tb.take")
    shadowed = [package.take()["shadowed"] for _ in range(20)]
    assert shadowed == [False] * 5 + [True] * 15
    assert executed(server, "tb.take") == before + 6
    package.limiter("batched", capacity=5, rate="1/h", shadow=True, batch=5, connect=False)
    assert [outcome(package.take("other", on="batched")) for _ in range(6)] == [passed] * 5 + [let_pass]
    done = package.many("take", on="batched", name="more", count=20, concurrency=10)
    assert (done["allowed"], done["denied"], level(server, "tb:more")) == (20, 0, 0)


@pytest.mark.also_in_clusters
def test_a_joint_call_passes_and_shows_which_limit_denied(package: Package, server: Service) -> None:
    package.joint({"a": [10, "10/h"], "b": [1, "1/h"]}, shadow=True)
    assert outcome(package.do("take_all", on="j", costs={"a": 1, "b": 1})) == passed
    denied = package.do("take_all", on="j", costs={"a": 1, "b": 1}, max_wait_ms=MAX_WAIT_MS)
    assert outcome(denied) == let_pass
    assert {which: own["shadowed"] for which, own in denied["each"].items()} == {"a": False, "b": True}
    assert outcome(package.do("hold", on="j", amount={"a": 1, "b": 1})) == let_pass
    package.do("settle", used={"a": 1, "b": 1})
    assert (level(server, "tb:{user}:a"), level(server, "tb:{user}:b")) == (9, 0)


@pytest.mark.only("redis-py-asyncio", "ioredis", "go-redis", "redis-rs")
def test_a_middleware_lets_every_request_pass(package: Package) -> None:
    package.limiter(capacity=2, rate="2/h", shadow=True)
    for framework in FRAMEWORKS[package.client.language]:
        port = package.driver.do("http", on="l", framework=framework, name=framework)["port"]
        answers = [get(port) for _ in range(4)]
        assert [status for status, _ in answers] == [200] * 4
        _, headers = answers[-1]
        assert headers["RateLimit"].startswith('"default";r=0;')
        assert headers["Retry-After"] is None
