"""What limiters do on a real server, by threads and by asyncio, on redis-py and on valkey-py."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio

from conftest import Make, until_waiting
from launch import ask
from proxy import Proxy
from services import Service, wait_for
from tokenbucket import BadArgument, Decision, Denied, Limit, Limiter, Server
from tokenbucket.api.operations import done
from tokenbucket.testing import FakeServer

# One token in six minutes: nothing flows in while a test runs.
STILL = "10/h"
LONG_MS = 60_000

pytestmark = pytest.mark.usefixtures("admin")


def test_reset_says_what_the_full_bucket_has(make: Make, server: Service) -> None:
    limiter = make(server, Limit("10.5", STILL))
    limiter.take("a", 4)
    reset = limiter.reset("a")
    assert (reset.allowed, reset.remaining, reset.degraded) == (True, 10, False)
    assert limiter.peek("a", 0).remaining == 10
    joint = make(server, {"one": Limit(10, STILL), "other": Limit(3, STILL)})
    assert joint.reset("a").remaining == 3


def test_a_limit_given_to_a_call_is_for_that_call(make: Make, server: Service) -> None:
    limiter = make(server, Limit(1, STILL))
    assert limiter.take("a", 5, limit=Limit(10, STILL)).remaining == 5
    assert limiter.take("b").remaining == 0


def test_several_limits_may_have_several_names(make: Make, server: Service, admin: redis.Redis) -> None:
    limiter = make(server, {"user": Limit(3, STILL), "team": Limit(9, STILL)}, prefix="")
    limiter.take_all({"user": "u42", "team": "t7"}, {"user": 1, "team": 1})
    assert sorted(admin.keys()) == ["t7:team", "u42:user"]


def test_the_work_of_a_denied_hold_is_not_begun(make: Make, server: Service) -> None:
    limiter = make(server, Limit(10, STILL))
    with limiter.hold("a", 8):
        denied = limiter.hold("a", 8)
        assert not denied
        with pytest.raises(Denied) as told, denied:
            pytest.fail("let in")
        assert told.value.decision.retry_after_ms > 0


def test_a_use_that_cannot_be_is_an_error_and_the_hold_ends_all_the_same(
    make: Make, server: Service, caplog: Any
) -> None:
    limiter = make(server, {"tokens": Limit(1000, STILL), "slots": Limit(1, 0)})
    wrong: list[Any] = [5, {"token": 5}, {"tokens": -1}, {"tokens": "1e13"}, {"slots": 1}]
    for at, used in enumerate(wrong):
        hold = limiter.hold("a", {"tokens": 100, "slots": 1})
        with pytest.raises(BadArgument, match="used"):
            hold.settle(used)
        with pytest.raises(BadArgument, match="used"), hold:
            hold.used = used
        assert hold.remaining == {"tokens": 900 - 200 * at, "slots": 1}
        with contextlib.suppress(ConnectionError), limiter.hold("a", {"tokens": 100, "slots": 1}) as hold:
            hold.used = used
            raise ConnectionError("which the error of `used` does not hide")
        assert hold.remaining == {"tokens": 800 - 200 * at, "slots": 1}
    assert "used" in caplog.text


def test_every_decision_is_told(make: Make, server: Service) -> None:
    told: list[tuple[str, Limit, Decision]] = []

    def tell(name: str, limit: Limit, decision: Decision, seconds: float) -> None:
        assert 0 <= seconds < 60
        told.append((name, limit, decision))

    limit = Limit(1, STILL)
    limiter = make(server, limit, on_decision=tell)
    decisions = [limiter.take("a"), limiter.take("a"), limiter.peek("b")]
    assert told == [("a", limit, decisions[0]), ("a", limit, decisions[1]), ("b", limit, decisions[2])]
    trial = Limiter(FakeServer(), limit, on_decision=tell, shadow=True)
    assert trial.hold("a", 2).settle().shadowed
    assert len(told) == 4, "the hook hears once of a hold that was denied"
    hold = limiter.hold("c", 1)
    limiter.reset("c")
    hold.settle()
    assert [decision.remaining for *_, decision in told[4:]] == [0, 0], "what is gone is charged"


# What limiters keep to themselves: denials, and tokens in batches.


def test_what_a_refused_caller_is_told_counts_down() -> None:
    server = FakeServer()
    limiter = Limiter(server, Limit(1, "1/10s"), remember_denials=1)
    limiter.take("a")
    assert limiter.take("a").retry_after_ms == 10_000
    server.advance(4)
    assert limiter.take("a").retry_after_ms == 6_000
    server.advance(5.999)
    assert not limiter.take("a").allowed
    server.advance(0.001)
    assert limiter.take("a").allowed


def test_an_idle_process_does_not_spend_stale_tokens() -> None:
    server = FakeServer()
    limiter = Limiter(server, Limit(10, "1/s"), batch=10)
    other = Limiter(server, Limit(10, "1/s"))
    assert limiter.take("a").allowed
    server.advance(9.9)
    assert limiter.take("a").allowed, "eight are left, not all of which have flowed in again"
    server.advance(0.2)
    assert other.take("a", 10).allowed
    assert not limiter.take("a").allowed, "the ten that were fetched have flowed in again"


def test_a_batch_that_makes_room_for_others_gives_its_tokens_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenbucket.api.batches.MOST_BATCHES", 10)
    limiter = Limiter(FakeServer(), Limit(100, STILL), batch=50)
    took = 0
    for _ in range(3):
        took += limiter.take("a").allowed
        for at in range(11):
            limiter.take(f"n{at}")
    while limiter.take("a").allowed:
        took += 1
    assert took == 100


def allowed_in_forks(limiter: Any, count: int) -> int:
    """How many of so many takes in each of eight forked processes are allowed, all by the server."""
    on = getattr(limiter, "_awaited", limiter)

    async def takes() -> int:
        decisions = [await done(on.take("a")) for _ in range(count)]
        return 255 if any(one.degraded for one in decisions) else sum(one.allowed for one in decisions)

    def fork() -> int:
        if (pid := os.fork()) == 0:
            signal.alarm(60)  # ends what hangs
            try:
                os._exit(asyncio.run(takes()))
            finally:
                os._exit(255)
        return pid

    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in [fork() for _ in range(8)]]
    assert 255 not in codes
    return sum(codes)


def test_processes_forked_with_a_batch_grant_each_token_once(make: Make, server: Service) -> None:
    limiter = make(server, Limit(100, STILL), batch=100, timeout_ms=5000)
    assert limiter.take("a").allowed
    in_forks = allowed_in_forks(limiter, 100)
    assert in_forks + sum(limiter.take("a").allowed for _ in range(100)) == 99


def test_processes_forked_while_a_batch_is_fetched_grant_each_token_once(
    make: Make, server: Service, admin: redis.Redis, proxy: Proxy
) -> None:
    limiter = make(proxy, Limit(100, STILL), batch=100, timeout_ms=5000)
    assert limiter.peek("a").allowed
    admin.config_resetstat()
    proxy.delay_s = 0.3
    with ThreadPoolExecutor(10) as threads:
        fetching = [threads.submit(limiter.take, "a") for _ in range(50)]
        # The server has granted, and the reply is on its way.
        wait_for(lambda: "takeupto:" in ask(server, "INFO", "commandstats").lower(), "the fetch")
        proxy.delay_s = 0  # of what follows
        assert allowed_in_forks(limiter, 20) == 0
    assert all(one.result().allowed for one in fetching)
    # What the parent fetched and did not take is still there.
    assert sum(limiter.take("a").allowed for _ in range(100)) == 50


def test_many_names_do_not_fill_a_drained_bucket_while_the_server_is_away(own_server: Service) -> None:
    own_server.stop()
    with Limiter(f"redis://127.0.0.1:{own_server.port}", Limit(5, STILL)) as limiter:
        assert [limiter.take("a").allowed for _ in range(6)] == [True] * 5 + [False]
        for at in range(10_001):
            assert limiter.take(f"n{at}").degraded
        assert not limiter.take("a").allowed


# Calls that wait their turn in the server.


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


def test_a_thread_that_is_interrupted_leaves_the_queue(server: Service, threads: ThreadPoolExecutor) -> None:
    with Limiter(Server(f"redis://127.0.0.1:{server.port}", timeout_ms=20_000), Limit(1, STILL)) as limiter:
        assert limiter.take("a").allowed

        def interrupt() -> None:
            until_waiting(server, 1)
            os.kill(os.getpid(), signal.SIGTERM)  # as Ctrl-C, see conftest.py

        interrupting = threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            limiter.take("a", max_wait_ms=LONG_MS)
        interrupting.result()
        until_waiting(server, 0)
        limiter.give("a", 1)
        assert limiter.take("a").allowed
