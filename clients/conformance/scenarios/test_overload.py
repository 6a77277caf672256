"""Load on the caller's side is not an outage of the server: a flood must not switch the limiter off."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest

from conftest import FRAMEWORKS, WITH_DEADLINES, Package, StartProxy, Witness, eventually, get, level, stopped
from proxy import Proxy
from services import Service


def test_ten_thousand_takes_at_once_get_what_the_bucket_holds(package: Package, server: Service) -> None:
    package.limit(server, capacity=10, rate="10/h")
    began = time.monotonic()
    with Witness(server) as witness:
        done = package.many(count=10_000, concurrency=10_000)
    # Go has the connections of the application's pool, and a call waits a second for one.
    is_cut = package.client.library == "go-redis" and time.monotonic() - began > 1
    assert done["errors"] == {}
    if is_cut:
        assert done["allowed"] + done["degraded"] >= 10
    if not witness.saw_an_outage and not is_cut:
        assert (done["allowed"], done["degraded"]) == (10, 0), witness.silence_s
    else:
        assert done["allowed"] <= 20


def test_a_server_that_is_blocked_now_and_then_costs_at_most_one_bucket(
    package: Package, server: Service
) -> None:
    package.limit(server, capacity=10, rate="10/h")
    load = package.begin("many", op="take", concurrency=50, for_ms=5000)
    # What is granted by replies that come too late is lost.
    eventually(lambda: level(server, full=10) == 0)
    while not load.done():
        # As a slow command of another client.
        with stopped(server.pid):
            time.sleep(0.15)
        time.sleep(1.85)
    # One bucket on the server, and one in this process.
    assert 10 <= load.result()["allowed"] <= 20


def test_a_small_timeout_of_one_limiter_says_nothing_to_another(
    package: Package, server: Service, start_proxy: StartProxy
) -> None:
    slow = start_proxy(server, delay_s=0.0015)
    package.server(slow, name="hasty", timeout_ms=2)
    package.server(slow, name="patient", timeout_ms=1000)
    package.limiter("patient", server="patient", capacity=10, rate="10/h", prefix="patient:")
    # No reply comes within its timeout, so it need not reach the server.
    package.limiter("hasty", server="hasty", capacity=10, rate="10/h", prefix="hasty:", connect=False)
    words = {"op": "take", "concurrency": 20, "for_ms": 2000}
    hasty, patient = (package.begin("many", on=name, **words) for name in ("hasty", "patient"))
    done = patient.result()
    assert (done["allowed"], done["degraded"]) == (10, 0)
    assert hasty.result()["allowed"] <= 20


@pytest.mark.only("python", "node", "rust")
def test_a_path_that_slows_down_gradually_holds_no_call_for_long(package: Package, proxy: Proxy) -> None:
    package.limit(proxy, capacity=1e6, rate="10/h", timeout_ms=300)
    took_s: list[float] = []

    def begin() -> Future[Any]:
        began = time.monotonic()
        call = package.begin("take")
        call.add_done_callback(lambda _: took_s.append(time.monotonic() - began))
        return call

    calls, begun = [], time.monotonic()
    while (passed_s := time.monotonic() - begun) < 6:
        # Replies keep coming, each a little later than the one before.
        proxy.delay_s = passed_s / 4
        calls.append(begin())
        time.sleep(0.01)
    for call in calls:
        call.result(30)
    # Three timeouts, and a second to connect for the calls that try the server again. A process that is too
    # busy to read in time waits longer.
    assert max(took_s) < 2.2, sorted(took_s)[-20:]
    assert sum(one > 1.2 for one in took_s) < len(took_s) / 4, sorted(took_s)[::50]


@pytest.mark.only(*WITH_DEADLINES)
def test_callers_with_hurried_deadlines_let_nobody_pass_a_limit(package: Package, server: Service) -> None:
    package.limit(server, capacity=10, rate="10/h")
    for deadline_us in (30, 200):
        words = {"concurrency": 8, "for_ms": 1500, "deadline_us": deadline_us}
        hurried = package.begin("many", op="take", name="hurried", **words)
        with Witness(server) as witness:
            over_limit = package.many(name=f"over{deadline_us}", concurrency=8, for_ms=1500)
        if witness.saw_an_outage:
            assert over_limit["allowed"] <= 20
        else:
            assert (over_limit["allowed"], over_limit["degraded"]) == (10, 0), witness.silence_s
        assert hurried.result()["allowed"] <= 20


@pytest.mark.only("node-redis")  # The other packages have it among their own tests.
def test_callers_from_one_network_of_ipv6_share_a_bucket(package: Package, server: Service) -> None:
    package.limit(server, capacity=1, rate="1/h")
    for at, framework in enumerate(FRAMEWORKS[package.client.language]):
        port = package.driver.do("http", on="l", framework=framework)["port"]

        callers = [f"2001:db8:{at}::{host:x}" for host in range(100)]
        of_one = Counter(get(port, **{"X-Forwarded-For": caller})[0] for caller in callers)
        assert of_one == {200: 1, 429: 99}, framework
        assert get(port, **{"X-Forwarded-For": f"2001:db8:{at}:1::"})[0] == 200, framework
