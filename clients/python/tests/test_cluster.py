"""Clusters of three real nodes, by the cluster clients of redis-py and valkey-py, for threads and asyncio."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from conftest import Make
from launch import Servers, ask
from services import module, wait_for
from tokenbucket import CrossSlot, Limit, Limiter, ModuleMissing, Server

STILL = "10/h"
LIMIT = Limit(10, STILL)


@pytest.fixture(scope="module")
def shared_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("cluster"), cluster=True) as nodes:
        yield nodes


@pytest.fixture
def nodes(shared_nodes: Servers) -> Servers:
    """For the tests that change nothing but buckets; each starts without any."""
    for node in shared_nodes.nodes:
        ask(node, "FLUSHALL")
    return shared_nodes


@pytest.fixture
def own_nodes(tmp_path: Path) -> Iterator[Servers]:
    with Servers(tmp_path, cluster=True) as nodes:
        yield nodes


@pytest.fixture
def bare_nodes(tmp_path: Path) -> Iterator[Servers]:
    with Servers(tmp_path, cluster=True, with_module=False) as nodes:
        yield nodes


def names(nodes: Servers, prefix: str = "tb:") -> list[str]:
    """One on each node."""
    return [nodes.name_on(node, prefix) for node in nodes.nodes]


def test_each_node_decides_on_its_buckets(make_on_cluster: Make, nodes: Servers) -> None:
    limiter = make_on_cluster(nodes.nodes[0], LIMIT, on_error="raise")
    for name, node in zip(names(nodes), nodes.nodes, strict=True):
        assert limiter.take(name, 4).remaining == 6
        assert limiter.take_up_to(name, 2).granted == 2
        assert limiter.reserve(name, 1, max_wait_ms=0).allowed
        with limiter.hold(name, 3) as hold:
            assert limiter.peek(name, 0).remaining == 0
            hold.used = 1
        assert limiter.charge(name, 1).remaining == 1
        assert limiter.give(name, 3).remaining == 4
        assert ask(node, "KEYS", "*") == [f"tb:{name}"]


def test_names_of_one_call_have_to_share_a_hash_tag(make_on_cluster: Make, nodes: Servers) -> None:
    limiter = make_on_cluster(nodes.nodes[0], {"user": LIMIT, "team": LIMIT}, on_error="open")
    one, other, _ = names(nodes)
    assert limiter.take_all({"user": one, "team": one}, {"user": 1, "team": 2}).remaining == 8
    with pytest.raises(CrossSlot, match="share a hash tag"):
        limiter.take_all({"user": one, "team": other}, {"user": 1, "team": 2})
    with pytest.raises(CrossSlot):
        limiter.hold({"user": one, "team": other}, {"user": 1, "team": 2})


def test_without_the_module_a_script_decides_on_every_node_that_lacks_it(
    make_on_cluster: Make, bare_nodes: Servers, caplog: Any
) -> None:
    limits = {"requests": LIMIT, "tokens": LIMIT}
    first = bare_nodes.nodes[0]
    joint = make_on_cluster(first, limits, fallback="script")
    limiter = make_on_cluster(first, LIMIT, fallback="script")
    # Of those without a hash tag, the script's key may be on another node than the module's.
    for name in [*names(bare_nodes), *"abcdefgh"]:
        assert [limiter.take(name, 4).remaining for _ in range(2)] == [6, 2]
        assert not limiter.take(name, 4).allowed
        assert joint.take_all(name, {"requests": 1, "tokens": 2}).remaining == 8
        assert not joint.take_all(name, {"requests": 1, "tokens": 9}).allowed
    with pytest.raises(ModuleMissing, match="holds need"):
        limiter.hold("a", 1)
    with pytest.raises(ModuleMissing, match="fallback='script'"):
        make_on_cluster(first, LIMIT).take("a")
    one, other, _ = names(bare_nodes)
    with pytest.raises(CrossSlot):
        joint.take_all({"requests": one, "tokens": other}, {"requests": 1, "tokens": 1})
    assert not any("cannot ask" in record.message for record in caplog.records)

    ask(first, "MODULE", "LOAD", str(module()))
    ask(first, "FLUSHALL")
    limiter = make_on_cluster(first, LIMIT, fallback="script", prefix="later:")
    for name in names(bare_nodes, "later:"):
        assert limiter.take(name).remaining == 9
    [key] = ask(first, "KEYS", "*")
    assert not key.endswith(":script"), "this node has the module, and decides by it"
    [key] = ask(bare_nodes.nodes[1], "KEYS", "later:*")
    assert key.endswith(":script"), "the others do not"


def test_a_slot_that_moved_is_followed(make_on_cluster: Make, own_nodes: Servers) -> None:
    limiter = make_on_cluster(own_nodes.nodes[0], LIMIT, on_error="raise")
    joint = make_on_cluster(own_nodes.nodes[0], {"a": LIMIT, "b": LIMIT}, on_error="raise")
    names = [own_nodes.name_on(own_nodes.nodes[0]), "moves", "moves, too"]
    for name in names:
        assert limiter.peek(name, 0).remaining == 10
    for name in names:
        to = own_nodes.nodes[(own_nodes.nodes.index(own_nodes.node_of(f"tb:{name}")) + 1) % 3]
        own_nodes.move_slot_of(f"tb:{name}", to)
        assert limiter.take(name).remaining == 9
        assert ask(to, "KEYS", "*") == [f"tb:{name}"]
        ask(to, "FLUSHALL")
    owner = own_nodes.nodes.index(own_nodes.node_of("{moves}"))
    own_nodes.move_slot_of("{moves}", own_nodes.nodes[(owner + 1) % 3])
    assert joint.take_all("moves", {"a": 1, "b": 1}).remaining == 9


def test_a_node_that_is_away_is_an_outage_of_its_buckets_alone(
    make_on_cluster: Make, own_nodes: Servers, caplog: Any
) -> None:
    caplog.set_level(logging.WARNING, "tokenbucket")
    limiter = make_on_cluster(own_nodes.nodes[0], LIMIT, on_error="closed", retry_every_ms=20)
    on_first, on_second, on_third = names(own_nodes)
    for name in (on_first, on_second, on_third):
        assert limiter.take(name).remaining == 9
    own_nodes.nodes[1].stop()
    for _ in range(10):
        assert not limiter.take(on_first, 0).degraded
        away = limiter.take(on_second)
        assert (away.degraded, away.allowed) == (True, False)
        assert not limiter.take(on_third, 0).degraded
    own_nodes.nodes[1].start()
    wait_for(lambda: not limiter.take(on_second, 0).degraded, "limiting again")
    assert limiter.take(on_second, 10).allowed, "it keeps nothing"
    own = [record.getMessage() for record in caplog.records if record.name == "tokenbucket"]
    # It has started before it knows the others: until then, the cluster is down to it.
    assert len(own) == 2, own
    assert str(own_nodes.nodes[1].port) in own[0]
    assert own[1].endswith("is back, limiting again")


@pytest.mark.parametrize("full_coverage", ["yes", "no"])
def test_the_loss_of_a_node_stops_the_others_where_full_coverage_is_required(
    make_on_cluster: Make, tmp_path: Path, full_coverage: str
) -> None:
    options = ["--cluster-node-timeout", "1000", "--cluster-require-full-coverage", full_coverage]
    with Servers(tmp_path, *options, cluster=True) as nodes:
        limiter = make_on_cluster(nodes.nodes[0], LIMIT, on_error="local", retry_every_ms=20)
        on_first = names(nodes)[0]
        assert not limiter.take(on_first).degraded
        nodes.nodes[1].kill()
        wait_for(lambda: "master,fail " in ask(nodes.nodes[0], "CLUSTER", "NODES"), "the failure")
        wait_for(lambda: limiter.take(on_first, 0).degraded == (full_coverage == "yes"), "the outage")


def test_the_replica_of_a_node_that_died_goes_on(make_on_cluster: Make, own_nodes: Servers) -> None:
    master = own_nodes.nodes[1]
    replica = own_nodes.add_replica_of(master)
    limiter = make_on_cluster(own_nodes.nodes[0], LIMIT, on_error="closed", retry_every_ms=20)
    name = own_nodes.name_on(master)
    assert limiter.take(name, 4).remaining == 6
    wait_for(lambda: ask(replica, "DBSIZE") == 1, "the replica")
    master.stop()
    assert limiter.take(name).degraded
    own_nodes.take_over(replica)
    wait_for(lambda: not limiter.take(name, 0).degraded, "limiting again")
    assert limiter.take(name, 4).remaining == 2, "what was taken before is known"


@pytest.mark.parametrize("make_on_cluster", ["redis.asyncio", "valkey.asyncio"], indirect=True)
def test_a_node_that_lost_its_slots_keeps_no_connection(make_on_cluster: Make, own_nodes: Servers) -> None:
    _, master, third = own_nodes.nodes
    _, on_second, on_third = names(own_nodes)
    replica = own_nodes.add_replica_of(master)
    limiter = make_on_cluster(own_nodes.nodes[0], LIMIT, on_error="closed", retry_every_ms=20)
    assert limiter.take(on_second).allowed
    assert limiter.take(on_third).allowed
    own_nodes.take_over(replica)
    third.stop()  # so that the limiter asks for the slots

    def has_gone() -> bool:
        limiter.take(on_third)
        return bool(ask(master, "CLIENT", "LIST").count("flags=N") == 1)

    wait_for(has_gone, "the end of the connection")


def test_a_hold_that_is_settled_while_renewals_are_late_is_not_lost(own_nodes: Servers) -> None:
    first, second, _ = own_nodes.nodes
    with redis.RedisCluster(host="127.0.0.1", port=first.port) as client:
        limiter = Limiter(Server(client, timeout_ms=100), Limit(10, 0))
        on_first, on_second, _ = names(own_nodes)
        losses: list[str] = []
        with limiter.hold(on_second, 1, ttl_ms=3000):
            with limiter.hold(on_first, 1, ttl_ms=3000) as hold:
                hold.on_lost = lambda: losses.append("settled")
                second.signal(signal.SIGSTOP)
                limiter.server.close()  # so that connecting to it takes a second
                time.sleep(1.3)  # the renewals, of both, are under way
            # Long enough for what is late.
            time.sleep(1.5)
            second.signal(signal.SIGCONT)
        assert not losses
        assert not hold.lost
        limiter.close()


def test_one_call_asks_one_silent_node_where_the_slots_are(
    make_on_cluster: Make, own_nodes: Servers, caplog: Any
) -> None:
    limiter = make_on_cluster(own_nodes.nodes[0], LIMIT, on_error="closed", timeout_ms=300)
    for node in own_nodes.nodes:
        node.signal(signal.SIGSTOP)
    assert limiter.take("a").degraded
    away = [record for record in caplog.records if "cannot ask" in record.getMessage()]
    assert len(away) == 1, "one after the other takes a second for each"
    for node in own_nodes.nodes:
        node.signal(signal.SIGCONT)
    wait_for(lambda: not limiter.take("a").degraded, "the cluster")
