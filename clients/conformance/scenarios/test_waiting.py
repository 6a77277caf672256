"""A call with max_wait_ms waits its turn in the server: in order, and keeping nobody else waiting."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from conftest import (
    WITH_DEADLINES,
    Package,
    StartNodes,
    StartServer,
    eventually,
    executed,
    info,
    level,
    stopped,
    until_waiting,
)
from drivers import DriverError
from launch import ask
from services import Service

LONG_MS = 60_000


def begin_take(package: Package, *, op: str = "take", **words: Any) -> Future[Any]:
    return package.begin(op, **{"max_wait_ms": LONG_MS, **words})


def drain(package: Package, server: Service, capacity: int = 1, **options: Any) -> None:
    """Makes limiter "l", and takes all that its bucket holds."""
    package.limit(server, capacity=capacity, rate="1/h", **options)
    assert package.take(cost=capacity)["allowed"]


def begin_to_wait(package: Package, server: Service, **options: Any) -> Future[Any]:
    """Begins a call of a drained bucket."""
    drain(package, server, **options)
    waits = begin_take(package)
    until_waiting(server, 1)
    return waits


def give(server: Service, key: str = "tb:user", capacity: int = 1, amount: int = 1) -> None:
    ask(server, "TB.GIVE", key, capacity, "1/h", amount)


@pytest.mark.also_in_clusters
def test_a_call_waits_once_in_the_server_and_keeps_nobody_else(package: Package, server: Service) -> None:
    package.limit(server, capacity=1, rate="1/h")
    assert package.take(max_wait_ms=LONG_MS)["allowed"]
    before = executed(server, "tb.btake")
    waits = begin_take(package)
    until_waiting(server, 1)
    done = package.many(names=100, count=100, concurrency=10)
    assert (done["allowed"], done["degraded"], waits.done()) == (100, 0, False)
    give(server)
    decision = waits.result()
    assert (decision["allowed"], decision["remaining"], decision["degraded"]) == (True, 0, False)
    assert executed(server, "tb.btake") == before + 1


def test_fifty_wait_at_once(package: Package, server: Service) -> None:
    drain(package, server, capacity=50, timeout_ms=5000)
    waits = [begin_take(package) for _ in range(50)]
    until_waiting(server, 50)
    give(server, capacity=50, amount=50)
    assert all(one.result(10)["allowed"] for one in waits)


@pytest.mark.also_in_clusters
def test_one_more_than_may_wait_is_denied_at_once(package: Package, server: Service) -> None:
    ask(server, "CONFIG", "SET", "tokenbucket.max-waiters", 1)
    waits = begin_to_wait(package, server)
    denied = package.take(max_wait_ms=LONG_MS)
    assert (denied["allowed"], denied["degraded"], denied["retry_after_ms"] > 0) == (False, False, True)
    assert info(server)["tokenbucket_waits_refused"] == "1"
    give(server)
    assert waits.result(10)["allowed"]


@pytest.mark.also_in_clusters
def test_a_wait_is_an_error_if_its_connection_has_a_wrong_password(package: Package, server: Service) -> None:
    drain(package, server, timeout_ms=1000)
    # Connections that are open go on to work. A pool may have one that serves a wait.
    ask(server, "CONFIG", "SET", "requirepass", "secret")
    done = package.many(count=10, concurrency=10, max_wait_ms=1000)
    assert done["errors"].get("Other", 0) >= 5, done


# Shares.


@pytest.mark.parametrize(("op", "light"), [("take", {"weight": 0.5}), ("hold", {})])
def test_tenants_are_served_in_proportion_to_their_weights(
    package: Package, server: Service, op: str, light: dict[str, float]
) -> None:
    drain(package, server, timeout_ms=5000)
    weight = 5 * light.get("weight", 1)
    shares: list[dict[str, Any]] = [{"share": "heavy", "weight": weight}, {"share": "light", **light}]
    calls: list[Future[Any]] = []
    for at, share in enumerate(shares * 6):
        # The holds outlast the test: what one gives back would let the next in.
        hold = {"as": f"h{at}", "amount": 1, "ttl_ms": 10 * LONG_MS}
        calls.append(begin_take(package, op=op, **hold, **share))
        until_waiting(server, at + 1)
    heavy, others = calls[::2], calls[1::2]
    for left in reversed(range(12)):
        give(server)
        until_waiting(server, left)
        if left == 6:
            assert all(one.result(10)["allowed"] for one in (*heavy[:5], others[0]))


def test_a_wait_outlasts_the_timeout_and_ends_with_a_denial(package: Package, server: Service) -> None:
    drain(package, server, timeout_ms=100)
    before = package.degraded_count()
    denied = package.take(max_wait_ms=2000)
    assert (denied["allowed"], denied["degraded"]) == (False, False)
    assert 3_000_000 < denied["retry_after_ms"] <= 3_600_000
    assert package.degraded_count() == before


@pytest.mark.also_in_clusters
def test_a_joint_take_waits_until_it_can_take_all(package: Package, server: Service) -> None:
    package.limit(server, capacity=1, rate="1/h")
    package.joint({"a": [5, "1/h"], "b": [5, "1/h"]})
    assert package.do("take_all", on="j", costs={"b": 5})["allowed"]
    waits = begin_take(package, op="take_all", on="j", costs={"a": 1, "b": 1})
    until_waiting(server, 1)
    assert level(server, "tb:{user}:a", full=5) == 5
    give(server, "tb:{user}:b", 5)
    decision = waits.result()
    each = {which: one["remaining"] for which, one in decision["each"].items()}
    assert (decision["allowed"], each) == (True, {"a": 4, "b": 0})
    assert executed(server, "tb.bmtake") == 1


def test_a_call_that_waits_asks_the_server_whatever_is_batched_or_remembered(
    package: Package, server: Service
) -> None:
    package.limit(server, capacity=1, rate="1/h", batch=5, remember_denials=10)
    assert [package.take()["allowed"] for _ in range(2)] == [True, False]
    before = executed(server, "tb.btake")
    waits = begin_take(package)
    until_waiting(server, 1)
    give(server)
    assert waits.result()["remaining"] == 0
    assert executed(server, "tb.btake") == before + 1


@pytest.mark.only(*WITH_DEADLINES)
def test_callers_who_leave_are_out_of_the_queue_at_once(package: Package, server: Service) -> None:
    drain(package, server, capacity=1000)
    words = {"count": 20, "concurrency": 20, "max_wait_ms": LONG_MS, "deadline_us": 500_000}
    assert package.many(**words)["cancelled"] == 20
    assert package.many("hold", amount=1, **words)["cancelled"] == 20
    until_waiting(server, 0)
    give(server, capacity=1000, amount=10)
    assert level(server) == 10
    assert package.take(cost=10)["allowed"]


@pytest.mark.only(*WITH_DEADLINES)
def test_callers_who_leave_while_the_server_is_paused_do_it_no_harm(
    package: Package, server: Service
) -> None:
    drain(package, server, timeout_ms=5000)
    ask(server, "CLIENT", "PAUSE", 1000, "WRITE")
    with pytest.raises(DriverError, match="Cancelled"):
        begin_take(package, deadline_us=200_000).result(30)
    # It comes behind the pause, as the call does that was kept back.
    give(server)
    eventually(lambda: level(server, full=1) == 1)
    until_waiting(server, 0)


def test_a_server_that_ends_meanwhile_leaves_the_call_to_on_error(package: Package, server: Service) -> None:
    waits = begin_to_wait(package, server, on_error="closed")
    server.kill()
    decision = waits.result(30)
    assert (decision["allowed"], decision["degraded"]) == (False, True)


def test_a_server_that_is_silent_is_not_taken_for_one_that_lets_wait(
    package: Package, server: Service
) -> None:
    package.limit(server, capacity=1, rate="1/h")
    eventually(lambda: not package.take(max_wait_ms=1)["degraded"])
    with stopped(server.pid):
        decision = begin_take(package, name="new").result(30)
        assert (decision["allowed"], decision["degraded"]) == (True, True)
    until_waiting(server, 0)


@pytest.mark.only("python", "node", "rust")
@pytest.mark.also_in_clusters
def test_a_call_that_waits_notices_that_its_server_has_become_silent(
    package: Package, server: Service
) -> None:
    waits = begin_to_wait(package, server, on_error="closed")
    with stopped(server.pid):
        decision = waits.result(10)
        assert (decision["allowed"], decision["degraded"]) == (False, True)
    until_waiting(server, 0)


def test_a_slot_that_moves_takes_those_who_wait_along(package: Package, start_nodes: StartNodes) -> None:
    nodes = start_nodes()
    old, new, _ = nodes.nodes
    package.limit(old, capacity=1, rate="1/h", timeout_ms=2000)
    key = f"tb:{(name := nodes.name_on(old))}"
    assert package.take(name)["allowed"]
    waits = begin_take(package, name=name)
    until_waiting(old, 1)
    nodes.move_slot_of(key, new)
    until_waiting(new, 1)
    until_waiting(old, 0)
    give(new, key)
    decision = waits.result(30)
    assert (decision["allowed"], decision["remaining"], decision["degraded"]) == (True, 0, False)


@pytest.mark.only("python", "node", "node-redis-5", "go", "rust")
def test_those_who_wait_follow_the_master_that_sentinel_names(
    package: Package, watched_pair: tuple[Service, Service, Service]
) -> None:
    old, new, sentinel = watched_pair
    package.limit(old, capacity=1000, rate="1/h", prefix="other:", sentinel=sentinel, retry_every_ms=100)
    package.limiter("slots", capacity=1, rate="0", on_error="closed", connect=False)
    words = {"on": "slots", "amount": 1, "ttl_ms": 600_000, "max_wait_ms": LONG_MS}
    first = package.do("hold", **words)
    assert (first["allowed"], first["degraded"]) == (True, False)
    eventually(lambda: ask(new, "EXISTS", "tb:user") == 1)
    waits = package.begin("hold", **{"as": "second"}, **words)
    until_waiting(old, 1)
    old.kill()
    decision = waits.result(30)
    assert (decision["allowed"], decision["degraded"]) == (False, True)
    eventually(lambda: not package.take()["degraded"], within_s=30)
    waits = package.begin("hold", **{"as": "second"}, **words)
    until_waiting(new, 1)
    assert not package.do("settle", used=0)["degraded"]
    decision = waits.result(30)
    assert (decision["allowed"], decision["degraded"]) == (True, False)
    assert len(ask(new, "TB.HOLDS", "tb:user")) == 1


def test_by_the_script_the_call_comes_back_when_it_may_be_granted(
    package: Package, start_server: StartServer
) -> None:
    bare = start_server(with_module=False)
    package.limit(bare, capacity=1, rate="5/s", by="script")
    before = executed(bare, "evalsha")
    for _ in range(3):
        decision = package.take(max_wait_ms=LONG_MS)
        assert (decision["allowed"], decision["degraded"]) == (True, False)
    assert executed(bare, "evalsha") - before < 20


def test_by_the_script_a_call_is_denied_at_once_if_it_may_be_granted_too_late(
    package: Package, start_server: StartServer
) -> None:
    bare = start_server(with_module=False)
    drain(package, bare, by="script", timeout_ms=5000)
    before = executed(bare, "evalsha")
    denied = package.take(max_wait_ms=2000)
    assert (denied["allowed"], denied["degraded"]) == (False, False)
    assert executed(bare, "evalsha") == before + 1, "no second call after the wait"
