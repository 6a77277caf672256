"""Each node of a cluster decides on its own buckets, with the module or by the script, and is away alone."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from conftest import Package, StartNodes, StartProxy, StartServer, cluster_of_one, eventually, stopped
from drivers import DriverError
from launch import Servers, ask
from services import Service, module

# The cluster clients of valkey-py keep less of what they were given than those of redis-py.
WITH_VALKEY_PY = pytest.mark.only("python", "valkey-py", "valkey-py-asyncio", "node", "go", "rust")
# A bucket that refills by less than a token during a scenario.
LIMIT: dict[str, Any] = {"capacity": 10, "rate": "10/h"}


def limit(package: Package, nodes: Servers, **options: Any) -> None:
    package.limit(nodes.nodes[0], **LIMIT, on_error="closed", timeout_ms=5000, **options)
    package.joint({"a": [10, "10/h"], "b": [10, "10/h"]}, on_error="closed")


def one_on_each(nodes: Servers) -> list[tuple[Service, str]]:
    return [(node, nodes.name_on(node)) for node in nodes.nodes]


def takes(package: Package, name: str, *left: int) -> None:
    """Takes four tokens so often, of which so many are left."""
    for tokens in left:
        decision = package.take(name, cost=4)
        assert (decision["allowed"], decision["remaining"]) == (True, tokens), decision
    assert not package.take(name, cost=11)["allowed"]


def test_each_node_decides_on_its_buckets(package: Package, start_nodes: StartNodes) -> None:
    nodes = start_nodes()
    limit(package, nodes)
    for node, name in one_on_each(nodes):
        takes(package, name, 6)
        assert package.do("take_up_to", name=name, amount=2)["remaining"] == 4
        assert package.do("hold", name=name, amount=3)["allowed"]
        package.do("settle", used=1)
        assert package.do("charge", name=name, amount=1)["remaining"] == 2
        assert package.do("give", name=name, amount=3)["remaining"] == 5
        assert ask(node, "TB.STATE", f"tb:{name}")
    for name in ("ada", "bob", "eve"):
        assert package.do("take_all", on="j", name=name, costs={"a": 1, "b": 2})["remaining"] == 8
        assert package.do("hold", on="j", name=name, amount={"a": 1, "b": 2})["allowed"]
        package.do("settle")


def test_the_script_decides_on_every_node_of_a_cluster(package: Package, start_nodes: StartNodes) -> None:
    nodes = start_nodes(with_module=False)
    ask(nodes.nodes[0], "MODULE", "LOAD", module())
    limit(package, nodes, by="script")
    # Of those without a hash tag, the script's key may be on another node than the module's.
    for name in [*(name for _, name in one_on_each(nodes)), *"abcdefgh"]:
        takes(package, name, 6, 2)
        assert package.do("take_all", on="j", name=name, costs={"a": 1, "b": 2})["remaining"] == 8
    takes(package, "moves", 6)
    owner = nodes.node_of("tb:moves:script")
    nodes.move_slot_of("tb:moves:script", nodes.nodes[(nodes.nodes.index(owner) + 1) % 3])
    takes(package, "moves", 2)
    for node in nodes.nodes:
        assert all(key.endswith(":script") for key in ask(node, "KEYS", "*"))


def test_a_node_that_is_away_is_an_outage_of_its_buckets_alone_until_its_replica_takes_over(
    package: Package, start_nodes: StartNodes
) -> None:
    nodes = start_nodes()
    (_, on_first), (master, on_master), (_, on_third) = one_on_each(nodes)
    replica = nodes.add_replica_of(master)
    limit(package, nodes, retry_every_ms=20)
    for name in (on_first, on_master, on_third):
        takes(package, name, 6)
    eventually(lambda: bool(ask(replica, "DBSIZE") == ask(master, "DBSIZE")))

    master.kill()
    for _ in range(10):
        degraded = [package.take(name, cost=0)["degraded"] for name in (on_first, on_master, on_third)]
        assert degraded == [False, True, False]
    nodes.take_over(replica)
    eventually(lambda: not package.take(on_master, cost=0)["degraded"])
    takes(package, on_master, 2)
    assert package.driver.log.read_text().count("cannot ask") <= 1


def test_slots_of_a_node_that_is_gone_are_found_at_one_that_was_there_before(
    package: Package, start_nodes: StartNodes
) -> None:
    nodes = start_nodes()
    gone, remaining, also_gone = nodes.nodes
    package.limit(remaining, **LIMIT, on_error="closed", retry_every_ms=100)
    for _, name in one_on_each(nodes):
        takes(package, name, 6, 2)
    name, ids = nodes.name_on(gone), [ask(node, "CLUSTER", "MYID") for node in (gone, also_gone)]
    gone.kill()
    also_gone.kill()
    eventually(lambda: package.take(name, cost=0)["degraded"])
    for one in ids:
        ask(remaining, "CLUSTER", "FORGET", one)
    first, last, *_ = ask(remaining, "CLUSTER", "SLOTS")[0]
    ask(remaining, "CLUSTER", "ADDSLOTS", *map(str, [*range(first), *range(last + 1, 16384)]))
    eventually(lambda: not any(package.take(name, cost=0)["degraded"] for _ in range(20)))


def test_a_node_that_refuses_the_user_keeps_no_other_away(package: Package, start_nodes: StartNodes) -> None:
    nodes = start_nodes()
    first, paused, third = nodes.nodes
    package.limit(first, **LIMIT, on_error="closed", retry_every_ms=100)
    for _, name in one_on_each(nodes):
        takes(package, name, 6)

    def is_decided() -> bool:
        with suppress(DriverError):  # of the node that refuses, to which a trial may go
            return not package.take(nodes.name_on(paused), cost=0)["degraded"]
        return False

    for refusing in (first, third):
        ask(refusing, "ACL", "SETUSER", "default", "-tb.take")
        with stopped(paused.pid):
            eventually(lambda: not is_decided())
        eventually(is_decided)
        ask(refusing, "ACL", "SETUSER", "default", "+tb.take")


def test_a_slot_that_no_node_serves_is_an_outage_of_no_node(
    package: Package, start_nodes: StartNodes
) -> None:
    nodes = start_nodes()
    limit(package, nodes)
    names = [name for _, name in one_on_each(nodes)]
    unserved = next(name for name in map(str, range(1000)) if nodes.node_of(f"tb:{name}") == nodes.nodes[0])
    slot = ask(nodes.nodes[0], "CLUSTER", "KEYSLOT", f"tb:{unserved}")
    for node in nodes.nodes:
        ask(node, "CONFIG", "SET", "cluster-require-full-coverage", "no")
        ask(node, "CLUSTER", "DELSLOTS", slot)
    eventually(lambda: not any(package.take(name, cost=0)["degraded"] for name in names))
    for _ in range(20):
        degraded = [package.take(name, cost=0)["degraded"] for name in (unserved, *names)]
        assert degraded == [True, False, False, False]


def test_a_node_that_left_the_cluster_is_asked_no_more(package: Package, start_nodes: StartNodes) -> None:
    nodes = start_nodes()
    leaving = nodes.nodes[1]
    limit(package, nodes, retry_every_ms=20)
    name = nodes.name_on(leaving)
    takes(package, name, 6)
    nodes.take_over(nodes.add_replica_of(leaving))
    eventually(lambda: "role:slave" in ask(leaving, "INFO", "replication"))
    ask(leaving, "CLUSTER", "RESET", "HARD")
    eventually(lambda: not package.take(name, cost=0)["degraded"])


@WITH_VALKEY_PY
def test_a_cluster_that_was_rebuilt_at_other_addresses_is_found_where_its_first_node_was(
    package: Package, start_server: StartServer, start_proxy: StartProxy
) -> None:
    package.client = replace(package.client, in_cluster=True)
    before = cluster_of_one(start_server)
    entrance = start_proxy(before)
    package.limit(entrance, **LIMIT, retry_every_ms=20)
    before.kill()
    # Long enough for the package to have asked everywhere.
    eventually(
        lambda: package.take("a", cost=0)["degraded"] and package.many(cost=0, for_ms=1500)["degraded"] > 0
    )
    entrance.redirect(cluster_of_one(start_server).port)
    eventually(lambda: not package.take("a", cost=0)["degraded"])


@WITH_VALKEY_PY
def test_the_successor_of_a_master_is_found_after_all_nodes_were_away(
    package: Package, start_nodes: StartNodes
) -> None:
    nodes = start_nodes()
    first, master, third = nodes.nodes
    names = [name for _, name in one_on_each(nodes)]
    replica = nodes.add_replica_of(master)
    package.limit(first, **LIMIT, timeout_ms=500, retry_every_ms=20)

    def is_degraded(name: str) -> bool:
        return bool(package.take(name, cost=0)["degraded"])

    eventually(lambda: not any(map(is_degraded, names)))
    for node in (first, master, third):
        node.signal(signal.SIGSTOP)
    eventually(lambda: all(map(is_degraded, names)))
    for node in (first, third):
        node.signal(signal.SIGCONT)
    master.kill()
    nodes.take_over(replica)
    # The others have no calls that would show that they are back.
    eventually(lambda: not is_degraded(names[1]))


@WITH_VALKEY_PY
def test_a_first_call_is_decided_while_one_of_the_nodes_that_were_named_is_away(
    package: Package, start_server: StartServer
) -> None:
    package.client = replace(package.client, in_cluster=True)
    node = cluster_of_one(start_server)
    gone = start_server()
    gone.kill()
    urls = [f"redis://127.0.0.1:{port}" for port in (gone.port, node.port)]
    for start in range(8):
        package.server(node, f"s{start}", cluster=urls)
        package.limiter(f"l{start}", server=f"s{start}", **LIMIT, connect=False)
        assert not package.take(f"n{start}", on=f"l{start}")["degraded"], start


@pytest.mark.only("python", "go", "rust")  # In Node, the drivers choose whom to connect to.
def test_a_first_call_is_decided_while_one_of_the_nodes_that_were_named_is_silent(
    package: Package, start_nodes: StartNodes
) -> None:
    nodes = start_nodes()
    (_, first), (silent, _), (_, third) = one_on_each(nodes)
    for node in nodes.nodes:
        ask(node, "CONFIG", "SET", "cluster-require-full-coverage", "no")
    silent.signal(signal.SIGSTOP)
    urls = [f"redis://127.0.0.1:{node.port}" for node in nodes.nodes]
    for start in range(12):
        # Which node is asked first is random in some.
        package.server(silent, f"s{start}", cluster=urls, timeout_ms=300)
        package.limiter(f"l{start}", server=f"s{start}", **LIMIT, connect=False)
        calls = [package.begin("take", name=name, cost=0, on=f"l{start}") for name in (first, third) * 5]
        assert not any(call.result()["degraded"] for call in calls), start
