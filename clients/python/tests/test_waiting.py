"""Calls with `max_wait_ms`: they wait their turn in the server, and keep nobody else waiting."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

import tokenbucket.asyncio
from conftest import Make, until_waiting
from launch import Servers, ask
from services import Service, wait_for
from tokenbucket import BadArgument, Limit, Limiter, Server
from tokenbucket.testing import FakeServer

# One token in six minutes: nothing flows in while a test runs.
STILL = "10/h"
LONG_MS = 60_000

pytestmark = pytest.mark.usefixtures("admin")


def test_a_wait_outlasts_the_timeouts_of_the_server_and_of_the_client(
    make: Make, server: Service, threads: ThreadPoolExecutor
) -> None:
    of_client = {"socket_timeout": 0.05}
    limiter = make(server, Limit(1, STILL), timeout_ms=50, client=of_client, on_error="closed")
    # On a loaded machine connecting may take longer.
    wait_for(lambda: limiter.take("a").allowed, "the first take")
    degraded = limiter.server.degraded_count
    waits = threads.submit(limiter.take, "a", max_wait_ms=LONG_MS)
    until_waiting(server, 1)
    with pytest.raises(TimeoutError):
        waits.result(2 * limiter.server.timeout_ms / 1000)
    assert limiter.server.degraded_count == degraded
    limiter.give("a", 1)
    assert waits.result().allowed


@pytest.mark.parametrize("wrong_ms", [-1, 31 * 86_400_000])
def test_a_wait_that_cannot_be_is_an_error(make: Make, server: Service, wrong_ms: int) -> None:
    limiter, joint = make(server, Limit(1, STILL)), make(server, {"a": Limit(1, STILL)})
    with pytest.raises(BadArgument, match="max_wait_ms"):
        limiter.take("a", max_wait_ms=wrong_ms)
    with pytest.raises(BadArgument, match="max_wait_ms"):
        limiter.hold("a", 1, max_wait_ms=wrong_ms)
    with pytest.raises(BadArgument, match="max_wait_ms"):
        joint.take_all("a", {"a": 1}, max_wait_ms=wrong_ms)


def test_a_failover_sends_those_who_wait_to_the_new_master(
    make_on_cluster: Make, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    with Servers(tmp_path, cluster=True) as nodes:
        master = nodes.nodes[0]
        limiter = make_on_cluster(master, Limit(1, STILL), timeout_ms=5000)
        name = nodes.name_on(master, "tb:")
        assert limiter.take(name).allowed
        replica = nodes.add_replica_of(master)
        wait_for(lambda: ask(replica, "DBSIZE") == 1, "the replica")
        waits = threads.submit(limiter.take, name, max_wait_ms=LONG_MS)
        until_waiting(master, 1)
        nodes.take_over(replica)
        until_waiting(replica, 1)
        limiter.give(name, 1)
        decision = waits.result()
        assert (decision.allowed, decision.degraded) == (True, False)


@pytest.mark.parametrize(
    ("share", "weight", "named"),
    [("", 1, "share"), ("é" * 65, 1, "share"), (b"a", 1, "share")]
    + [("a", weight, "weight") for weight in (0, 0.0009, 1000.001, "many", float("nan"))]
    + [(None, 2, "weight")],
)
def test_a_share_that_cannot_be_is_an_error(
    make: Make, server: Service, share: Any, weight: Any, named: str
) -> None:
    limiter = make(server, Limit(1, STILL))
    for call in (limiter.take, limiter.hold):
        with pytest.raises(BadArgument, match=f"^{named}"):
            call("a", 1, share=share, weight=weight, max_wait_ms=LONG_MS)
    assert limiter.take("a", share="é" * 64, weight="1e3", max_wait_ms=LONG_MS).allowed


def test_in_a_fake_the_wait_takes_its_time() -> None:
    fake = FakeServer()
    limiter = Limiter(fake, Limit(1, "1/s"))
    assert limiter.take("a").allowed
    assert limiter.take("a", max_wait_ms=1000).allowed
    assert fake.monotonic() == 1
    assert not limiter.take("a", max_wait_ms=999).allowed
    assert fake.monotonic() == 1, "a wait that would be in vain is not begun"


# Callers who leave.


def test_a_thread_that_is_interrupted_leaves_the_queue(server: Service) -> None:
    limiter = Limiter(Server(f"redis://127.0.0.1:{server.port}", timeout_ms=20_000), Limit(1, STILL))
    assert limiter.take("a").allowed

    def interrupt() -> None:
        until_waiting(server, 1)
        os.kill(os.getpid(), signal.SIGTERM)  # as Ctrl-C, see conftest.py

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        limiter.take("a", max_wait_ms=LONG_MS)
    interrupting.join()
    until_waiting(server, 0)
    limiter.give("a", 1)
    assert limiter.take("a").allowed
    limiter.close()


def asyncio_limiter(server: Service, limit: Limit, **of_client: str) -> tokenbucket.asyncio.Limiter:
    client = redis.asyncio.Redis(port=server.port, **of_client)  # type: ignore[arg-type]
    return tokenbucket.asyncio.Limiter(tokenbucket.asyncio.Server(client, timeout_ms=20_000), limit)


def test_connections_by_which_nobody_waits_are_closed(server: Service, admin: redis.Redis) -> None:
    async def main() -> None:
        async with asyncio_limiter(server, Limit(1, STILL)) as limiter:
            await limiter.take("a")
            newest = max(connections(admin))
            await asyncio.gather(*(limiter.take("a", max_wait_ms=100) for _ in range(5)))
            await asyncio.to_thread(
                wait_for, lambda: max(connections(admin)) <= newest, "the end of idle connections"
            )

    asyncio.run(main())
    gc.collect()


def connections(admin: redis.Redis) -> list[int]:
    """Their ids, which grow. Those of earlier tests may end at any time."""
    clients: Any = admin.client_list()
    return [int(client["id"]) for client in clients]
