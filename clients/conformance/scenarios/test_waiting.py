"""A call with max_wait_ms waits its turn in the server: in order, and keeping nobody else waiting."""

from __future__ import annotations

import random
import signal
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from conftest import WITH_DEADLINES, Package, StartServer, ask, eventually, executed, level
from drivers import DriverError
from launch import Servers
from services import Service

LONG_MS = 60_000


def waiting(server: Service) -> int:
    with redis.Redis(port=server.port) as admin:
        return int(admin.info("everything")["tokenbucket_waiting"])


def until_waiting(server: Service, count: int) -> None:
    eventually(lambda: waiting(server) == count)


def begin_take(package: Package, *, on: str = "l", op: str = "take", **words: Any) -> Future[Any]:
    return package.driver.begin(op, **{"on": on, "name": "user", "max_wait_ms": LONG_MS, **words})


@pytest.mark.also_in_clusters
def test_a_call_waits_once_in_the_server_and_keeps_nobody_else(
    package: Package, server: Service, admin: redis.Redis
) -> None:
    package.server(server)
    package.limiter(capacity=1, rate="1/h")
    assert package.take(max_wait_ms=LONG_MS)["allowed"]
    before = executed(admin, "tb.btake")
    waits = begin_take(package)
    until_waiting(server, 1)
    done = package.many(names=100, count=100, concurrency=10)
    assert (done["allowed"], done["degraded"], waits.done()) == (100, 0, False)
    ask(admin, "TB.GIVE", "tb:user", 1, "1/h", 1)
    decision = waits.result()
    assert (decision["allowed"], decision["remaining"], decision["degraded"]) == (True, 0, False)
    assert executed(admin, "tb.btake") == before + 1


def test_fifty_who_wait_are_served_in_order(package: Package, server: Service, admin: redis.Redis) -> None:
    package.server(server, timeout_ms=5000)
    package.limiter(capacity=50, rate="1/h")
    assert package.take(cost=50)["allowed"]
    waits: list[Future[Any]] = []
    for count in range(50):
        waits.append(begin_take(package))
        until_waiting(server, count + 1)
    for served in range(1, 51):
        ask(admin, "TB.GIVE", "tb:user", 50, "1/h", 1)
        assert waits[served - 1].result(10)["allowed"]
        assert not any(one.done() for one in waits[served:])


# Shares.


@pytest.mark.also_in_clusters
@pytest.mark.parametrize("op", ["take", "hold"])
def test_a_tenant_with_one_call_is_served_second_beside_one_with_many(
    package: Package, server: Service, admin: redis.Redis, op: str
) -> None:
    package.server(server, timeout_ms=5000)
    package.limiter(capacity=1, rate="1/h")
    assert package.take()["allowed"]
    calls: list[Future[Any]] = []
    for share in ("loud", "loud", "loud", "quiet"):
        hold: dict[str, Any] = (
            {"as": f"h{len(calls)}", "amount": 1, "ttl_ms": 10 * LONG_MS} if op == "hold" else {}
        )
        calls.append(begin_take(package, op=op, share=share, **hold))
        until_waiting(server, len(calls))
    first, second, third, quiet = calls
    for served in range(1, 5):
        ask(admin, "TB.GIVE", "tb:user", 1, "1/h", 1)
        until_waiting(server, 4 - served)
        order = [first, quiet, second, third]
        assert all(one.result(10)["allowed"] for one in order[:served])
        assert not any(one.done() for one in order[served:])


def test_tenants_are_served_in_proportion_to_their_weights(
    package: Package, server: Service, admin: redis.Redis
) -> None:
    package.server(server, timeout_ms=5000)
    package.limiter(capacity=1, rate="1/h")
    assert package.take()["allowed"]
    heavy, light = [], []
    for count in range(6):
        heavy.append(begin_take(package, share="heavy", weight=2.5))
        until_waiting(server, 2 * count + 1)
        light.append(begin_take(package, share="light", weight=0.5))
        until_waiting(server, 2 * count + 2)
    for served in range(1, 7):
        ask(admin, "TB.GIVE", "tb:user", 1, "1/h", 1)
        until_waiting(server, 12 - served)
    assert all(one.result(10)["allowed"] for one in (*heavy[:5], light[0]))
    for _ in range(6):
        left = waiting(server)
        ask(admin, "TB.GIVE", "tb:user", 1, "1/h", 1)
        until_waiting(server, left - 1)


@pytest.mark.parametrize(
    "wrong",
    [{"share": "a" * 129}, *({"share": "a", "weight": one} for one in (0.0001, 1000.001))],
)
def test_a_share_that_cannot_be_is_an_error_and_takes_nothing(
    package: Package, server: Service, admin: redis.Redis, wrong: dict[str, Any]
) -> None:
    package.server(server)
    package.limiter(capacity=1, rate="1/h")
    with pytest.raises(DriverError) as error:
        package.take(max_wait_ms=LONG_MS, **wrong)
    assert error.value.kind == "BadArgument"
    assert any(
        word in error.value.text for word in (["weight"] if "weight" in wrong else ["share", "tenant"])
    )
    assert executed(admin, "tb.btake") == 0


