"""Load on the caller's side is not an outage of the server: a flood must not switch the limiter off."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from conftest import Package, url_of
from services import Service


def test_ten_thousand_takes_at_once_get_what_the_bucket_holds(package: Package, server: Service) -> None:
    package.server(url_of(server))
    package.limiter(capacity=10, rate="10/h")
    done = package.many(count=10_000, concurrency=10_000)
    assert (done["allowed"], done["degraded"], done["errors"]) == (10, 0, {})


def test_ten_thousand_takes_at_once_of_a_closed_limiter_all_pass_where_tokens_suffice(
    package: Package, server: Service
) -> None:
    package.server(url_of(server))
    package.limiter(capacity=100_000, rate="100000/h", on_error="closed")
    done = package.many(count=10_000, concurrency=10_000)
    assert (done["allowed"], done["degraded"], done["errors"]) == (10_000, 0, {})


def test_another_client_that_blocks_the_server_costs_at_most_one_bucket(
    package: Package, server: Service, admin: redis.Redis
) -> None:
    package.server(url_of(server))
    package.limiter(capacity=10, rate="10/h")
    load = package.driver.begin("many", op="take", on="l", name="user", concurrency=50, for_ms=5000)
    while not load.done():
        admin.execute_command("DEBUG", "SLEEP", 0.15)
        time.sleep(1.85)
    # One bucket on the server, and at worst one in this process.
    assert 10 <= load.result()["allowed"] <= 20


def test_a_small_timeout_of_one_limiter_says_nothing_to_another(
    package: Package, server: Service, start_proxy: object
) -> None:
    slow = start_proxy(server.port, delay_s=0.0015)  # type: ignore[operator]
    package.server(slow.url, name="hasty", timeout_ms=2)
    package.server(slow.url, name="patient", timeout_ms=1000)
    for name in ("hasty", "patient"):
        package.limiter(name, server=name, capacity=10, rate="10/h", prefix=f"{name}:")
    package.driver.do("take", on="patient", name="user")
    with ThreadPoolExecutor(2) as pool:
        hasty = pool.submit(package.many, on="hasty", concurrency=20, for_ms=2000)
        patient = pool.submit(package.many, on="patient", concurrency=20, for_ms=2000)
    assert patient.result()["allowed"] == 9
    assert hasty.result()["allowed"] <= 20


def test_callers_with_hurried_deadlines_open_no_circuit(package: Package, server: Service) -> None:
    package.server(url_of(server))
    package.limiter(capacity=10, rate="10/h")
    for deadline_us in (30, 200):
        hurried = package.driver.begin(
            "many", op="take", on="l", name="hurried", concurrency=8, for_ms=1500, deadline_us=deadline_us
        )
        over_limit = package.many(name=f"over{deadline_us}", concurrency=8, for_ms=1500)
        assert (over_limit["allowed"], over_limit["degraded"]) == (10, 0)
        assert hurried.result()["allowed"] <= 10


@pytest.mark.only("node", "redis-py-asyncio", "go", "redis-rs")
def test_a_flood_over_http_passes_no_more_than_the_bucket(package: Package, server: Service) -> None:
    from flood import flood

    package.server(url_of(server))
    package.limiter(capacity=20, rate="10/s")
    frameworks = {
        "python": ["starlette"],
        "node": ["express", "fastify"],
        "go": ["net/http"],
        "rust": ["axum"],
    }
    for framework in frameworks[package.language]:
        name = f"all-{framework}"
        port = package.driver.do("http", on="l", framework=framework, name=name)["port"]
        seen = flood(port, connections=3000, seconds=3)
        assert seen.failed == 0, (framework, seen)
        assert 20 <= seen.passed <= 70, (framework, seen)
        assert seen.refused > 0, (framework, seen)
