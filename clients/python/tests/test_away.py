"""A server that stops, hangs, comes back, refuses, lacks the module or gains it."""

from __future__ import annotations

import logging
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from conftest import Make
from services import Service, module, redis_server, wait_for
from tokenbucket import Limit, ModuleMissing, ServerAway, TokenBucketError

STILL = "10/h"


@pytest.mark.parametrize(("on_error", "allowed"), [("open", True), ("closed", False)])
def test_a_server_that_stops_and_comes_back(
    make: Make, own_server: Service, caplog: Any, on_error: str, allowed: bool
) -> None:
    limiter = make(own_server, Limit(2, STILL), on_error=on_error, retry_every_ms=20)
    # Many connections, so that many are dead when the server comes back.
    with ThreadPoolExecutor(20) as threads:
        assert sum(threads.map(lambda _: limiter.take("a").allowed, range(20))) == 2

    with caplog.at_level(logging.WARNING, "tokenbucket"):
        own_server.stop()
        for _ in range(5):
            decision = limiter.take("a")
            assert (decision.allowed, decision.degraded) == (allowed, True)
            assert (decision.retry_after_ms > 0) == (not allowed)
        assert len(caplog.records) == 1, "logged once, not for every call"

        own_server.start()
        wait_for(lambda: not limiter.take("a", 0).degraded, "limiting again", within_s=5)
        decisions = [limiter.take("a") for _ in range(20)]
        assert not any(decision.degraded for decision in decisions)
        assert sum(decision.allowed for decision in decisions) == 2
        assert len(caplog.records) == 2


def test_a_limiter_that_is_to_raise_does(make: Make, own_server: Service) -> None:
    limiter = make(own_server, Limit(2, STILL), on_error="raise", retry_every_ms=0)
    assert limiter.take("a").allowed
    own_server.stop()
    for _ in range(3):
        with pytest.raises(ServerAway):
            limiter.take("a")
    own_server.start()
    assert limiter.take("a").allowed


def test_a_server_that_hangs_is_waited_for_once(make: Make, own_server: Service) -> None:
    timeout_s = 0.5
    limiter = make(own_server, Limit(2, STILL), timeout_ms=500, retry_every_ms=60_000)
    limiter.take("a")
    own_server.signal(signal.SIGSTOP)
    began = time.monotonic()
    decisions = [limiter.take("a") for _ in range(100)]
    assert time.monotonic() - began < 10 * timeout_s, "once, and not a hundred times"
    assert all(decision.allowed and decision.degraded for decision in decisions)


def test_a_server_that_hangs_costs_a_flood_the_timeout_and_no_more(make: Make, own_server: Service) -> None:
    limiter = make(own_server, Limit(2, STILL), timeout_ms=500, retry_every_ms=20)
    own_server.signal(signal.SIGSTOP)
    began = time.monotonic()
    with ThreadPoolExecutor(60) as threads:
        decisions = list(threads.map(lambda _: limiter.take("a"), range(60)))
    assert time.monotonic() - began < 5
    assert all(decision.allowed and decision.degraded for decision in decisions)
    own_server.signal(signal.SIGCONT)
    wait_for(lambda: not limiter.take("b").degraded, "limiting again", within_s=5)


def test_only_one_call_at_a_time_asks_a_server_that_is_away(make: Make, own_server: Service) -> None:
    limiter = make(own_server, Limit(2, STILL), timeout_ms=1000, retry_every_ms=1)
    own_server.signal(signal.SIGSTOP)
    assert limiter.take("a").degraded
    time.sleep(0.01)  # until the next may ask
    with ThreadPoolExecutor(10) as threads:
        began = time.monotonic()
        waits = list(threads.map(lambda _: (limiter.take("a"), time.monotonic() - began)[1], range(10)))
    assert sum(wait > 0.5 for wait in waits) == 1, waits


def test_a_hold_that_nobody_was_asked_for_is_charged_in_the_end(make: Make, own_server: Service) -> None:
    limiter = make(own_server, Limit(1000, STILL), retry_every_ms=60_000)
    own_server.stop()
    with limiter.hold("a", 500) as hold:
        assert hold.decision.degraded
        own_server.start()
        hold.used = 120
    assert limiter.peek("a", 0).remaining == 880


@pytest.mark.usefixtures("admin")
def test_a_wrong_call_does_not_pass_by_failing_open(make: Make, server: Service, admin: redis.Redis) -> None:
    limiter = make(server, Limit(10, STILL))
    with pytest.raises(TokenBucketError, match="cost"):
        limiter.take("a", -1)
    with pytest.raises(TokenBucketError, match="rate"):
        limiter.take("a", limit=Limit(10, 0))
    admin.set("tb:a", "something else")
    with pytest.raises(TokenBucketError, match=r"WRONGTYPE|wrong kind"):
        limiter.take("a")
    assert limiter.take("b").allowed