def test_a_wait_outlasts_the_timeout_and_ends_with_a_denial(
    package: Package, server: Service, admin: redis.Redis
) -> None:
    package.server(server, timeout_ms=100)
    package.limiter(capacity=1, rate="1/h")
    assert package.take()["allowed"]
    before = package.driver.do("degraded", server="s")["count"]
    denied = package.take(max_wait_ms=2000)
    assert (denied["allowed"], denied["degraded"]) == (False, False)
    assert 3_000_000 < denied["retry_after_ms"] <= 3_600_000
    assert package.driver.do("degraded", server="s")["count"] == before


@pytest.mark.also_in_clusters
def test_a_joint_take_waits_until_it_can_take_all(
    package: Package, server: Service, admin: redis.Redis
) -> None:
    package.server(server)
    package.limiter(capacity=1, rate="1/h")
    package.driver.do("joint", name="j", server="s", limits={"a": [5, "1/h"], "b": [5, "1/h"]})
    assert package.driver.do("take_all", on="j", name="user", costs={"b": 5})["allowed"]
    costs = {"a": 1, "b": 1}
    waits = package.driver.begin("take_all", on="j", name="user", costs=costs, max_wait_ms=LONG_MS)
    until_waiting(server, 1)
    assert level(admin, "tb:{user}:a", full=5) == 5
    ask(admin, "TB.GIVE", "tb:{user}:b", 5, "1/h", 1)
    decision = waits.result()
    each = {which: one["remaining"] for which, one in decision["each"].items()}
    assert (decision["allowed"], each) == (True, {"a": 4, "b": 0})
    assert executed(admin, "tb.bmtake") == 1


def test_a_hold_waits_for_the_slot_of_another(package: Package, server: Service, admin: redis.Redis) -> None:
    package.server(server)
    package.limiter(capacity=1, rate="1/h", prefix="other:")
    package.limiter("slots", capacity=1, rate="0", connect=False)
    words = {"on": "slots", "name": "user", "amount": 1, "ttl_ms": 30_000, "max_wait_ms": LONG_MS}
    assert package.driver.do("hold", **{"as": "first"}, **words)["allowed"]
    waits = package.driver.begin("hold", **{"as": "second"}, **words)
    until_waiting(server, 1)
    package.driver.do("settle", hold="first", used=0)
    assert waits.result()["allowed"]
    assert len(ask(admin, "TB.HOLDS", "tb:user")) == 1
    package.driver.do("settle", hold="second", used=0)
    assert ask(admin, "TB.HOLDS", "tb:user") == []


def test_a_call_that_waits_asks_the_server_whatever_is_batched(
    package: Package, server: Service, admin: redis.Redis
) -> None:
    package.server(server)
    package.limiter(capacity=10, rate="1/h", batch=5)
    assert package.take("other")["allowed"]
    before = executed(admin, "tb.btake")
    assert package.take(max_wait_ms=LONG_MS)["remaining"] == 9
    assert executed(admin, "tb.btake") == before + 1


@pytest.mark.only(*WITH_DEADLINES)
def test_callers_who_leave_are_out_of_the_queue_at_once(
    package: Package, server: Service, admin: redis.Redis
) -> None:
    package.server(server)
    package.limiter(capacity=1000, rate="1/h")
    assert package.take(cost=1000)["allowed"]
    words: dict[str, Any] = {"max_wait_ms": LONG_MS, "deadline_us": 500_000}
    done = package.many(count=20, concurrency=20, **words)
    assert done["cancelled"] == 20
    done = package.many("hold", count=20, concurrency=20, amount=1, ttl_ms=60_000, **words)
    assert done["cancelled"] == 20
    until_waiting(server, 0)
    ask(admin, "TB.GIVE", "tb:user", 1000, "1/h", 10)
    assert level(admin, "tb:user") == 10
    assert package.take(cost=10)["allowed"]


@pytest.mark.only(*WITH_DEADLINES)
def test_what_is_granted_to_callers_who_leave_comes_back(
    package: Package, server: Service, admin: redis.Redis
) -> None:
    package.server(server, timeout_ms=5000)
    package.limiter(capacity=1000, rate="1/h")
    assert package.take(cost=1000)["allowed"]
    given = 0
    waits = []
    for _ in range(200):
        waits.append(begin_take(package, deadline_us=random.randrange(1000, 30_000)))
        ask(admin, "TB.GIVE", "tb:user", 1000, "1/h", 1)
        given += 1
    kept = sum(is_allowed(one) for one in waits)
    until_waiting(server, 0)
    eventually(lambda: level(admin, "tb:user") == given - kept)


