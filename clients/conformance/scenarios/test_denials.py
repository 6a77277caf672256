"""A denial is remembered for as long as it holds, and says nothing about what it does not cover."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import TOKEN_MS, Package, eventually, executed
from launch import ask
from proxy import Proxy
from services import Service

TAKES = ("tb.take", "tb.takeupto")


def limit(package: Package, server: Service, capacity: int, **options: Any) -> None:
    """Makes limiter "l", and asks nobody before."""
    options = {"remember_denials": 10, "connect": False, "timeout_ms": 5000} | options
    package.limit(server, capacity=capacity, rate="10/h", **options)


def test_a_denied_name_is_refused_without_asking(package: Package, server: Service) -> None:
    limit(package, server, capacity=3)
    assert [package.take()["allowed"] for _ in range(4)] == [True, True, True, False]
    told_ms = TOKEN_MS
    for cost in (1, 1, 2, 1):
        refused = package.take(cost=cost)
        assert (refused["allowed"], refused["degraded"]) == (False, False)
        assert 0 < refused["retry_after_ms"] <= told_ms
        told_ms = refused["retry_after_ms"] + TOKEN_MS * (cost - 1)
    assert executed(server, *TAKES) == 4
    assert package.take("other")["allowed"]
    assert not package.take("other", cost=3)["allowed"]
    assert [package.take("other", cost=cost)["allowed"] for cost in (2, 1)] == [True, False]
    never = package.take("other", cost=4)
    assert (never["allowed"], never["remaining"], never["retry_after_ms"]) == (False, 0, -1)


def test_denials_of_so_many_names_are_remembered(package: Package, server: Service) -> None:
    limit(package, server, capacity=1, remember_denials=2)
    for name in "abc":
        assert [package.take(name)["allowed"] for _ in range(2)] == [True, False]
    asked = executed(server, *TAKES)
    assert not any(package.take(name)["allowed"] for name in "bc")
    assert executed(server, *TAKES) == asked
    package.take("a")
    assert executed(server, *TAKES) == asked + 1, "the oldest was forgotten"


@pytest.mark.parametrize("batch", [0, 5])
def test_tokens_that_come_back_by_the_limiter_end_a_denial(
    package: Package, server: Service, batch: int
) -> None:
    limit(package, server, capacity=3, batch=batch)
    assert package.do("hold", amount=3)["allowed"]
    assert not package.take()["allowed"]
    package.do("settle", used=2)
    assert [package.take()["allowed"] for _ in range(2)] == [True, False]
    package.do("give", amount=1)
    assert package.take()["allowed"]


def test_tokens_that_come_back_end_a_denial_by_another_limit(package: Package, server: Service) -> None:
    limit(package, server, capacity=3)
    other = [3, "5/h"]
    assert package.do("hold", amount=3)["allowed"]
    refunds: list[tuple[str, dict[str, Any]]] = [
        ("settle", {"used": 2}),
        ("give", {"amount": 1}),
        ("reset", {}),
    ]
    for refund, words in refunds:
        assert not package.take(limit=other)["allowed"]
        package.do(refund, **words)
        assert package.take(limit=other)["allowed"], refund


def test_tokens_that_come_back_end_a_denial_that_is_on_its_way(
    package: Package, server: Service, proxy: Proxy
) -> None:
    package.limit(proxy, capacity=3, rate="10/h", remember_denials=10, timeout_ms=5000)
    refunds: list[tuple[str, dict[str, Any]]] = [("give", {"amount": 1}), ("settle", {"used": 2})]
    for refund, words in refunds:
        assert package.do("hold", name=refund, amount=3)["allowed"]
        asked = executed(server, *TAKES)
        proxy.delay_s = 0.2
        denied = package.begin("take", name=refund, cost=1)
        eventually(lambda asked=asked: executed(server, *TAKES) == asked + 1)  # type: ignore[misc]
        package.do(refund, name=refund, **words)
        assert not denied.result()["allowed"]
        assert package.take(refund)["allowed"]
        proxy.delay_s = 0


def test_a_denial_by_on_error_is_not_remembered(package: Package, server: Service) -> None:
    limit(package, server, capacity=1, on_error="closed")
    ask(server, "CONFIG", "SET", "maxmemory", 1)
    denied = package.take()
    assert (denied["allowed"], denied["degraded"]) == (False, True)
    ask(server, "CONFIG", "SET", "maxmemory", 0)
    assert package.take()["allowed"]


def test_a_denial_of_a_batch_is_remembered_too(package: Package, server: Service) -> None:
    limit(package, server, capacity=20, batch=10)
    assert sum(package.take()["allowed"] for _ in range(50)) == 20
    assert executed(server, *TAKES) == 3
