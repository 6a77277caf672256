"""Calls that end in the middle: by a signal, a timeout of a greenlet, a fork, a thread that fails."""

from __future__ import annotations

import _thread
import asyncio
import functools
import gc
import random
import signal
import subprocess
import sys
import time
import traceback
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from fractions import Fraction
from typing import Any
from unittest.mock import Mock

import pytest
import redis
import redis.asyncio

import tokenbucket
import tokenbucket.asyncio
from launch import ask
from proxy import Proxy
from services import Service, wait_for
from tokenbucket import Limit, Limiter, Server
from tokenbucket.local.limiter import LocalLimiter, _Chunk

STILL = "10/h"
LONG_MS = 60_000

pytestmark = [pytest.mark.usefixtures("admin"), pytest.mark.anyio]


class Interrupted(BaseException):
    """As KeyboardInterrupt, or the end of a request that takes too long."""


class SoftTimeLimit(Exception):
    """As Celery's soft time limit."""


@contextmanager
def interrupting(kind: type[BaseException]) -> Iterator[Any]:
    """Gives a function that raises the error in this thread, so many seconds later, wherever a call is.

    Not where an object is collected: Python swallows what is raised there.
    """

    def interrupt(_: int, frame: Any) -> None:
        frames = list(traceback.walk_stack(frame))
        is_in_call = any("tokenbucket/" in one.f_code.co_filename for one, _ in frames)
        if is_in_call and not any(one.f_code.co_name == "__del__" for one, _ in frames):
            raise kind
        signal.setitimer(signal.ITIMER_REAL, 0.0001)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield lambda in_s: signal.setitimer(signal.ITIMER_REAL, in_s)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def url(service: Any) -> str:
    return f"redis://127.0.0.1:{service.port}"


def level(server: Service) -> int:
    state = ask(server, "TB.STATE", "tb:a")
    return int(float(state[0])) if state else 1000


# Signals.


@pytest.mark.parametrize("kind", [Interrupted, SoftTimeLimit])
def test_calls_interrupted_at_any_moment_harm_no_other(
    server: Service, proxy: Proxy, kind: type[BaseException]
) -> None:
    proxy.delay_s = 0.0005
    limiter = Limiter(Server(url(proxy), timeout_ms=2000), Limit(1000, STILL))
    batched = Limiter(limiter.server, Limit(1000, STILL), "batched:", batch=5)
    slots = Limiter(limiter.server, Limit(1, 0), "slots:")
    assert limiter.take("b").allowed
    calls: list[Callable[[], Any]] = [
        lambda: limiter.take("a").allowed,
        lambda: bool(slots.hold("a", 1, ttl_ms=3000).settle()) and False,
        lambda: bool(slots.take("b", 1, limit=Limit(1, STILL), max_wait_ms=20)) and False,
        lambda: batched.take("a").allowed and False,
    ]
    kept = interrupted = 0
    with interrupting(kind) as interrupt:
        for at in range(400):
            if at % 8 == 0:
                limiter.server.close()  # so that the next call connects
            try:
                interrupt(random.uniform(0.0001, 0.003))
                kept += calls[at % len(calls)]()
                interrupt(0)
            except kind:
                interrupted += 1
    assert interrupted > 40
    assert level(server) <= 1000 - kept
    # A hold of nobody is ended by its id, or by its ttl if it was granted in the very last moment.
    wait_for(lambda: ask(server, "TB.HOLDS", "slots:a") == [], "the slot")
    with limiter, batched, slots, ThreadPoolExecutor(64) as threads:
        decisions = list(threads.map(lambda _: limiter.take("c"), range(300)))
        assert not any(decision.degraded for decision in decisions)
        assert batched.take("c").allowed
        assert limiter.server.degraded_count == 0


def test_a_silent_server_is_left_by_a_signal_at_once_and_the_hold_ends(own_server: Service) -> None:
    with Limiter(Server(url(own_server), timeout_ms=20_000, retry_every_ms=50), Limit(5, 0)) as limiter:
        hold = limiter.hold("a", 1)
        own_server.signal(signal.SIGSTOP)
        with interrupting(Interrupted) as interrupt:
            for call in (lambda: limiter.hold("a", 1, ttl_ms=LONG_MS), hold.settle):
                began = time.monotonic()
                interrupt(0.2)
                with pytest.raises(Interrupted):
                    call()
                assert time.monotonic() - began < 10
        own_server.signal(signal.SIGCONT)
        wait_for(lambda: ask(own_server, "TB.HOLDS", "tb:a") == [], "the slots")
        assert not limiter.peek("a").degraded


