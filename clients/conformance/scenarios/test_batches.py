"""Tokens fetched in batches are spent once and none is lost, in bounded memory."""

from __future__ import annotations

import pytest

from conftest import TOKEN_MS, Package, StartProxy, eventually, executed, level
from launch import ask
from services import Service

PER_S, BATCH, SECONDS, PROCESSES = 2000, 100, 5, 3


def test_processes_below_the_rate_are_denied_no_more_than_they_hold_in_batches(
    package: Package, server: Service
) -> None:
    packages = [package, *(package.another() for _ in range(PROCESSES - 1))]
    for one in packages:
        one.limit(server, capacity=PER_S, rate=f"{PER_S}/s", batch=BATCH, timeout_ms=1000)
    words = {"op": "take", "concurrency": 8, "for_ms": SECONDS * 1000, "per_second": 0.8 * PER_S / PROCESSES}
    loads = [one.begin("many", **words) for one in packages]
    done = [load.result() for load in loads]
    assert sum(one["degraded"] for one in done) == 0, done
    assert sum(one["denied"] for one in done) <= PROCESSES * (BATCH - 1), done


def test_a_batch_is_fetched_once_and_spent_here(package: Package, server: Service) -> None:
    package.limit(server, capacity=1000, rate="1/h", batch=10, connect=False, timeout_ms=5000)
    assert [package.take()["remaining"] for _ in range(30)] == list(range(999, 969, -1))
    assert executed(server, "tb.takeupto") == 3
    # What is more than a batch, or a fraction, is taken from the bucket.
    assert package.take(cost=50)["remaining"] == 920
    assert package.take(cost=0.5)["remaining"] == 919
    assert package.take()["remaining"] == 918
    package.driver.do("close", name="l")  # gives back what the fourth batch has left
    eventually(lambda: level(server) == 918)


def test_a_batch_that_is_too_small_says_when_there_is_enough(package: Package, server: Service) -> None:
    package.limit(server, capacity=5, rate="10/h", batch=4, connect=False, timeout_ms=5000)
    assert [package.take(cost=2)["allowed"] for _ in range(2)] == [True, True]
    denied = package.take(cost=2)
    assert (denied["allowed"], denied["remaining"]) == (False, 1)
    # One token is here, and one is lacking.
    assert 300_000 < denied["retry_after_ms"] <= TOKEN_MS
    assert package.take()["allowed"]


def test_calls_of_different_costs_are_not_denied_what_the_bucket_has(
    package: Package, server: Service
) -> None:
    package.limit(server, capacity=1_000_000, rate="100/h", batch=10, timeout_ms=5000)
    loads = [package.begin("many", op="take", cost=cost, for_ms=1000, concurrency=4) for cost in (1, 8)]
    done = [load.result() for load in loads]
    assert [(one["denied"], one["degraded"]) for one in done] == [(0, 0)] * 2, done


def test_a_reset_drops_a_batch_of_another_limit(package: Package, server: Service) -> None:
    package.limit(server, capacity=10, rate="1/h", batch=10, connect=False, timeout_ms=5000)
    other = [10, "2/h"]
    assert package.take(limit=other)["allowed"]
    package.do("reset")
    assert [package.take(limit=other)["allowed"] for _ in range(11)] == 10 * [True] + [False]


def test_limiters_with_batches_pass_what_there_is_and_no_more(package: Package, server: Service) -> None:
    package.server(server, timeout_ms=5000)
    limiters = ["one", "two", "three"]
    for name in limiters:
        package.limiter(name, capacity=250, rate="1/h", batch=100)
    loads = [package.begin("many", op="take", on=name, count=400, concurrency=8) for name in limiters]
    done = [load.result() for load in loads]
    assert sum(one["degraded"] for one in done) == 0, done
    # Each went on until it was denied, so no token lies unused.
    assert sum(one["allowed"] for one in done) == 250, done


def test_a_round_trip_longer_than_a_batch_takes_to_refill_denies_nothing(
    package: Package, server: Service, start_proxy: StartProxy
) -> None:
    package.limit(start_proxy(server, delay_s=0.02), capacity=1000, rate="1000/s", batch=10, timeout_ms=1000)
    done = package.many(count=100, concurrency=1)
    assert (done["allowed"], done["denied"], done["degraded"]) == (100, 0, 0)


@pytest.mark.only("node", "rust")  # In the others, callers ask for themselves meanwhile.
def test_fifty_callers_of_an_empty_bucket_wait_for_one_fetch(
    package: Package, server: Service, start_proxy: StartProxy
) -> None:
    # A round trip in which even a busy machine starts fifty callers.
    far = start_proxy(server, delay_s=0.15)
    package.limit(far, capacity=10, rate="1/h", batch=10, timeout_ms=2000)
    ask(server, "TB.TAKE", "tb:user", 10, "1/h", 10)
    before = far.count("TB.")
    done = package.many(count=50, concurrency=50)
    assert (done["allowed"], done["denied"], done["degraded"]) == (0, 50, 0)
    # A fetch and what tells the times of the denial; once more for callers that came after it was sent.
    assert far.count("TB.") - before <= 4


def test_batches_of_many_names_take_bounded_memory_at_a_constant_price(
    package: Package, server: Service
) -> None:
    package.limit(server, capacity=10, rate="10/d", batch=2, timeout_ms=1000)
    # Every one of these takes needs a fetch. A walk through all names would cost far more than that.
    few = package.many(names=1000, count=1000, concurrency=20)
    some = package.many(names=12_000, count=12_000, concurrency=20)
    assert some["per_call_us"] < 10 * few["per_call_us"], (few, some)
    before = int(package.driver.do("memory")["bytes"])
    # A package keeps most of what it has seen now. One more that is kept costs 200 bytes and more; the heap's
    # own fragments cost some tens.
    package.many(names=25_000, count=25_000, concurrency=20)
    assert int(package.driver.do("memory")["bytes"]) - before < 3_500_000


@pytest.mark.only("redis-rs")
def test_a_process_keeps_less_than_a_batch(
    package: Package, server: Service, start_proxy: StartProxy
) -> None:
    far = start_proxy(server, delay_s=0.1)
    package.limit(far, capacity=1000, rate="1/h", batch=100, timeout_ms=2000)
    assert package.take()["allowed"]
    for _ in range(3):
        before = executed(server, "tb.takeupto")
        assert package.many(count=1, cost=100, deadline_us=10_000)["cancelled"] == 1
        eventually(lambda before=before: executed(server, "tb.takeupto") > before)  # type: ignore[misc]
    far.stall()
    done = package.many(count=300, concurrency=1)
    assert done["allowed"] - done["degraded"] <= 99, done


@pytest.mark.only("node")
def test_a_take_that_is_cancelled_loses_no_tokens_of_its_batch(
    package: Package, server: Service, start_proxy: StartProxy
) -> None:
    package.limit(start_proxy(server, delay_s=0.01), capacity=1000, rate="1/h", batch=10, timeout_ms=1000)
    done = package.many(count=200, concurrency=20, deadline_us=5000)
    assert done["cancelled"] > 0
    package.driver.do("close", name="l")  # gives back what its batches have left
    assert done["degraded"] == 0
    eventually(lambda: level(server) == 1000 - done["allowed"])
