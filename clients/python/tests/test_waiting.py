"""Calls with `max_wait_ms`: they wait their turn in the server, and keep nobody else waiting."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio

import tokenbucket.asyncio
from conftest import Make, until_waiting
from services import Service, wait_for
from tokenbucket import Limit, Limiter, Server
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