def stays(condition: Callable[[], bool], for_s: float, what: str) -> None:
    began = time.monotonic()
    while time.monotonic() - began < for_s:
        assert condition(), what
        time.sleep(0.02)


def printed(program: str, port: int) -> list[str]:
    command = [sys.executable, "-W", "ignore", "-c", program, str(port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.split()


REENTERING = """
import gc, signal, sys, time
import tokenbucket
from tokenbucket import Limit
limiter = tokenbucket.Limiter(f"redis://127.0.0.1:{sys.argv[1]}", Limit(10**9, 10**9), remember_denials=9)
batched = tokenbucket.Limiter(limiter.server, Limit(10**9, 10**9), "batched:", batch=3)
depth = 0
def ask(*_):
    global depth
    if depth > 3: return
    depth += 1
    limiter.take("a"), batched.take("a"), batched.take("b", 10**9)
    depth -= 1
class Finalised:
    def __init__(self): self.me = self
    def __del__(self): ask()
def on_signal(*_):
    ask()
    # Only now: on a slow machine, signals would come faster than they are handled.
    if time.monotonic() < ends: signal.setitimer(signal.ITIMER_REAL, 0.002)
gc.set_threshold(50)
ends = time.monotonic() + 2
signal.signal(signal.SIGALRM, on_signal)
signal.setitimer(signal.ITIMER_REAL, 0.002)
while time.monotonic() < ends:
    Finalised()
    ask()
signal.setitimer(signal.ITIMER_REAL, 0)
gc.set_threshold(0)
decision = limiter.take("a")
print(decision.allowed, decision.degraded)
"""


@pytest.mark.parametrize("is_there", [True, False], ids=["server", "local"])
def test_a_signal_handler_and_a_finaliser_may_ask_in_the_middle_of_a_call(
    own_server: Service, is_there: bool
) -> None:
    if not is_there:
        own_server.stop()
    assert printed(REENTERING, own_server.port) == ["True", str(not is_there)]


def lines_of(work: Callable[[], Any], of: tuple[str, ...] = ("",), most: int | None = None) -> int:
    """Counts the lines of these classes that the work comes to, which is interrupted at the last."""
    count = 0

    def on_line(_: Any, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        if count == most and event == "line":
            raise Interrupted
        return on_line

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: on_line if frame.f_code.co_qualname.startswith(of) else None)
    try:
        with suppress(Interrupted):
            work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("most", [1, 256])
@pytest.mark.parametrize("rate", [0, "1/365d"])
def test_local_holds_whose_change_is_interrupted_harm_no_others(
    most: int, rate: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Chunk, "MOST", most)
    now = [Fraction(0)]
    limit = ("a", 3, rate)
    for line in range(1, 1000):
        buckets = LocalLimiter(lambda: now[0])

        def change(buckets: LocalLimiter = buckets) -> None:
            buckets.execute("TB.MHOLD", 1, 100, "y", *limit, 1)
            buckets.execute("TB.MSETTLE", 1, "x", *limit, 0)
            now[0] += 150
            buckets.execute("TB.PEEK", *limit, 1)

        # Of a rate, a token is gone for good.
        left = 3 if rate == 0 else 3 - buckets.execute("TB.TAKE", *limit, 1)[0]
        buckets.execute("TB.MHOLD", 1, 100, "x", *limit, 1)
        was_interrupted = lines_of(change, ("_Holds.", "_Chunk.", "LocalLimiter._"), line) == line
        signal.alarm(10)  # ends the test if it goes round in circles
        now[0] += 1000
        more = buckets.execute("TB.MHOLD", 1, 100, "z", *limit, left + 1)
        assert not more[0], f"line {line}: nothing is gained"
        if rate == 0:
            all_ended = buckets.execute("TB.MHOLD", 1, 100, "z", *limit, left)
            assert all_ended[0], f"line {line}: all that was held has ended"
        now[0] += 1000
        for id in ("z", "x", "y"):
            held = buckets.execute("TB.MHOLD", 1, 100, id, *limit, 1)
            assert held[0] in (0, 1)
            assert buckets.execute("TB.MSETTLE", 1, id, *limit, 0)[0] == held[0]
        signal.alarm(0)
        if not was_interrupted:
            return
    pytest.fail("more lines than there are")


def test_a_local_decision_does_not_look_at_each_hold() -> None:
    now = [Fraction(0)]
    limit = ("a", 100_000, 0)
    lines: list[int] = []
    for count in (500, 4_000):
        buckets = LocalLimiter(lambda: now[0])
        for number in range(count):
            buckets.execute("TB.MHOLD", 1, 60_000 + number, str(number), *limit, 1)

        def change(buckets: LocalLimiter = buckets, count: int = count) -> None:
            for number in range(0, count, count // 20):
                buckets.execute("TB.MSETTLE", 1, str(number), *limit, 1)
                buckets.execute("TB.MHOLD", 1, 60_000, str(number), *limit, 1)

        lines.append(lines_of(change))
    assert lines[1] < 3 * lines[0], lines


# Threads that do not start.


@contextmanager
def no_thread_starts(monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> Iterator[None]:
    def refuse(*_: Any) -> None:
        raise error("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(_thread, "start_new_thread", refuse)
        yield


def test_a_thread_that_does_not_start_is_no_outage(server: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with Limiter(Server(url(server), timeout_ms=5000), Limit(1000, STILL), on_error="raise") as limiter:
        with no_thread_starts(monkeypatch, RuntimeError):
            assert limiter.take("a").allowed
        limiter.server.close()
        with no_thread_starts(monkeypatch, Interrupted), pytest.raises(Interrupted):
            limiter.take("a")
        for _ in range(3):
            limiter.server.close()
            assert limiter.take("a").allowed


def test_holds_are_renewed_though_no_thread_starts(server: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with Limiter(Server(url(server), timeout_ms=5000), Limit(10, 0)) as limiter:
        with no_thread_starts(monkeypatch, RuntimeError):
            first = limiter.hold("a", 1, ttl_ms=1500)
            first.__enter__()
            stays(lambda: limiter.peek("a", 0).remaining == 9, 2.5, "the calls renew what is due")
        second = limiter.hold("a", 1, ttl_ms=1500)
        with second:
            time.sleep(2.5)
            assert limiter.peek("a", 0).remaining == 8, "a thread does"
        first.settle()
        assert limiter.peek("a", 0).remaining == 10


def test_many_holds_are_renewed_together(server: Service, proxy: Proxy) -> None:
    with Limiter(Server(url(proxy), timeout_ms=5000), Limit(200, 0)) as limiter:
        holds = [limiter.hold("a", 1, ttl_ms=6000) for _ in range(200)]
        proxy.delay_s, threads = 0.02, _thread._count()
        for hold in holds:
            hold.keep_renewing()
        # One after the other, 200 renewals would take eight seconds.
        stays(lambda: len(ask(server, "TB.HOLDS", "tb:a")) == 200, 8, "all are renewed in time")
        assert proxy.commands["TB.MRENEW"] > 200
        assert _thread._count() <= threads + 1
        for hold in holds:
            hold._stop_renewing()
        limiter.reset("a")


def test_a_hold_whose_end_is_interrupted_ends_by_its_ttl(
    server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Limiter(Server(url(server), timeout_ms=5000), Limit(1, 0)) as limiter:
        with (
            monkeypatch.context() as patched,
            pytest.raises(Interrupted),
            limiter.hold("a", 1, ttl_ms=900) as hold,
        ):
            patched.setattr(hold, "settle", Mock(side_effect=Interrupted))
        wait_for(lambda: ask(server, "TB.HOLDS", "tb:a") == [], "the end of the hold that lives on here", 10)
        assert not hold.lost


def test_an_on_lost_that_exits_ends_no_renewals_of_others(server: Service) -> None:
    with Limiter(Server(url(server), timeout_ms=5000), Limit(100, 0)) as limiter:
        lost, other = limiter.hold("a", 1, ttl_ms=900), limiter.hold("b", 1, ttl_ms=900)
        lost.on_lost = sys.exit
        for hold in (lost, other):
            hold.keep_renewing()
        ask(server, "DEL", "tb:a")
        wait_for(lambda: lost.lost, "the renewal")
        is_held = functools.partial(ask, server, "TB.HOLDS", "tb:b")
        stays(is_held, 3, "no call of the limiter wakes the renewals again")
        other.settle()


# Greenlets.

GREENLETS = """
import gevent.monkey; gevent.monkey.patch_all()
import gevent, random, redis, sys, time
import tokenbucket
from tokenbucket import Limit
port = int(sys.argv[1])
server = tokenbucket.Server(redis.Redis(port=port), timeout_ms=5000)
limiter = tokenbucket.Limiter(server, Limit(10_000, "1/h"))
slots = tokenbucket.Limiter(server, Limit(2, 0), "slots:")
kept = 0
def take():
    global kept
    with gevent.Timeout(10 ** random.uniform(-3, 0), False):
        decision = limiter.take("a")
        kept += decision.allowed
def hold():
    with gevent.Timeout(10 ** random.uniform(-3, 0), False):
        slots.hold("a", 1).settle()
for _ in range(8):
    gevent.joinall([gevent.spawn(take if at % 2 else hold) for at in range(100)])
left = 10_000 - limiter.peek("a", 0).remaining
for _ in range(500):
    if slots.peek("a", 0).remaining == 2: break
    time.sleep(0.02)
print(kept <= left, slots.peek("a", 0).remaining, 0 < kept < 400, server.degraded_count)
"""


def test_greenlets_whose_timeout_ends_a_call_lose_neither_slots_nor_connections(proxy: Proxy) -> None:
    proxy.delay_s = 0.004
    assert printed(GREENLETS, proxy.port) == ["True", "2", "True", "0"]


PRELOADED = """
import os, sys, time
import redis, tokenbucket
from tokenbucket import Limit
server = tokenbucket.Server(f"redis://127.0.0.1:{sys.argv[1]}", timeout_ms=5000)
limiter = tokenbucket.Limiter(server, Limit(10_000, "1/h"), batch=3, remember_denials=10)
slots = tokenbucket.Limiter(server, Limit(100, 0), "slots:")
limiter.take("a")
with slots.hold("a", 1, ttl_ms=900): pass
child = os.fork()
if child:
    os._exit(os.waitpid(child, 0)[1] != 0)
import gevent.monkey; gevent.monkey.patch_all()
import gevent
def work():
    with slots.hold("a", 1, ttl_ms=1500) as hold:
        limiter.take("a")
        gevent.sleep(2.5)
        return hold.id.encode() in [id for id, *_ in client.execute_command("TB.HOLDS", "slots:a")]
client = redis.Redis(port=int(sys.argv[1]))
print(all(one.get() for one in [gevent.spawn(work) for _ in range(50)]), server.degraded_count)
with slots.hold("a", 1, ttl_ms=60_000):
    began = time.monotonic()
    gevent.sleep(0.1)
    print(time.monotonic() - began < 10)
sys.stdout.flush()
os._exit(0)
"""


def test_a_limiter_that_was_made_before_gevent_patched_works(server: Service) -> None:
    """As in a worker of gunicorn with `-k gevent --preload`."""
    assert printed(PRELOADED, server.port) == ["True", "0", "True"]


# Cancellations.


@asynccontextmanager
async def asyncio_server(server: Any) -> AsyncIterator[Any]:
    async with redis.asyncio.Redis(port=server.port) as client:
        of = tokenbucket.asyncio.Server(client, timeout_ms=5000)
        yield of
        await of.aclose()


LIMITS = {"common": Limit(1000, STILL), "a": Limit(1, 0), "b": Limit(1, 0)}
EITHER = [{"common": 1, "a": 1}, {"common": 1, "b": 1}]


@pytest.mark.parametrize("steps", range(8))
async def test_a_hold_of_alternatives_may_be_settled_before_its_reply(server: Service, steps: int) -> None:
    async with asyncio_server(server) as of:
        hold = tokenbucket.asyncio.JointLimiter(of, LIMITS, on_error="raise").hold_any("x", EITHER)
        asking = asyncio.ensure_future(hold)
        for _ in range(steps):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        await hold.settle(0)
    assert not any(ask(server, "TB.HOLDS", f"tb:{{x}}:{which}") for which in LIMITS)


async def test_tasks_cancelled_anywhere_leave_nothing_held(server: Service, proxy: Proxy) -> None:
    proxy.delay_s = 0.0005
    async with asyncio_server(proxy) as of:
        limiter = tokenbucket.asyncio.Limiter(of, Limit(1000, STILL))
        slots = tokenbucket.asyncio.Limiter(of, Limit(1, 0), "slots:")
        joint = tokenbucket.asyncio.JointLimiter(of, LIMITS)
        await limiter.take("b")

        async def hold(kind: Callable[[], Any]) -> None:
            async with kind() as held:
                held.used = 0
                await asyncio.sleep(0.001)

        works: list[Callable[[], Any]] = [
            lambda: limiter.take("a"),
            lambda: hold(lambda: slots.hold("a", 1, max_wait_ms=LONG_MS, ttl_ms=600_000)),
            lambda: hold(lambda: joint.hold_any("x", EITHER, ttl_ms=600_000)),
        ]
        for at in range(200):
            tasks = [asyncio.create_task(work()) for work in works]
            if at % 2:
                await asyncio.sleep(random.uniform(0, 0.006))
            else:  # at each step of the event loop
                for _ in range(at // 2):
                    await asyncio.sleep(0)
            if at % 3 == 0:
                time.sleep(0.005)  # noqa: ASYNC251 - the reply comes while the loop is busy
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        keys = ["slots:a", *(f"tb:{{x}}:{which}" for which in LIMITS)]
        async with asyncio.timeout(20):
            while any(ask(server, "TB.HOLDS", key) for key in keys):
                assert not (await limiter.take("a")).degraded
                await asyncio.sleep(0.02)
        assert of.degraded_count == 0


@pytest.mark.parametrize("rounds", range(12))
def test_an_event_loop_whose_tasks_are_all_cancelled_goes_on(
    server: Service, proxy: Proxy, rounds: int
) -> None:
    async def main() -> None:
        async with asyncio_server(proxy) as of:
            plain = tokenbucket.asyncio.Limiter(of, Limit(1000, STILL))
            batched = tokenbucket.asyncio.Limiter(of, Limit(1000, STILL), "batched:", batch=10)
            slots = tokenbucket.asyncio.Limiter(of, Limit(1, 0), "slots:")
            await slots.take("b", limit=Limit(1, STILL))

            async def hold() -> None:
                async with slots.hold("a", 1, max_wait_ms=LONG_MS, ttl_ms=LONG_MS):
                    await asyncio.sleep(rounds / 1000)

            takes: list[Callable[[], Any]] = [lambda: plain.take("a"), lambda: batched.take("a")]
            tasks = [asyncio.ensure_future(call()) for call in [hold, hold, *takes] * 5]
            for _ in range(rounds):
                await asyncio.sleep(0)
            if rounds % 2:
                await asyncio.sleep(rounds / 500)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.wait(tasks)
            async with asyncio.timeout(30):
                for take in takes:
                    assert not (await take()).degraded
                async with slots.hold("a", 1, max_wait_ms=LONG_MS) as held:
                    assert not held.decision.degraded
            assert of.degraded_count == 0

    proxy.delay_s = 0.002
    asyncio.run(main())  # in a loop that has no other tasks


async def test_a_caller_who_leaves_while_connecting_is_no_outage(server: Service, proxy: Proxy) -> None:
    proxy.delay_s = 0.03
    async with asyncio_server(proxy) as of:
        limiter = tokenbucket.asyncio.Limiter(of, Limit(1000, STILL), on_error="raise")
        for max_wait_ms in (0, LONG_MS):
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):  # connecting takes several round trips
                        await limiter.take("a", 1000, max_wait_ms=max_wait_ms)
                await of.aclose()
        assert (await limiter.take("b")).allowed
        assert of.degraded_count == 0


def test_event_loops_that_ended_before_work_began_are_not_kept() -> None:
    server = tokenbucket.asyncio.Server("redis://127.0.0.1:1")
    loops = weakref.WeakSet[asyncio.AbstractEventLoop]()

    async def leave() -> None:
        loops.add(asyncio.get_running_loop())
        server._detach_in(60, lambda: asyncio.sleep(0))

    for _ in range(5):
        asyncio.run(leave())
    gc.collect()
    assert len(loops) == 1  # of the last one
