"""A hold ends with the work, however that ends, and what a caller reserved comes back if it hangs up."""

from __future__ import annotations

import time
from typing import Any

import pytest

from conftest import WITH_DEADLINES, Package, StartProxy, disconnect, eventually, executed, level, stopped
from launch import ask
from proxy import Proxy
from services import Service

only_with_deadlines = pytest.mark.only(*WITH_DEADLINES)


def is_settled(server: Service) -> bool:
    return ask(server, "TB.HOLDS", "tb:user") == [] and level(server) == 1000


@pytest.mark.also_in_clusters
def test_holds_that_are_cancelled_together_are_all_settled(package: Package, server: Service) -> None:
    # A pool: what is not reported comes back.
    package.limit(server, capacity=1000, rate="0", connect=False)
    package.do("hold_cancelled", amount=10, count=30)
    assert executed(server, "tb.hold", "tb.mhold") == 30
    eventually(lambda: is_settled(server))


@pytest.mark.only("node", "redis-py-asyncio", "redis-rs")  # In Go a call that was sent ends with its reply.
def test_a_hold_that_is_cancelled_while_it_is_requested_comes_back(
    package: Package, server: Service, start_proxy: StartProxy
) -> None:
    # On a starved machine a process may find the reply before its deadline, if both are due.
    package.limit(start_proxy(server, delay_s=0.1), capacity=1000, rate="1/h", timeout_ms=2000)
    done = package.many("hold", count=20, concurrency=20, amount=10, ttl_ms=60_000, deadline_us=10_000)
    assert done["cancelled"] == 20
    eventually(lambda: executed(server, "tb.hold", "tb.mhold") > 0)
    eventually(lambda: is_settled(server))


# In Node and Rust they end by their ttl.
@pytest.mark.only("python", "go")
def test_closing_settles_at_a_server_that_is_back_and_counts_as_away(
    package: Package, server: Service, proxy: Proxy
) -> None:
    package.limit(proxy, capacity=3, rate="0", connect=False, timeout_ms=1000, retry_every_ms=3_600_000)
    for held in "abc":
        package.do("hold", amount=1, ttl_ms=600_000, **{"as": held})
    disconnect(proxy)
    assert all(package.do("settle", hold=held)["degraded"] for held in "abc")
    proxy.redirect(server.port)
    package.driver.do("close", name="s")
    assert not holders(server)


@only_with_deadlines
def test_waits_that_are_cancelled_give_back_what_they_reserved(package: Package, server: Service) -> None:
    package.limit(server, capacity=1, rate="1/h")
    assert package.take()["allowed"]
    done = package.many("wait", count=5, concurrency=5, max_wait_ms=36_000_000, deadline_us=300_000)
    assert done["cancelled"] == 5
    eventually(lambda: executed(server, "tb.reserve") == 5 and level(server) == 0)


# A renewal may be late by two thirds of it, on a starved machine.
TTL_MS = 3000


def holders(server: Service, key: str = "tb:user") -> list[str]:
    return [hold[0] for hold in ask(server, "TB.HOLDS", key)]


def is_lost(package: Package) -> bool:
    return bool(package.do("lost")["lost"])


def takes_both(server: Service) -> bool:
    """Returns whether another holder could take both slots."""
    return bool(ask(server, "TB.HOLD", "tb:user", 2, 0, 2, 60_000, "another")[0] == 1)


def begin_renewing(package: Package, server: Service, at: Service | Proxy, **options: Any) -> None:
    """Holds one of two slots, and waits until it has been renewed."""
    package.limit(at, capacity=2, rate="0", connect=False, timeout_ms=1000, **options)
    held = package.do("hold", amount=1, ttl_ms=TTL_MS)
    assert (held["allowed"], held["degraded"]) == (True, False)
    eventually(lambda: executed(server, "tb.renew", "tb.mrenew") > 0)
    assert not is_lost(package)


def leave_one_slot(server: Service) -> None:
    ask(server, "TB.HOLD", "tb:user", 2, 0, 1, 60_000, "another")


def expect_loss(package: Package, server: Service) -> None:
    """Waits until the holder knows, which takes no slot although one is free."""
    eventually(lambda: is_lost(package))
    assert holders(server) == ["another"]
    assert not package.do("settle")["allowed"]
    assert (holders(server), level(server)) == (["another"], 1)


