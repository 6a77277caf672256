"""While the server is away the limit holds in each process; once it is back, it decides again."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from conftest import MASTER, Package, StartNodes, StartProxy, StartServer, eventually, info, is_whole
from drivers import DriverError
from launch import Servers, ask
from proxy import Proxy
from services import Service


def test_limiters_of_one_server_object_share_its_bucket_and_others_have_their_own(
    package: Package, server: Service
) -> None:
    server.stop()
    for name in ("s", "t"):
        package.server(server, name)
    for name, of in (("l", "s"), ("same", "s"), ("other", "t")):
        package.limiter(name, server=of, capacity=10, rate="10/h", connect=False)
    done = [package.many(on=name, count=100, concurrency=50) for name in ("l", "same", "other")]
    assert [(one["allowed"], one["degraded"]) for one in done] == [(10, 100), (0, 100), (10, 100)]
    assert package.degraded_count() == 200


def test_other_policies_decide_as_they_say(package: Package, server: Service) -> None:
    server.stop()
    package.server(server)
    for policy in ("open", "closed", "raise"):
        package.limiter(policy, capacity=1, rate="1/h", connect=False, on_error=policy)
    for policy, allowed in (("open", True), ("closed", False)) * 3:
        decision = package.take(on=policy)
        assert (decision["allowed"], decision["degraded"]) == (allowed, True)
    with pytest.raises(DriverError, match=f"ServerAway: .*{server.port}"):
        package.take(on="raise")


# Limits that take turns on a bucket. The key of one that "brief" leaves is gone after a pause.
LIMITS = {"large": (10, "10/h"), "small": (5, "5/h"), "brief": (1, "20/s")}
PAUSE_S = 1.5


TURNS = [
    "take large 3, take small 1",
    "take large 7, give small 5, take large 1",
    # An expiry is only ever lengthened.
    "take brief 1, pause, take large 1",
    "take large 3, take brief 1, pause, take large 1",
    # What takes and gives nothing leaves what is above its capacity.
    "take large 2, take small 6, take large 1",
    "take large 2, take small 0, take large 1",
    "take large 2, give small 1, take large 1",
    "take large 2, charge small 0, take large 1",
    "take large 2, hold small 0, take large 1",
]


def test_limits_that_take_turns_find_the_bucket_that_the_server_would(
    package: Package, server: Service
) -> None:
    package.server(server, timeout_ms=5000, retry_every_ms=100_000)
    for name, (capacity, rate) in LIMITS.items():
        package.limiter(name, capacity=capacity, rate=rate)

    def decided(name: str, calls: str) -> list[tuple[bool, int]]:
        decisions = []
        for operation, *words in map(str.split, calls.split(", ")):
            if operation == "pause":
                time.sleep(PAUSE_S)
                continue
            on, amount = words[0], int(words[1])
            decision = package.do(operation, on=on, name=name, cost=amount, amount=amount)
            decisions.append((decision["allowed"], decision["remaining"]))
        return decisions

    by_the_server = {calls: decided(f"name {at}", calls) for at, calls in enumerate(TURNS)}
    server.stop()
    assert package.take("finds out", on="large")["degraded"]
    assert {calls: decided(f"name {at}", calls) for at, calls in enumerate(TURNS)} == by_the_server


def test_outages_that_come_and_go_cost_one_bucket_in_all(package: Package, proxy: Proxy) -> None:
    package.limit(proxy, capacity=10, rate="10/h", timeout_ms=100, retry_every_ms=100)
    assert package.take(cost=10)["allowed"]
    allowed = 0

    def is_degraded() -> bool:
        nonlocal allowed
        decision = package.take()
        allowed += decision["allowed"]
        return bool(decision["degraded"])

    for _ in range(3):
        proxy.stall()
        eventually(is_degraded)
        allowed += package.many(count=100, concurrency=10)["allowed"]
        proxy.resume()
        eventually(lambda: not is_degraded())
    assert allowed <= 10


def test_a_reply_that_comes_in_part_is_silence(package: Package, proxy: Proxy) -> None:
    package.limit(proxy, capacity=1000, rate="10/h", retry_every_ms=100_000)
    proxy.in_part = "TB.TAKE"
    began = time.monotonic()
    assert package.many(count=5, concurrency=1)["degraded"] == 5
    assert time.monotonic() - began < 1.5, "one call waits for the rest, and none of the others"


def test_a_server_that_was_killed_decides_again_when_it_is_back(package: Package, server: Service) -> None:
    package.limit(server, capacity=10, rate="10/h", retry_every_ms=100)
    assert package.many(count=20, concurrency=1)["allowed"] == 10
    server.kill()
    # The bucket of this process is its own, and full.
    assert package.many(count=20, concurrency=1)["allowed"] == 10
    server.start()
    eventually(lambda: not package.take("other")["degraded"])
    # The server kept nothing, so its bucket is full again.
    done = package.many(count=50, concurrency=10)
    assert (done["allowed"], done["degraded"]) == (10, 0)


def test_a_password_that_is_missing_after_an_outage_is_an_error(package: Package, server: Service) -> None:
    package.limit(server, capacity=10, rate="10/h", on_error="open", retry_every_ms=100)
    server.kill()
    assert package.take()["degraded"]
    server.command += ["--requirepass", "secret"]
    server.start()
    with pytest.raises(DriverError, match=r"(?i)auth"):
        eventually(lambda: not package.take()["degraded"])


@pytest.mark.also_in_clusters
def test_a_restart_between_two_calls_is_no_outage(package: Package, server: Service) -> None:
    package.limit(server, capacity=1, rate="1/h", timeout_ms=1000)
    # On several connections, where a package has several.
    assert package.many(name="before", count=20, concurrency=10)["degraded"] == 0
    server.stop()
    # A connection is trusted without a PING for 100 ms. This server loads nothing, and may be back sooner.
    time.sleep(0.2)
    server.start()
    if package.client.in_cluster:
        eventually(lambda: is_whole(server))
    given = package.do("give", amount=1)
    done = package.many(count=1000, concurrency=10)
    assert (given["degraded"], done["allowed"], done["degraded"]) == (False, 1, 0)


def test_an_endpoint_that_moves_to_a_new_master_is_followed_within_a_second(
    package: Package, start_server: StartServer, start_proxy: StartProxy
) -> None:
    old, new = start_server(), start_server()
    endpoint = start_proxy(old)
    package.limit(endpoint, capacity=10, rate="10/h", timeout_ms=1000)
    assert package.many(name="before", count=20, concurrency=10)["degraded"] == 0
    endpoint.redirect(new.port)
    ask(old, "REPLICAOF", "127.0.0.1", new.port)
    # The open connections still lead to the old master, which now refuses to write.
    package.many(name="meanwhile", concurrency=4, for_ms=1000, per_second=100)
    done = package.many(count=500, concurrency=10)
    assert (done["allowed"], done["degraded"]) == (10, 0)


@pytest.mark.only("ioredis", "ioredis-5", "iovalkey")
def test_a_sentinel_that_is_silent_hides_no_master(
    package: Package, watched_pair: tuple[Service, Service, Service]
) -> None:
    _, _, sentinel = watched_pair
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nodes = [f"127.0.0.1:{port}" for port in (silent.getsockname()[1], sentinel.port)]
        package.limit(sentinel, capacity=10, rate="10/h", sentinel=sentinel, sentinels=nodes)
        assert not package.take()["degraded"]


@pytest.mark.only("node-redis", "node-redis-5")
def test_a_master_that_sentinel_replaces_while_it_is_there_is_left_at_once(
    package: Package, watched_pair: tuple[Service, Service, Service]
) -> None:
    old, new, sentinel = watched_pair
    package.limit(old, capacity=1000, rate="10/h", sentinel=sentinel)
    assert not package.take("before")["degraded"]
    ask(sentinel, "SENTINEL", "FAILOVER", MASTER)
    eventually(lambda: ask(sentinel, "SENTINEL", "get-master-addr-by-name", MASTER)[1] == str(new.port))
    eventually(lambda: package.take("after") and ask(new, "EXISTS", "tb:after") == 1)
    assert info(old)["role"] == "master", "Sentinel demotes it some ten seconds later"


def test_a_cold_start_far_away_connects(package: Package, server: Service, start_proxy: StartProxy) -> None:
    package.limit(start_proxy(server, delay_s=0.025), capacity=10, rate="10/h", connect=False, timeout_ms=400)
    # As many connections as the callers need, where each has its own.
    eventually(lambda: package.many(name="probe", count=30, concurrency=30)["degraded"] == 0)
    done = package.many(count=30, concurrency=30)
    assert (done["allowed"], done["degraded"]) == (10, 0)


@pytest.mark.only("redis-py-asyncio")  # Rust has it among its own tests.
@pytest.mark.also_in_clusters
def test_a_second_runtime_is_served_as_the_first(package: Package, server: Service) -> None:
    package.limit(server, capacity=100, rate="1/h", timeout_ms=5000)
    assert package.many(count=60, concurrency=60)["degraded"] == 0
    done = package.do("second_runtime", count=60)
    assert (done["allowed"], done["degraded"], done["errors"]) == (40, 0, {})


def test_one_node_of_a_cluster_is_an_error_that_names_the_cluster(package: Package, tmp_path: Path) -> None:
    with Servers(tmp_path, cluster=True) as nodes:
        ours, theirs, _ = nodes.nodes
        package.limit(ours, capacity=10, rate="10/h", on_error="open", connect=False)
        with pytest.raises(DriverError, match=r"(?i)cluster"):
            eventually(lambda: not package.take(nodes.name_on(theirs))["degraded"])


def refusals(node: Service) -> int:
    """How often the node did not have all keys of a call."""
    return int(info(node).get("errorstat_tryagain", "count=0").removeprefix("count="))


def test_calls_follow_a_slot_while_it_moves_and_joint_ones_wait(
    package: Package, start_nodes: StartNodes
) -> None:
    nodes = start_nodes()
    old = nodes.node_of("{user}")
    new = next(node for node in nodes.nodes if node is not old)
    if info(old)["redis_version"].startswith("6.0."):
        pytest.skip("it does not count errors")
    package.limit(old, capacity=10, rate="10/h", timeout_ms=5000)
    limits = {"a": [10, "10/h"], "b": [10, "10/h"]}
    package.joint(limits)
    costs = {"a": 1, "b": 1}
    eventually(lambda: not package.do("take_all", on="j", costs=costs)["degraded"])

    package.server(old, "hasty", timeout_ms=1000)
    package.driver.do("joint", name="hasty", server="hasty", limits=limits)
    eventually(lambda: not package.do("take_all", on="hasty", costs={"a": 0})["degraded"])

    nodes.begin_to_move_slot_of("{user}", new)
    ask(old, "MIGRATE", "127.0.0.1", new.port, "tb:{user}:a", 0, 5000)
    # One key is here and one is there.
    began = time.monotonic()
    assert package.do("take_all", on="hasty", costs=costs)["degraded"]
    assert time.monotonic() - began < 3, "three timeouts"
    refused = refusals(old)
    taken = package.begin("take_all", on="j", costs=costs)
    eventually(lambda: refusals(old) > refused)
    ask(old, "MIGRATE", "127.0.0.1", new.port, "tb:{user}:b", 0, 5000)
    # Both are there, to which the node that still has the slot sends each call by itself.
    assert (taken.result()["allowed"], taken.result()["degraded"]) == (True, False)
    given = package.do("give", name="{user}:a", amount=1)
    assert (given["remaining"], given["degraded"]) == (9, False)
    slot, id = ask(old, "CLUSTER", "KEYSLOT", "{user}"), ask(new, "CLUSTER", "MYID")
    for one in (new, old):
        ask(one, "CLUSTER", "SETSLOT", slot, "NODE", id)
    assert not package.take("{user}:b")["degraded"]
