"""Clusters of three real nodes, by the cluster clients of redis-py and valkey-py, for threads and asyncio."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from conftest import Make
from launch import Servers, ask, wait_until
from services import wait_for
from tokenbucket import CrossSlot, Limit, Limiter, Server

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


def names(nodes: Servers, prefix: str = "tb:") -> list[str]:
    """One on each node."""
    return [nodes.name_on(node, prefix) for node in nodes.nodes]


def test_names_of_one_call_have_to_share_a_hash_tag(make_on_cluster: Make, nodes: Servers) -> None:
    limiter = make_on_cluster(nodes.nodes[0], {"user": LIMIT, "team": LIMIT}, on_error="open")
    one, other, _ = names(nodes)
    assert limiter.take_all({"user": one, "team": one}, {"user": 1, "team": 2}).remaining == 8
    with pytest.raises(CrossSlot, match="share a hash tag"):
        limiter.take_all({"user": one, "team": other}, {"user": 1, "team": 2})
    with pytest.raises(CrossSlot):
        limiter.hold({"user": one, "team": other}, {"user": 1, "team": 2})


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


@pytest.mark.parametrize("make_on_cluster", ["redis", "redis.asyncio"], indirect=True)
def test_a_call_at_a_node_that_a_slot_moves_to_outlasts_a_look_for_slots(
    make_on_cluster: Make, own_nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.choice", lambda nodes: nodes[0])  # whom to ask for the slots
    _, second, third = own_nodes.nodes
    _, on_second, on_third = names(own_nodes)
    new = own_nodes._add()
    own_nodes._meet(new)
    slot = ask(new, "CLUSTER", "KEYSLOT", on_second)
    wait_until(new, "CLUSTER INFO", "cluster_state:ok")
    wait_until(second, "CLUSTER NODES", ask(new, "CLUSTER", "MYID"))
    own_nodes._set_slot(new, slot, "IMPORTING", second)
    own_nodes._set_slot(second, slot, "MIGRATING", new)
    limiter = make_on_cluster(own_nodes.nodes[0], LIMIT, on_error="closed", retry_every_ms=20)
    assert limiter.take(on_second).allowed
    assert limiter.take(on_third).allowed
    ask(new, "CLIENT", "PAUSE", 60_000, "WRITE")
    with ThreadPoolExecutor() as threads:
        charged = threads.submit(limiter.charge, on_second, 1)
        third.stop()
        for _ in range(5):  # so that the limiter asks for the slots
            assert limiter.take(on_third).degraded
            time.sleep(0.05)
        ask(new, "CLIENT", "UNPAUSE")
        assert not charged.result().lost


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
