"""What the package promises of decisions, mistakes, outages and holds in doubt."""

from __future__ import annotations

import asyncio
import errno
import inspect
import logging
import math
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis
import redis.asyncio

import tokenbucket
import tokenbucket.asyncio
from conftest import Make
from launch import ask
from proxy import Proxy
from services import Service, free_port, wait_for
from tokenbucket import (
    BadArgument,
    CrossSlot,
    Decision,
    Denied,
    JointLimiter,
    Limit,
    Limiter,
    ReplyLost,
    Server,
    TokenBucketError,
)
from tokenbucket.httpx import AsyncRateLimitTransport, RateLimitTimeout, RateLimitTransport
from tokenbucket.local.clock import REAL
from tokenbucket.testing import FakeServer
from tokenbucket.transport.server import LOG
from tokenbucket.values.constants import AGAIN_S

STILL = "10/h"
LONG_MS = 60_000

pytestmark = [pytest.mark.usefixtures("admin"), pytest.mark.anyio]


def holds(server: Service, key: str = "tb:a") -> list[Any]:
    found: list[Any] = ask(server, "TB.HOLDS", key)
    return found


# Decisions.


@pytest.mark.parametrize(
    "error",
    [
        CrossSlot(),
        BadArgument("name"),
        ReplyLost("the reply"),
        Denied(Decision(False, retry_after_ms=5)),
        RateLimitTimeout("a", Decision(False, retry_after_ms=5)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_error_passes_between_processes(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    assert getattr(again, "decision", None) == getattr(error, "decision", None)


# Mistakes.


def test_the_calls_of_asyncio_are_coroutine_functions() -> None:
    """Frameworks run others in threads, as Starlette does its background tasks."""
    kinds = (tokenbucket.asyncio.Limiter, tokenbucket.asyncio.JointLimiter, tokenbucket.asyncio.Hold)
    of = {
        f"{kind.__name__}.{name}": inspect.iscoroutinefunction(call)
        for kind in kinds
        for name, call in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
    others = {f"{kind}.{name}" for kind in ("Limiter", "JointLimiter") for name in ("hold", "headers")}
    others |= {"JointLimiter.hold_any", "Hold.keep_renewing"}
    assert {name for name, is_one in of.items() if not is_one} == others


FAKE = FakeServer()
ONE = Limit(1, STILL)
POOL = Limiter(FAKE, Limit(3, 0))
LIMITER = Limiter(FAKE, ONE)
JOINT = JointLimiter(FAKE, {"a": ONE, "b": ONE})
MANY = JointLimiter(FAKE, dict.fromkeys(map(str, range(1025)), ONE))
# What the message says, and what calls it.
MISTAKES: list[tuple[str, Callable[[], Any]]] = [
    (r"^rate: '10/min' must be .*count/period in ms, s, m, h or d", lambda: Limit(10, "10/min")),
    ("^limit: .* is not a Limit", lambda: Limiter(FAKE, (5, "5/m"))),  # type: ignore
    ("^limits: 'a' is 5, not a Limit", lambda: JointLimiter(FAKE, {"a": 5})),  # type: ignore
    ("^limit: 5 is not a Limit", lambda: LIMITER.take("a", limit=5)),  # type: ignore
    ("^limits: 'a' is 5, not a Limit", lambda: JOINT.hold("a", {"a": 1}, limits={"a": 5})),  # type: ignore
    ("^on_error: 'maybe' is none of", lambda: Limiter(FAKE, ONE, on_error="maybe")),  # type: ignore
    ("^remember_denials: -1", lambda: Limiter(FAKE, ONE, remember_denials=-1)),
    ("^batch: -1", lambda: Limiter(FAKE, ONE, batch=-1)),
    ("^timeout_ms: '100' is not a number", lambda: Server(FAKE, timeout_ms="100")),  # type: ignore
    ("^timeout_ms: 0 ", lambda: Server(FAKE, timeout_ms=0)),
    ("^timeout_ms: inf ", lambda: Server(FAKE, timeout_ms=math.inf)),
    ("^retry_every_ms: None is not a number", lambda: Server(FAKE, retry_every_ms=None)),  # type: ignore
    ("^retry_every_ms: nan ", lambda: Server(FAKE, retry_every_ms=math.nan)),
    ("^retry_every_ms: -1 ", lambda: Server(FAKE, retry_every_ms=-1)),
    ("^by: 'lua' ", lambda: Server(FAKE, by="lua")),  # type: ignore
    ("^name: 42 ", lambda: LIMITER.take(42)),  # type: ignore
    ("^name: b'a' ", lambda: LIMITER.hold(b"a", 1)),  # type: ignore
    ("^name: None ", lambda: JOINT.take_all(None, {"a": 1})),  # type: ignore
    ("^name: .* has none for the limit 'a'", lambda: JOINT.take_all({"b": "x"}, {"a": 1})),
    ("^no limit is named: {}", lambda: JOINT.take_all("x", {})),
    ("^no limit is named: 1", lambda: JOINT.take_all("x", 1)),  # type: ignore
    ("^no limit is named: 'a'", lambda: JOINT.hold("x", "a")),  # type: ignore
    ("^alternatives: {'a': 1} is not a sequence", lambda: JOINT.take_any("x", {"a": 1})),  # type: ignore
    (r"^alternatives: \[\] is not a sequence", lambda: JOINT.hold_any("x", [])),
    ("^alternatives: 'a' is not", lambda: JOINT.hold_any("x", "a")),  # type: ignore
    (
        "^alternatives: .* the same number .* amount 0",
        lambda: JOINT.take_any("x", [{"a": 1, "b": 1}, {"a": 1}]),
    ),
    ("^no limit is named: {}", lambda: JOINT.take_any("x", [{}])),
    ("^no limit is called 'c', only a, b", lambda: JOINT.take_any("x", [{"a": 1}, {"c": 1}])),
    ("^ERR '-1' must be", lambda: JOINT.take_any("x", [{"a": 0}, {"b": -1}])),
    ("^max_wait_ms: -1 ", lambda: LIMITER.take("a", max_wait_ms=-1)),
    ("^max_wait_ms: 2592000001 ", lambda: LIMITER.hold("a", 1, max_wait_ms=2592000001)),
    ("^max_wait_ms: -1 ", lambda: JOINT.take_all("a", {"a": 1}, max_wait_ms=-1)),
    ("^ttl_ms: 0 ", lambda: LIMITER.hold("a", 1, ttl_ms=0)),
    ("^used: the hold has one limit", lambda: LIMITER.hold("b", 1).settle({"tokens": 1})),
    ("^share: '' ", lambda: LIMITER.take("a", share="")),
    ("^share: b'a' ", lambda: LIMITER.hold("a", 1, share=b"a")),  # type: ignore
    ("^share: 'é+' ", lambda: LIMITER.take("a", share="é" * 65)),
    ("^weight: 2 is of no share", lambda: LIMITER.take("a", weight=2)),
    ("^weight: 0.0009 ", lambda: LIMITER.take("a", share="a", weight=0.0009)),
    ("^weight: 1000.001 ", lambda: LIMITER.hold("a", 1, share="a", weight=1000.001)),
    ("^weight: 'many' ", lambda: LIMITER.take("a", share="a", weight="many")),
    ("^ERR rate must be above 0", lambda: POOL.take("a")),
    ("^ERR rate .* 1 token in 100 years", lambda: LIMITER.take("a", limit=Limit(0, "1/36526d"))),
    ("^ERR refilling .* more than 100 years", lambda: LIMITER.take("a", limit=Limit(100, "1/366d"))),
    ("^ERR numkeys .* 1 to 1024", lambda: MANY.take_all("a", dict.fromkeys(map(str, range(1025)), 1))),
    ("^ERR numkeys .* 1 to 1024", lambda: MANY.take_any("a", [{str(one): 1} for one in range(1025)])),
    (r"is not a tokenbucket\.asyncio\.Limiter", lambda: AsyncRateLimitTransport(LIMITER)),  # type: ignore
    ("^limiter: its rate is 0", lambda: RateLimitTransport(POOL)),
]


@pytest.mark.parametrize(("line", "call"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_one_line_that_names_it(line: str, call: Callable[[], Any]) -> None:
    with pytest.raises(BadArgument, match=line) as mistake:
        call()
    assert "\n" not in str(mistake.value)


def test_an_amount_that_cannot_be_is_an_error() -> None:
    limiter, began = Limiter(FakeServer(), Limit(10, STILL)), time.monotonic()
    denied = Limiter(FakeServer(), Limit(1, STILL), remember_denials=1)
    assert [denied.take("a").allowed for _ in range(2)] == [True, False]
    # Each of the last took more than a second when its digits were computed.
    costs: list[Any] = [-1, "1/3", "1e13", "nan", "9" * 129, *(f"1e400000{at}" for at in range(40))]
    for cost in costs:
        for call in (limiter.take, limiter.hold, denied.take):
            with pytest.raises(BadArgument, match="tokens"):
                call("a", cost)
    assert limiter.take("a", "1e-4000000").remaining == 10
    assert time.monotonic() - began < 20


def test_a_wrong_certificate_is_no_outage(make: Make, server: Service, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    for file in (tmp_path / "missing.pem", wrong):
        of_client = {"ssl": True, "ssl_ca_certs": str(file)}
        limiter = make(server, Limit(1, 1), client=of_client, on_error="open")
        for _ in range(2):
            with pytest.raises(TokenBucketError, match="cannot connect"):
                limiter.take("a")


async def test_a_cluster_client_of_asyncio_may_be_given_as_it_is(tmp_path: Path) -> None:
    client = redis.asyncio.RedisCluster(host="localhost", port=1)
    one, other = (tokenbucket.asyncio.Limiter(client, Limit(1, rate)) for rate in (1, 2))
    assert one.server is other.server
    assert (await one.take("a")).degraded
    await one.aclose()


@pytest.mark.parametrize("on_error", ["local", "open", "closed"])
def test_a_whole_number_is_one_however_it_is_spelled_and_whoever_decides(on_error: Any) -> None:
    away = Limiter(f"redis://127.0.0.1:{free_port()}", Limit(10, STILL), on_error=on_error)
    shadow = Limiter(FakeServer(), Limit(10, STILL), shadow=True)
    for limiter, granted in ((away, 0 if on_error == "closed" else 5), (shadow, 5)):
        for most in (5.0, Decimal("5.0"), "5e0"):
            limiter.reset("a")
            assert limiter.take_up_to("a", most).granted == granted
        for wrong in (2.5, "many", 0, -1, "1e13"):
            with pytest.raises(BadArgument, match="most"):
                limiter.take_up_to("a", wrong)


# Hooks.


def test_a_hook_that_raises_changes_nothing(make: Make, server: Service, caplog: Any) -> None:
    limiter = make(server, Limit(3, 0), on_decision=Mock(side_effect=ZeroDivisionError))
    for _ in range(5):
        with limiter.hold("a", 1):
            assert limiter.peek("a", 0).remaining == 2
    assert limiter.peek("a", 0).remaining == 3
    assert "on_decision has failed" in caplog.text


def test_a_handler_of_logs_that_raises_changes_nothing(
    make: Make, own_server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = Mock(level=logging.DEBUG, handle=Mock(side_effect=ZeroDivisionError))
    monkeypatch.setattr(LOG, "handlers", [handler])
    limiter = make(own_server, Limit(3, STILL), timeout_ms=300, retry_every_ms=LONG_MS, on_error="local")
    wait_for(lambda: not limiter.peek("a").degraded, "the server")
    own_server.signal(signal.SIGSTOP)
    assert [limiter.take("a").degraded for _ in range(2)] == [True, True]
    own_server.signal(signal.SIGCONT)


# Outages.


def messages(caplog: Any) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tokenbucket"]


def test_each_outage_has_one_line_at_its_beginning_and_one_at_its_end(
    make: Make, own_server: Service, threads: ThreadPoolExecutor, caplog: Any
) -> None:
    limiter = make(own_server, Limit(1000, STILL), on_error="local", retry_every_ms=20)
    assert not limiter.take("a").degraded
    for _ in range(3):
        own_server.stop()
        assert all(one.degraded for one in threads.map(lambda _: limiter.take("a"), range(300)))
        own_server.start()
        wait_for(lambda: not limiter.take("a").degraded, "the server")
        assert not any(one.degraded for one in threads.map(lambda _: limiter.take("a"), range(100)))
    assert ["is back" in line for line in messages(caplog)] == [False, True] * 3


def test_more_callers_than_connections_take_turns(own_server: Service) -> None:
    proxy = Proxy(own_server.port, delay_s=0.01)
    with Limiter(Server(proxy.url, timeout_ms=1000), Limit(10**6, 1)) as limiter:
        slowest = [0.0] * 300
        ends_at = time.monotonic() + 8

        def take(at: int) -> None:
            while (began := time.monotonic()) < ends_at:
                limiter.take("a")
                slowest[at] = max(slowest[at], time.monotonic() - began)

        with ThreadPoolExecutor(300) as threads:
            list(threads.map(take, range(300)))
            # In turns, a call takes a few round trips. If newcomers overtook, one would wait to the end.
            assert max(slowest) < 5
            own_server.signal(signal.SIGSTOP)
            began = time.monotonic()
            assert all(one.degraded for one in threads.map(lambda _: limiter.take("a"), range(300)))
            assert time.monotonic() - began < 15, "the first calls wait for the server, the others do not"
        own_server.signal(signal.SIGCONT)
        wait_for(lambda: not limiter.take("a").degraded, "the server")
    proxy.stop()


def test_a_connection_that_the_server_has_no_place_for_is_no_outage(
    make: Make, own_server: Service, caplog: Any
) -> None:
    limiter = make(own_server, Limit(10**6, STILL), on_error="local", retry_every_ms=60_000)
    assert not limiter.take("a").degraded
    ask(own_server, "CONFIG", "SET", "maxclients", "3")
    with ThreadPoolExecutor(40) as threads:
        decisions = list(threads.map(lambda _: limiter.take("a"), range(200)))
    assert not all(decision.degraded for decision in decisions)
    assert not limiter.take("a").degraded
    assert messages(caplog) == []


def test_a_process_without_a_file_left_has_no_outage(
    make: Make, server: Service, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    refuse = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
    limiter = make(server, Limit(10, STILL), on_error="local", retry_every_ms=60_000)
    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", refuse)
        patched.setattr(asyncio, "open_connection", refuse)
        assert limiter.take("a").degraded
    assert not limiter.take("a").degraded
    assert messages(caplog) == []


def test_a_name_that_resolves_slowly_costs_a_second(
    make: Make, server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, is_over = socket.getaddrinfo, threading.Event()

    def slow(host: Any, *arguments: Any, **options: Any) -> Any:
        if host == "slow.example":
            is_over.wait(30)
            host = "127.0.0.1"
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    options: Any = {"timeout_ms": 100, "retry_every_ms": 0, "on_error": "local"}
    limiter = make(server, Limit(10, 1), client={"host": "slow.example"}, **options)
    began = time.monotonic()
    assert limiter.take("a").degraded
    assert time.monotonic() - began < 10
    is_over.set()
    wait_for(lambda: not limiter.take("a").degraded, "the connection, which comes late")


async def test_many_waits_whose_connections_hang_end_together(server: Service, proxy: Proxy) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as silent:
        of = tokenbucket.asyncio.Server(proxy.url, timeout_ms=1000, retry_every_ms=60_000)
        async with tokenbucket.asyncio.Limiter(of, Limit(1, STILL), on_error="closed") as limiter:
            assert (await limiter.take("a")).allowed
            proxy.redirect(silent.getsockname()[1])
            began = time.monotonic()
            waits = [limiter.take("a", max_wait_ms=LONG_MS) for _ in range(1000)]
            assert all(one.degraded for one in await asyncio.gather(*waits))
            # 64 connect at a time: one group after the other would take sixteen seconds.
            assert time.monotonic() - began < 10


def test_idle_connections_that_lead_nowhere_cost_one_silence(server: Service, own_server: Service) -> None:
    """As behind a load balancer whose target is gone."""
    proxy = Proxy(own_server.port, delay_s=0.05)
    with Limiter(Server(proxy.url, timeout_ms=1000, retry_every_ms=0), Limit(10**6, STILL)) as limiter:
        with ThreadPoolExecutor(20) as threads, redis.Redis(port=own_server.port) as client:
            for _ in range(100):
                list(threads.map(lambda _: limiter.take("a"), range(20)))
                if len(client.client_list()) > 10:
                    break
            else:
                pytest.fail("few connections were made")
        proxy.delay_s = 0
        own_server.signal(signal.SIGSTOP)
        proxy.redirect(server.port)
        silences = 0
        while limiter.take("a").degraded:
            silences += 1
            assert silences < 5, "each connection is found to be dead by itself"
    proxy.stop()


def test_a_server_that_is_read_only_is_not_connected_to_at_every_call(
    make: Make, own_server: Service
) -> None:
    limiter = make(own_server, Limit(10**6, STILL), on_error="local", retry_every_ms=60_000)
    assert not limiter.take("a").degraded
    with redis.Redis(port=own_server.port) as client:
        client.replicaof("127.0.0.1", 1)
        before = client.info("stats")["total_connections_received"]
        assert all(limiter.take("a").degraded for _ in range(100))
        assert client.info("stats")["total_connections_received"] - before < 10
        client.replicaof("NO", "ONE")
    assert not limiter.take("a").degraded


def test_an_interrupted_wait_gives_back_where_it_was_booked(
    make: Make, own_server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_interrupted(_: float) -> None:
        own_server.signal(signal.SIGCONT)
        raise ZeroDivisionError

    for sleep in ("sleep", "sleep_async"):
        monkeypatch.setattr(REAL, sleep, is_interrupted)
    limiter = make(own_server, Limit(50, STILL), timeout_ms=1000, retry_every_ms=0, on_error="local")
    wait_for(lambda: not limiter.take("a", 50).degraded, "the server")
    own_server.signal(signal.SIGSTOP)
    assert limiter.take("a", 50).degraded
    with pytest.raises(ZeroDivisionError):
        limiter.wait("a", 40, max_wait_ms=10**8)
    wait_for(lambda: not limiter.peek("a", 0).degraded, "the server")
    assert ask(own_server, "TB.PEEK", "tb:a", 50, STILL, 0)[1] == 0


def test_batches_are_given_back_together_and_close_raises_nothing(make: Make, proxy: Proxy) -> None:
    limiter = make(proxy, Limit(100, STILL), batch=10, timeout_ms=1000)
    for at in range(100):
        wait_for(lambda at=at: limiter.take(f"n{at}").allowed, "the server")  # type: ignore[misc]
    proxy.delay_s = 0.1
    began = time.monotonic()
    limiter.close()
    assert time.monotonic() - began < 10, "one by one they take 20 s"
    assert proxy.commands["TB.GIVE"] == 100
    proxy.delay_s = 0
    wait_for(lambda: limiter.take("a").allowed, "the server")
    proxy.stall()
    limiter.close()


def test_a_batch_is_fetched_by_one_thread_at_a_time(server: Service) -> None:
    of = Server(f"redis://127.0.0.1:{server.port}", timeout_ms=20_000)
    limiter = Limiter(of, Limit(10**6, STILL), batch=100)
    together, before = threading.Barrier(16), sys.getswitchinterval()

    def take(name: str) -> bool:
        together.wait()
        return limiter.take(name).allowed

    sys.setswitchinterval(1e-6)
    try:
        with limiter, ThreadPoolExecutor(16) as threads:
            for at in range(300):
                taken = sum(threads.map(take, [f"batch {at}"] * 16))
                kept = 10**6 - limiter.peek(f"batch {at}", 0).remaining - taken
                assert kept < 100
    finally:
        sys.setswitchinterval(before)


# Holds in doubt.


@pytest.mark.parametrize("command", ["TB.MHOLD", "TB.HOLDANY"])
def test_a_hold_that_arrives_after_its_settlement_is_ended(
    make: Make, server: Service, proxy: Proxy, admin: redis.Redis, command: str
) -> None:
    limiter = make(proxy, dict.fromkeys(("one", "other"), Limit(1, 0)))
    one, other = "tb:{a}:one", "tb:{a}:other"
    admin.config_resetstat()
    proxy.late[command] = 1
    if command == "TB.MHOLD":
        hold = limiter.hold("a", {"one": 1}, ttl_ms=LONG_MS)
    else:  # the late one finds room in another alternative
        ask(server, "TB.HOLD", one, 1, 0, 1, LONG_MS, "of another")
        hold = limiter.hold_any("a", [{"one": 1}, {"other": 1}], ttl_ms=LONG_MS)
        ask(server, "TB.SETTLE", one, 1, 0, "of another", 0)
    assert (hold.allowed, hold.decision.degraded) == (True, False)
    assert not hold.settle().degraded
    proxy.release()
    calls = f"{command.lower()}:calls=2,"
    wait_for(lambda: calls in ask(server, "INFO", "commandstats").lower(), "the hold that is late")
    wait_for(lambda: holds(server, one) + holds(server, other) == [], "the end of a hold of nobody")


def test_a_late_settlement_ends_a_remembered_denial(make: Make, proxy: Proxy) -> None:
    limiter = make(proxy, Limit(1, STILL), remember_denials=10, retry_every_ms=50)
    hold = limiter.hold("a", 1, ttl_ms=LONG_MS)
    proxy.late["TB.MSETTLE"] = 10**6
    with pytest.raises(ReplyLost):
        hold.settle(0)
    assert not limiter.take("a").allowed
    proxy.late["TB.MSETTLE"] = 0
    wait_for(lambda: limiter.take("a").allowed, "the token, which came back")


def test_a_hold_in_doubt_outlives_its_event_loop(server: Service, proxy: Proxy) -> None:
    limiter = tokenbucket.asyncio.Limiter(
        tokenbucket.asyncio.Server(proxy.url, timeout_ms=1000, retry_every_ms=50), Limit(3, 0)
    )

    async def settle() -> None:
        hold = await limiter.hold("a", 1, ttl_ms=600_000)
        proxy.stall()
        assert (await hold.settle()).lost
        proxy.drop_connections()

    async def ask_again() -> None:
        while holds(server):
            await limiter.take("b", limit=Limit(10, 1))
            await asyncio.sleep(0.05)
        await limiter.aclose()

    asyncio.run(settle())
    proxy.resume()
    asyncio.run(asyncio.wait_for(ask_again(), 30))


@pytest.mark.parametrize("is_back", [True, False], ids=["that is back", "that is away"])
def test_a_closed_limiter_leaves_a_server_alone(make: Make, own_server: Service, is_back: bool) -> None:
    limiter = make(own_server, Limit(3, 0), timeout_ms=300, retry_every_ms=50, on_error="local")
    wait_for(lambda: not limiter.peek("a").degraded, "the server")
    hold = limiter.hold("a", 1, ttl_ms=600_000)
    own_server.signal(signal.SIGSTOP)
    assert hold.settle().degraded
    if is_back:
        own_server.signal(signal.SIGCONT)
        wait_for(lambda: holds(own_server) == [], "the settlement")
    limiter.close()
    own_server.signal(signal.SIGCONT)
    with redis.Redis(port=own_server.port) as client:
        wait_for(lambda: len(client.client_list()) == 1, "the connections")
        connections = client.info("stats")["total_connections_received"]
        # Long enough for another try.
        time.sleep(3 * AGAIN_S)
        assert client.info("stats")["total_connections_received"] == connections
