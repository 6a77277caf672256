"""While the server is away the limit holds in each process; once it is back, it decides again."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest
import redis

from conftest import Package, StartProxy, StartServer, ask, eventually, is_whole
from drivers import DriverError
from proxy import Proxy
from services import Service


def test_without_a_server_each_process_enforces_the_limit_itself(package: Package, server: Service) -> None:
    server.stop()
    package.server(server)
    package.limiter(capacity=10, rate="10/h", connect=False)
    done = package.many(count=1000, concurrency=50)
    assert (done["allowed"], done["degraded"]) == (10, 1000)
    assert package.driver.do("degraded", server="s")["count"] == 1000


@pytest.mark.parametrize(("policy", "allowed"), [("open", True), ("closed", False)])
def test_other_policies_decide_as_they_say(
    package: Package, server: Service, policy: str, allowed: bool
) -> None:
    server.stop()
    package.server(server)
    package.limiter(capacity=1, rate="1/h", connect=False, on_error=policy)
    for _ in range(3):
        decision = package.take()
        assert (decision["allowed"], decision["degraded"]) == (allowed, True)


def test_a_limiter_that_raises_says_that_the_server_is_away(package: Package, server: Service) -> None:
    server.stop()
    package.server(server)
    package.limiter(capacity=1, rate="1/h", connect=False, on_error="raise")
    with pytest.raises(DriverError, match=f"ServerAway: .*{server.port}"):
        package.take()


def test_outages_that_come_and_go_cost_one_bucket_in_all(package: Package, proxy: Proxy) -> None:
    package.server(proxy, timeout_ms=100, retry_every_ms=100)
    package.limiter(capacity=10, rate="10/h")
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


def test_a_server_that_was_killed_decides_again_when_it_is_back(
    package: Package, server: Service, admin: redis.Redis
) -> None:
    package.server(server, retry_every_ms=100)
    package.limiter(capacity=10, rate="10/h")
    assert package.many(count=20, concurrency=1)["allowed"] == 10
    server.signal(signal.SIGKILL)
    assert server.process
    server.process.wait()
    # The bucket of this process is its own, and full.
    assert package.many(count=20, concurrency=1)["allowed"] == 10
    server.start()
    eventually(lambda: not package.take("other")["degraded"])
    # The server kept nothing, so its bucket is full again.
    done = package.many(count=50, concurrency=10)
    assert (done["allowed"], done["degraded"]) == (10, 0)


@pytest.mark.also_in_clusters
def test_a_restart_between_two_calls_is_no_outage(
    package: Package, server: Service, admin: redis.Redis
) -> None:
    package.server(server, timeout_ms=1000)
    package.limiter(capacity=1, rate="1/h")
    # On several connections, where a package has several.
    assert package.many(name="before", count=20, concurrency=10)["degraded"] == 0
    server.stop()
    # A connection is trusted without a PING for 100 ms. This server loads nothing, and may be back sooner.
    time.sleep(0.2)
    server.start()
    if package.client.in_cluster:
        eventually(lambda: is_whole(admin))
    given = package.driver.do("give", on="l", name="user", amount=1)
    done = package.many(count=1000, concurrency=10)
    assert (given["degraded"], done["allowed"], done["degraded"]) == (False, 1, 0)


def test_an_endpoint_that_moves_to_a_new_master_is_followed_within_a_second(
    package: Package, start_server: StartServer, start_proxy: StartProxy
) -> None:
    old, new = start_server(), start_server()
    endpoint = start_proxy(old)
    package.server(endpoint)
    package.limiter(capacity=10, rate="10/h")
    assert package.many(name="before", count=20, concurrency=10)["degraded"] == 0
    endpoint.redirect(new.port)
    with redis.Redis(port=old.port) as admin:
        admin.execute_command("REPLICAOF", "127.0.0.1", new.port)
    # The open connections still lead to the old master, which now refuses to write.
    package.many(name="meanwhile", concurrency=4, for_ms=1000, per_second=100)
    done = package.many(count=500, concurrency=10)
    assert (done["allowed"], done["degraded"]) == (10, 0)


@pytest.mark.only("python", "node", "node-redis-5", "go")
def test_a_master_that_sentinel_replaced_decides(
    package: Package, watched_pair: tuple[Service, Service, dict[str, Any]]
) -> None:
    old, new, master = watched_pair
    package.server(old, sentinel=master, retry_every_ms=100)
    package.limiter(capacity=10, rate="10/h")
    assert package.many(name="before", count=20)["degraded"] == 0
    old.signal(signal.SIGKILL)
    eventually(lambda: not package.take("meanwhile")["degraded"], within_s=30)
    done = package.many(count=50, concurrency=10)
    assert (done["allowed"], done["degraded"]) == (10, 0)
    with redis.Redis(port=new.port) as admin:
        assert admin.exists("tb:user")


def test_a_cold_start_far_away_connects(package: Package, server: Service, start_proxy: StartProxy) -> None:
    package.server(start_proxy(server, delay_s=0.025))
    package.limiter(capacity=10, rate="10/h", connect=False)
    # As many connections as the callers need, where each has its own.
    eventually(lambda: package.many(name="probe", count=30, concurrency=30)["degraded"] == 0)
    done = package.many(count=30, concurrency=30)
    assert (done["allowed"], done["degraded"]) == (10, 0)


@pytest.mark.only("redis-py-asyncio", "redis-rs")
@pytest.mark.also_in_clusters
def test_a_second_runtime_is_served_as_the_first(package: Package, server: Service) -> None:
    package.server(server)
    package.limiter(capacity=100, rate="1/h")
    assert package.many(count=60, concurrency=60)["degraded"] == 0
    done = package.driver.do("second_runtime", on="l", name="user", count=60)
    assert (done["allowed"], done["degraded"], done["errors"]) == (40, 0, {})


def test_one_node_of_a_cluster_is_an_error_that_names_the_cluster(
    package: Package, start_server: StartServer
) -> None:
    ours, theirs = (start_server("--cluster-enabled", "yes") for _ in range(2))
    with redis.Redis(port=ours.port, decode_responses=True) as one, redis.Redis(port=theirs.port) as other:
        ask(one, "CLUSTER", "ADDSLOTS", *range(8192))
        ask(other, "CLUSTER", "ADDSLOTS", *range(8192, 16_384))
        ask(one, "CLUSTER", "MEET", "127.0.0.1", theirs.port)
        eventually(lambda: is_whole(one), within_s=30)
        slots = {str(at): ask(one, "CLUSTER", "KEYSLOT", f"tb:{at}") for at in range(100)}
    package.server(ours)
    package.limiter(capacity=10, rate="10/h", on_error="open", connect=False)
    name = next(name for name, slot in slots.items() if slot >= 8192)
    with pytest.raises(DriverError, match=r"(?i)cluster"):
        eventually(lambda: not package.take(name)["degraded"])


def test_a_joint_call_waits_while_its_slot_moves(package: Package, start_server: StartServer) -> None:
    old, new = (start_server("--cluster-enabled", "yes") for _ in range(2))
    with (
        redis.Redis(port=old.port, decode_responses=True) as here,
        redis.Redis(port=new.port, decode_responses=True) as there,
    ):
        if here.info("server")["redis_version"].startswith("6.0."):
            pytest.skip("it does not count errors")
        ask(here, "CLUSTER", "ADDSLOTS", *range(16_384))
        ask(here, "CLUSTER", "MEET", "127.0.0.1", new.port)
        eventually(lambda: is_whole(here) and is_whole(there), within_s=30)
        package.server(old, cluster=[f"redis://127.0.0.1:{old.port}"], timeout_ms=5000)
        limits = {"a": [10, "10/h"], "b": [10, "10/h"]}
        package.driver.do("joint", name="j", server="s", limits=limits)
        words = {"on": "j", "name": "ada", "costs": {"a": 1, "b": 1}}
        eventually(lambda: not package.driver.do("take_all", **words)["degraded"])

        slot = ask(here, "CLUSTER", "KEYSLOT", "{ada}")
        ids = [ask(one, "CLUSTER", "MYID") for one in (here, there)]
        ask(there, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        ask(here, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        ask(here, "MIGRATE", "127.0.0.1", new.port, "tb:{ada}:a", 0, 5000)
        taken = package.driver.begin("take_all", **words)
        # One key is here and one is there.
        eventually(lambda: "errorstat_TRYAGAIN" in here.info("errorstats"))
        ask(here, "MIGRATE", "127.0.0.1", new.port, "tb:{ada}:b", 0, 5000)
        for one in (there, here):
            ask(one, "CLUSTER", "SETSLOT", slot, "NODE", ids[1])
        assert (taken.result()["allowed"], taken.result()["degraded"]) == (True, False)
