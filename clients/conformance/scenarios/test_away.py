"""While the server is away the limit holds in each process; once it is back, it decides again."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
import redis

from conftest import Package, eventually, url_of
from proxy import Proxy
from services import Service


def test_nobody_there_is_one_bucket_in_this_process(package: Package, server: Service) -> None:
    url = url_of(server)
    server.stop()
    package.server(url)
    package.limiter(capacity=10, rate="10/h")
    done = package.many(count=1000, concurrency=50)
    assert (done["allowed"], done["degraded"]) == (10, 1000)
    assert package.driver.do("degraded", server="s")["count"] == 1000


@pytest.mark.parametrize("policy, allowed", [("open", True), ("closed", False)])
def test_other_policies_decide_as_they_say(
    package: Package, server: Service, policy: str, allowed: bool
) -> None:
    url = url_of(server)
    server.stop()
    package.server(url)
    package.limiter(capacity=1, rate="1/h", on_error=policy)
    for _ in range(3):
        decision = package.take()
        assert (decision["allowed"], decision["degraded"]) == (allowed, True)


def test_outages_that_come_and_go_cost_one_bucket(package: Package, proxy: Proxy) -> None:
    package.server(proxy.url, timeout_ms=100, retry_every_ms=100)
    package.limiter(capacity=10, rate="10/h")
    assert package.take(cost=10)["allowed"]
    allowed = 0
    for _ in range(3):
        proxy.stall()
        eventually(lambda: package.take()["degraded"])
        allowed += package.many(count=100, concurrency=10)["allowed"]
        proxy.resume()
        eventually(lambda: not package.take()["degraded"])
    assert allowed <= 10


def test_a_server_that_was_killed_decides_again_when_it_is_back(
    package: Package, start_server: Callable[..., Service]
) -> None:
    server = start_server()
    package.server(url_of(server), retry_every_ms=100)
    package.limiter(capacity=10, rate="10/h")
    assert package.many(count=20, concurrency=1)["allowed"] == 10
    server.signal(signal.SIGKILL)
    assert server.process
    server.process.wait()
    # The local bucket is this process's own, and full.
    assert package.many(count=20, concurrency=1)["allowed"] == 10
    server.start()
    eventually(lambda: not package.take("other")["degraded"])
    done = package.many(count=50, concurrency=10)
    assert (done["allowed"], done["degraded"]) == (10, 0)


def test_a_restart_between_two_calls_is_no_outage(package: Package, server: Service) -> None:
    package.server(url_of(server))
    package.limiter(capacity=1, rate="1/h")
    assert package.many(name="before", count=20, concurrency=10)["degraded"] == 0
    server.stop()
    server.start()
    package.driver.do("give", on="l", name="user", amount=1)
    done = package.many(count=1000, concurrency=10)
    assert (done["allowed"], done["degraded"]) == (1, 0)


def test_an_endpoint_that_moves_to_a_new_master_is_followed(
    package: Package, start_server: Callable[..., Service], start_proxy: Callable[..., Proxy]
) -> None:
    old, new = start_server(), start_server()
    endpoint = start_proxy(old.port)
    package.server(endpoint.url)
    package.limiter(capacity=10, rate="10/h")
    assert package.take("before")["allowed"]
    endpoint.redirect(new.port)
    with redis.Redis(port=old.port) as admin:
        admin.execute_command("REPLICAOF", "127.0.0.1", new.port)
    # The connections that are open still lead to the old master, which refuses as a replica.
    eventually(lambda: not package.take("probe")["degraded"])
    done = package.many(count=500, concurrency=10)
    assert (done["allowed"], done["degraded"]) == (10, 0)


def test_a_cold_start_far_away_connects(package: Package, server: Service, start_proxy: object) -> None:
    far = start_proxy(server.port, delay_s=0.025)  # type: ignore[operator]
    package.server(far.url)
    package.limiter(capacity=10, rate="10/h")
    eventually(lambda: not package.take("probe")["degraded"])
    done = package.many(count=30, concurrency=30)
    assert (done["allowed"], done["degraded"]) == (10, 0)


@pytest.mark.only("redis-py-asyncio", "redis-rs")
def test_a_second_runtime_is_served_as_the_first(package: Package, server: Service) -> None:
    package.server(url_of(server))
    package.limiter(capacity=100, rate="1/h")
    assert package.many(count=60, concurrency=60)["degraded"] == 0
    done = package.driver.do("second_runtime", on="l", name="user", count=60)
    assert (done["allowed"], done["degraded"], done["errors"]) == (40, 0, {})


def test_a_node_of_a_cluster_is_no_server(package: Package, start_server: Callable[..., Service]) -> None:
    nodes = [start_server("--cluster-enabled", "yes") for _ in range(2)]
    admins = [redis.Redis(port=node.port, decode_responses=True) for node in nodes]
    admins[0].execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
    admins[1].execute_command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
    admins[0].execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port)
    for admin in admins:
        eventually(lambda admin=admin: "cluster_state:ok" in str(admin.execute_command("CLUSTER", "INFO")))  # type: ignore[misc]
    package.server(url_of(nodes[0]))
    package.limiter(capacity=10, rate="10/h", on_error="open")
    from drivers import DriverError

    with pytest.raises(DriverError, match="(?i)cluster"):
        for at in range(20):
            package.take(str(at))
