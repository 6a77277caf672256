"""A hold ends with the work, however that ends."""

from __future__ import annotations

import redis

from conftest import Package, eventually, level, url_of
from services import Service


def test_holds_that_are_cancelled_together_are_all_settled(
    package: Package, server: Service, admin: redis.Redis
) -> None:
    package.server(url_of(server))
    package.limiter(capacity=1000, rate="1/h")
    package.driver.do("hold_cancelled", on="l", name="user", amount=10, ttl_ms=60_000, count=30)
    eventually(lambda: admin.execute_command("TB.HOLDS", "tb:user") == [])
    assert level(admin, "tb:user") == 1000


def test_a_hold_that_is_cancelled_while_it_is_asked_for_comes_back(
    package: Package, server: Service, start_proxy: object, admin: redis.Redis
) -> None:
    far = start_proxy(server.port, delay_s=0.02)  # type: ignore[operator]
    package.server(far.url, timeout_ms=500)
    package.limiter(capacity=1000, rate="1/h")
    package.many("hold", count=20, concurrency=20, deadline_us=10_000)
    eventually(lambda: admin.execute_command("TB.HOLDS", "tb:user") == [])
    assert level(admin, "tb:user") == 1000


def test_waits_that_are_cancelled_give_back_what_they_reserved(
    package: Package, server: Service, admin: redis.Redis
) -> None:
    package.server(url_of(server))
    package.limiter(capacity=1, rate="1/h")
    assert package.take()["allowed"]
    package.many("wait", count=5, concurrency=5, deadline_us=200_000)
    eventually(lambda: level(admin, "tb:user") == 0)


def test_a_take_that_is_cancelled_on_its_way_gives_back(
    package: Package, server: Service, start_proxy: object, admin: redis.Redis
) -> None:
    far = start_proxy(server.port, delay_s=0.02)  # type: ignore[operator]
    package.server(far.url, timeout_ms=500)
    package.limiter(capacity=1000, rate="1/h")
    package.take("other")  # connects
    done = package.many(count=20, concurrency=20, deadline_us=10_000)
    assert done["cancelled"] == 20
    eventually(lambda: level(admin, "tb:user") == 1000)