@pytest.mark.only(*WITH_DEADLINES)
def test_callers_who_leave_while_the_server_is_paused_do_it_no_harm(
    package: Package, server: Service, admin: redis.Redis
) -> None:
    package.server(server, timeout_ms=5000)
    package.limiter(capacity=1, rate="1/h")
    assert package.take()["allowed"]
    ask(admin, "CLIENT", "PAUSE", 1000, "WRITE")
    assert not is_allowed(begin_take(package, deadline_us=200_000))
    # It comes behind the pause, as the call does that was kept back.
    ask(admin, "TB.GIVE", "tb:user", 1, "1/h", 1)
    eventually(lambda: level(admin, "tb:user", full=1) == 1)
    until_waiting(server, 0)


def is_allowed(call: Future[Any]) -> bool:
    """False for a caller who has left."""
    try:
        decision = call.result(30)
    except DriverError as error:
        if error.kind != "Cancelled":
            raise
        return False
    assert (decision["allowed"], decision["degraded"]) == (True, False)
    return True


def test_a_server_that_ends_meanwhile_leaves_the_call_to_on_error(package: Package, server: Service) -> None:
    package.server(server)
    package.limiter(capacity=1, rate="1/h", on_error="closed")
    assert package.take(max_wait_ms=LONG_MS)["allowed"]
    waits = begin_take(package)
    until_waiting(server, 1)
    server.kill()
    decision = waits.result(30)
    assert (decision["allowed"], decision["degraded"]) == (False, True)


def test_a_server_that_is_silent_is_not_taken_for_one_that_lets_wait(
    package: Package, server: Service
) -> None:
    package.server(server)
    package.limiter(capacity=1, rate="1/h")
    eventually(lambda: not package.take(max_wait_ms=1)["degraded"])
    server.signal(signal.SIGSTOP)
    try:
        decision = begin_take(package, name="new").result(30)
        assert (decision["allowed"], decision["degraded"]) == (True, True)
    finally:
        server.signal(signal.SIGCONT)
    until_waiting(server, 0)


def test_a_slot_that_moves_takes_those_who_wait_along(package: Package, tmp_path: Path) -> None:
    package.client = replace(package.client, in_cluster=True)
    with Servers(tmp_path, cluster=True) as nodes:
        old, new, _ = nodes.nodes
        package.server(old, timeout_ms=2000)
        package.limiter(capacity=1, rate="1/h")
        key = f"tb:{(name := nodes.name_on(old))}"
        assert package.take(name)["allowed"]
        waits = begin_take(package, name=name)
        until_waiting(old, 1)
        nodes.move_slot_of(key, new)
        until_waiting(new, 1)
        assert waiting(old) == 0
        with redis.Redis(port=new.port) as admin:
            ask(admin, "TB.GIVE", key, 1, "1/h", 1)
        decision = waits.result(30)
        assert (decision["allowed"], decision["remaining"], decision["degraded"]) == (True, 0, False)


@pytest.mark.only("python", "node", "go")
def test_those_who_wait_follow_the_master_that_sentinel_names(
    package: Package, watched_pair: tuple[Service, Service, dict[str, Any]]
) -> None:
    old, new, master = watched_pair
    package.server(old, sentinel=master, retry_every_ms=100)
    package.limiter(capacity=1000, rate="1/h", prefix="other:")
    package.limiter("slots", capacity=1, rate="0", on_error="closed", connect=False)
    words = {"on": "slots", "name": "user", "amount": 1, "ttl_ms": 600_000, "max_wait_ms": LONG_MS}
    first = package.driver.do("hold", **{"as": "first"}, **words)
    with redis.Redis(port=old.port) as admin:
        assert (first["allowed"], first["degraded"], admin.wait(1, 10_000)) == (True, False, 1)
    waits = package.driver.begin("hold", **{"as": "second"}, **words)
    until_waiting(old, 1)
    old.signal(signal.SIGKILL)
    decision = waits.result(30)
    assert (decision["allowed"], decision["degraded"]) == (False, True)
    eventually(lambda: not package.take()["degraded"], within_s=30)
    waits = package.driver.begin("hold", **{"as": "second"}, **words)
    until_waiting(new, 1)
    assert not package.driver.do("settle", hold="first", used=0)["degraded"]
    decision = waits.result(30)
    assert (decision["allowed"], decision["degraded"]) == (True, False)
    with redis.Redis(port=new.port) as admin:
        assert len(ask(admin, "TB.HOLDS", "tb:user")) == 1


def test_without_the_module_the_call_comes_back_when_it_may_be_granted(
    package: Package, start_server: StartServer
) -> None:
    bare = start_server(with_module=False)
    package.server(bare, fallback="script")
    package.limiter(capacity=1, rate="5/s")
    with redis.Redis(port=bare.port) as admin:
        before = executed(admin, "evalsha")
        for _ in range(3):
            decision = package.take(max_wait_ms=LONG_MS)
            assert (decision["allowed"], decision["degraded"]) == (True, False)
        assert executed(admin, "evalsha") - before < 20
    package.server(bare, "without")
    package.limiter("strict", capacity=1, rate="5/s", connect=False, server="without")
    with pytest.raises(DriverError) as missing:
        package.take(on="strict", max_wait_ms=LONG_MS)
    assert missing.value.kind == "ModuleMissing"