@pytest.mark.also_in_clusters
def test_a_holder_that_was_suspended_learns_that_its_slot_is_gone(package: Package, server: Service) -> None:
    begin_renewing(package, server, server)
    with stopped(package.driver.pid):
        eventually(lambda: takes_both(server))
        leave_one_slot(server)
    expect_loss(package, server)


def test_a_holder_that_was_cut_off_for_longer_than_its_ttl_learns_it_afterwards(
    package: Package, server: Service, proxy: Proxy
) -> None:
    begin_renewing(package, server, proxy, retry_every_ms=100)
    proxy.stall()
    eventually(lambda: takes_both(server))
    leave_one_slot(server)
    assert not is_lost(package), "only the server can say so"
    proxy.resume()
    expect_loss(package, server)


def test_a_hold_outlasts_an_outage_that_ends_before_its_ttl(
    package: Package, server: Service, start_proxy: StartProxy
) -> None:
    endpoint, ttl_s, policies = start_proxy(server), 9, ("local", "raise")
    package.server(endpoint, timeout_ms=1000, retry_every_ms=100)
    for policy in policies:
        package.limiter(policy, capacity=2, rate="0", connect=False, on_error=policy)
        assert package.do("hold", on=policy, amount=1, ttl_ms=ttl_s * 1000, **{"as": policy})["allowed"]
    disconnect(endpoint)
    time.sleep(0.72 * ttl_s)  # in which two renewals fail
    endpoint.redirect(server.port)
    eventually(lambda: executed(server, "tb.renew", "tb.mrenew") > 1)
    assert [package.do("lost", hold=policy)["lost"] for policy in policies] == [False, False]
    assert len(holders(server)) == 2


def test_a_hold_of_several_limits_is_lost_when_one_of_them_is(package: Package, server: Service) -> None:
    package.server(server, timeout_ms=1000)
    package.joint({"slots": [2, "0"], "tokens": [100, "1/h"]})
    words = {"amount": {"slots": 1, "tokens": 60}, "ttl_ms": TTL_MS}
    assert package.do("hold", on="j", **words)["allowed"]
    eventually(lambda: executed(server, "tb.mrenew") > 0)
    ask(server, "DEL", "tb:{user}:tokens")
    eventually(lambda: is_lost(package))
    package.do("settle", used={"tokens": 20})
    assert holders(server, "tb:{user}:slots") == []
    assert ask(server, "TB.PEEK", "tb:{user}:tokens", 100, "1/h", 0)[1] == 80


@pytest.mark.parametrize("shadow", [False, True])
def test_a_hold_made_without_the_server_is_taken_there_once_there_is_room(
    package: Package, server: Service, proxy: Proxy, shadow: bool
) -> None:
    package.server(proxy, timeout_ms=1000, retry_every_ms=100)
    package.limiter("other", capacity=1000, rate="1/h", prefix="other:")
    package.limiter(capacity=2, rate="0", connect=False, shadow=shadow)
    ask(server, "TB.HOLD", "tb:user", 2, 0, 2, 60_000, "another")
    proxy.stall()
    held = package.do("hold", amount=1, ttl_ms=TTL_MS)
    assert (held["allowed"], held["degraded"]) == (True, True)
    proxy.resume()
    # Beside the other's and the one that stalled, a renewal that the server denies.
    eventually(lambda: executed(server, "tb.hold", "tb.mhold") > 2)
    leave_one_slot(server)
    eventually(lambda: len(holders(server)) == 2)
    eventually(lambda: executed(server, "tb.renew", "tb.mrenew") > 0)
    assert not is_lost(package)
    package.do("settle")
    assert holders(server) == ["another"]


@pytest.mark.only("rust")
def test_processes_forked_before_the_first_call_hold_slots_of_their_own(
    package: Package, server: Service
) -> None:
    package.limit(server, capacity=3, rate="0", connect=False, timeout_ms=5000)
    done = package.do("fork", amount=1, processes=4)
    assert (done["allowed"], done["degraded"]) == (3, 0)
    assert len(holders(server)) == 3
