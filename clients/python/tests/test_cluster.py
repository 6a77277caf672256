"""Clusters of three real nodes, by the cluster clients of redis-py and valkey-py, for threads and asyncio."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from conftest import Make
from launch import Servers
from services import wait_for
from tokenbucket import CrossSlot, Limit, Limiter, Server

STILL = "10/h"
LIMIT = Limit(10, STILL)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("cluster"), cluster=True) as nodes:
        yield nodes


def names(nodes: Servers, prefix: str = "tb:") -> list[str]:
    """One on each node."""
    return [nodes.name_on(node, prefix) for node in nodes.nodes]


def test_names_of_one_call_have_to_share_a_hash_tag(make_on_cluster: Make, nodes: Servers) -> None:
    limiter = make_on_cluster(nodes.nodes[0], {"user": LIMIT, "team": LIMIT}, on_error="open")
    one, other, _ = names(nodes)
    limiter.reset({"user": one, "team": one})
    assert limiter.take_all({"user": one, "team": one}, {"user": 1, "team": 2}).remaining == 8
    with pytest.raises(CrossSlot, match="share a hash tag"):
        limiter.take_all({"user": one, "team": other}, {"user": 1, "team": 2})
    with pytest.raises(CrossSlot):
        limiter.hold({"user": one, "team": other}, {"user": 1, "team": 2})


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


def test_a_node_that_is_away_is_not_asked_at_every_redirection(
    make_on_cluster: Make, own_nodes: Servers
) -> None:
    old, new, _ = own_nodes.nodes
    limiter = make_on_cluster(old, LIMIT, on_error="closed", timeout_ms=500, retry_every_ms=60_000)
    moving = own_nodes.name_on(old)
    wait_for(lambda: not limiter.take(moving).degraded, "the cluster")
    own_nodes.begin_to_move_slot_of(f"tb:{moving}", new)
    new.signal(signal.SIGSTOP)
    began = time.monotonic()
    assert all(limiter.take(f"{moving}{at}").degraded for at in range(20))
    assert time.monotonic() - began < 8, "each call waits for it"
    new.signal(signal.SIGCONT)


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