def test_who_may_not_call_is_told(make: Make, tmp_path: Path) -> None:
    server = redis_server(tmp_path, "--requirepass", "secret")
    server.start()
    try:
        with redis.Redis(port=server.port, password="secret") as admin:
            admin.execute_command("ACL", "SETUSER", "reader", "on", ">r", "~*", "+hello", "+tb.peek")
        for client in ({}, {"password": "wrong"}, {"username": "reader", "password": "r"}):
            limiter = make(server, Limit(10, STILL), client=client)
            for _ in range(2):
                with pytest.raises(TokenBucketError, match=r"(?i)auth|password|permission"):
                    limiter.take("a")
        assert make(server, Limit(10, STILL), client={"password": "secret"}).take("a").allowed
    finally:
        server.stop()


def test_a_full_server_refuses_new_buckets_and_limits_the_others(
    make: Make, tmp_path: Path, caplog: Any
) -> None:
    server = redis_server(tmp_path)
    server.start()
    try:
        limiter = make(server, Limit(2, STILL), on_error="closed")
        assert limiter.take("old").allowed
        with redis.Redis(port=server.port) as admin:
            admin.config_set("maxmemory", "1")
        for name in ("new", "newer"):
            refused = limiter.take(name)
            assert (refused.allowed, refused.degraded) == (False, True)
            assert [limiter.take("old").degraded for _ in range(3)] == [False] * 3
        assert len(caplog.records) == 1
    finally:
        server.stop()


@pytest.fixture
def bare_server(tmp_path: Path) -> Any:
    server = redis_server(tmp_path, with_module=False)
    server.start()
    yield server
    server.stop()


def gains_the_module(server: Service) -> None:
    with redis.Redis(port=server.port) as admin:
        admin.execute_command("MODULE", "LOAD", str(module()))


def test_a_server_without_the_module_is_no_reason_to_let_everybody_through(
    make: Make, bare_server: Service
) -> None:
    limiter = make(bare_server, Limit(1, STILL), on_error="open")
    for _ in range(2):
        with pytest.raises(ModuleMissing, match="fallback='script'"):
            limiter.take("a")
    gains_the_module(bare_server)
    assert limiter.take("a").remaining == 0


def test_without_the_module_a_script_decides(make: Make, bare_server: Service, caplog: Any) -> None:
    limiter = make(bare_server, Limit(3, STILL), fallback="script")
    assert [limiter.take("a").allowed for _ in range(4)] == [True, True, True, False]
    assert limiter.give("a", 2).remaining == 2
    assert limiter.peek("a").remaining == 1
    assert limiter.take_up_to("a", 5).granted == 2
    assert limiter.charge("a", 4).remaining == -4
    assert not limiter.reserve("a", max_wait_ms=10).allowed
    with redis.Redis(port=bare_server.port) as admin:
        assert admin.keys() == [b"tb:a:script"]
    assert len(caplog.records) == 1


def test_without_the_module_a_script_decides_over_several_limits(make: Make, bare_server: Service) -> None:
    limits = {"requests": Limit(3, STILL), "tokens": Limit(100, STILL)}
    limiter = make(bare_server, limits, fallback="script")
    taken = limiter.take_all("demo", {"requests": 1, "tokens": 60})
    assert {which: one.remaining for which, one in taken.each.items()} == {"requests": 2, "tokens": 40}
    assert not limiter.take_all("demo", {"requests": 1, "tokens": 60}).allowed


def test_holds_say_that_they_need_the_module(make: Make, bare_server: Service) -> None:
    limiter = make(bare_server, Limit(3, STILL), fallback="script")
    with pytest.raises(ModuleMissing, match="holds need"):
        limiter.hold("a", 1)


def test_the_script_survives_that_the_server_forgets_it(make: Make, bare_server: Service) -> None:
    limiter = make(bare_server, Limit(3, STILL), fallback="script")
    limiter.take("a")
    with redis.Redis(port=bare_server.port) as admin:
        admin.script_flush()
    assert limiter.take("a").remaining == 1


def test_a_server_that_gains_the_module_uses_it_after_a_reconnect(make: Make, bare_server: Service) -> None:
    limiter = make(bare_server, Limit(3, STILL), fallback="script")
    assert limiter.take("a").remaining == 2
    gains_the_module(bare_server)
    assert limiter.take("a").remaining == 1, "not within a minute on the same connection"
    with redis.Redis(port=bare_server.port) as admin:
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert limiter.take("a").remaining == 0, "the call that reconnects was meant for the script"
        assert limiter.take("a").remaining == 2, "the module's own bucket, which is full"
        assert admin.execute_command("TB.STATE", "tb:a") is not None
