"""A hold ends with the work, however that ends, and what a caller reserved comes back if it hangs up."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from conftest import WITH_DEADLINES, WITH_UNDO, Package, StartProxy, eventually, executed, level
from launch import ask
from services import Service

only_with_deadlines = pytest.mark.only(*WITH_DEADLINES)


def is_settled(server: Service) -> bool:
    return ask(server, "TB.HOLDS", "tb:user") == [] and level(server) == 1000


@pytest.mark.also_in_clusters
def test_holds_that_are_cancelled_together_are_all_settled(package: Package, server: Service) -> None:
    package.server(server)
    # A pool: what is not reported comes back.
    package.limiter(capacity=1000, rate="0", connect=False)
    package.do("hold_cancelled", amount=10, count=30)
    assert executed(server, "tb.hold", "tb.mhold") == 30
    eventually(lambda: is_settled(server))


def test_a_hold_that_is_settled_inside_its_block_is_settled_once(package: Package, server: Service) -> None:
    package.server(server)
    package.limiter(capacity=1000, rate="1/h")
    package.do("settle_inside", amount=100, used=30)
    assert executed(server, "tb.settle", "tb.msettle") == 1
    assert executed(server, "tb.hold", "tb.mhold") == 1
    assert (ask(server, "TB.HOLDS", "tb:user"), level(server)) == ([], 970)


@pytest.mark.only("redis-py-asyncio")
def test_holds_of_callers_who_hang_up_are_settled(package: Package, server: Service) -> None:
    package.server(server)
    package.limiter(capacity=1000, rate="1/h")
    words = {"framework": "starlette that holds", "name": "user", "amount": 10, "ttl_ms": 60_000}
    port = package.driver.do("http", on="l", **words)["port"]
    with ExitStack() as hang_up:
        for _ in range(20):
            caller = hang_up.enter_context(socket.create_connection(("127.0.0.1", port)))
            caller.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        eventually(lambda: len(ask(server, "TB.HOLDS", "tb:user")) == 20)
    eventually(lambda: is_settled(server))


@only_with_deadlines
def test_a_hold_that_is_cancelled_while_it_is_requested_comes_back(
    package: Package, server: Service, start_proxy: StartProxy
) -> None:
    package.server(start_proxy(server, delay_s=0.02), timeout_ms=1000)
    package.limiter(capacity=1000, rate="1/h")
    done = package.many("hold", count=20, concurrency=20, amount=10, ttl_ms=60_000, deadline_us=10_000)
    assert done["cancelled"] == 20
    eventually(lambda: executed(server, "tb.hold", "tb.mhold") > 0)
    eventually(lambda: is_settled(server))


@only_with_deadlines
def test_waits_that_are_cancelled_give_back_what_they_reserved(package: Package, server: Service) -> None:
    package.server(server)
    package.limiter(capacity=1, rate="1/h")
    assert package.take()["allowed"]
    done = package.many("wait", count=5, concurrency=5, max_wait_ms=36_000_000, deadline_us=300_000)
    assert done["cancelled"] == 5
    eventually(lambda: executed(server, "tb.reserve") == 5 and level(server) == 0)


@pytest.mark.only(*WITH_UNDO)
def test_a_take_that_is_cancelled_on_its_way_gives_back(
    package: Package, server: Service, start_proxy: StartProxy
) -> None:
    package.server(start_proxy(server, delay_s=0.02), timeout_ms=1000)
    package.limiter(capacity=1000, rate="1/h")
    before = executed(server, "tb.take")
    done = package.many(count=20, concurrency=20, deadline_us=10_000)
    assert done["cancelled"] == 20
    eventually(lambda: executed(server, "tb.take") > before)
    eventually(lambda: level(server) == 1000)
