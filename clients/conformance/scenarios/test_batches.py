"""Tokens fetched in batches are spent as the bucket would have it: none lost, none twice, and memory bounded."""

from __future__ import annotations

import pytest
import redis

from conftest import Package, eventually, level, url_of
from services import Service

PER_S, BATCH, SECONDS = 2000, 100, 8


@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_below_the_rate_are_denied_no_more_than_their_batches(
    package: Package, server: Service, processes: int
) -> None:
    packages = [package, *(package.another() for _ in range(processes - 1))]
    for one in packages:
        one.server(url_of(server))
        one.limiter(capacity=PER_S, rate=f"{PER_S}/s", batch=BATCH)
    demand = 0.8 * PER_S / processes
    loads = [
        one.driver.begin(
            "many", op="take", on="l", name="user", concurrency=8, for_ms=SECONDS * 1000, per_second=demand
        )
        for one in packages
    ]
    done = [load.result() for load in loads]
    assert sum(one["degraded"] for one in done) == 0
    assert sum(one["denied"] for one in done) <= processes * (BATCH - 1), done


def test_a_round_trip_longer_than_a_batch_takes_to_refill_denies_nothing(
    package: Package, server: Service, start_proxy: object
) -> None:
    far = start_proxy(server.port, delay_s=0.02)  # type: ignore[operator]
    package.server(far.url, timeout_ms=500)
    package.limiter(capacity=1000, rate="1000/s", batch=10)
    done = package.many(count=100, concurrency=1)
    assert (done["allowed"], done["denied"], done["degraded"]) == (100, 0, 0)


def test_fifty_callers_of_an_empty_bucket_wait_for_one_fetch(
    package: Package, server: Service, start_proxy: object, admin: redis.Redis
) -> None:
    far = start_proxy(server.port, delay_s=0.01)  # type: ignore[operator]
    package.server(far.url, timeout_ms=500)
    package.limiter(capacity=10, rate="1/h", batch=10)
    admin.execute_command("TB.TAKE", "tb:user", 10, "1/h", 10)
    package.many(name="other", count=1, concurrency=1)  # connects
    before = sum(far.commands[name] for name in ("TB.TAKEUPTO", "TB.PEEK"))
    done = package.many(count=50, concurrency=50)
    assert (done["allowed"], done["denied"]) == (0, 50)
    asked = sum(far.commands[name] for name in ("TB.TAKEUPTO", "TB.PEEK")) - before
    assert asked <= 4, f"{asked} commands for one answer"


def test_batches_of_many_names_take_bounded_memory(package: Package, server: Service) -> None:
    package.server(url_of(server))
    package.limiter(capacity=10, rate="10/d", batch=10)
    package.many(names=20_000, count=20_000, concurrency=50)
    some = package.driver.do("memory")["bytes"]
    package.many(names=100_000, count=100_000, concurrency=50)
    # 80,000 more names: a package that kept each of them would need more than this for their names alone.
    assert package.driver.do("memory")["bytes"] - some < 8_000_000


@pytest.mark.only("python")
def test_a_batch_is_not_shared_over_a_fork(package: Package, server: Service) -> None:
    package.server(url_of(server))
    package.limiter(capacity=100, rate="1/h", batch=100)
    assert package.driver.do("fork", on="l", name="user", processes=8, count=100)["allowed"] == 100


def test_a_take_that_is_cancelled_loses_no_tokens(
    package: Package, server: Service, start_proxy: object, admin: redis.Redis
) -> None:
    far = start_proxy(server.port, delay_s=0.01)  # type: ignore[operator]
    package.server(far.url, timeout_ms=500)
    package.limiter(capacity=1000, rate="1/h", batch=10)
    hurried = package.many(count=200, concurrency=20, deadline_us=5000)
    package.driver.do("close", name="l")  # gives back what its batches have left
    eventually(lambda: level(admin, "tb:user") == 1000 - hurried["allowed"])
