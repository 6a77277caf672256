"""Calls that end in the middle: by a signal, a greenlet's timeout, a fork, a cancellation."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis.asyncio

import tokenbucket
import tokenbucket.asyncio
from launch import ask
from proxy import Proxy
from services import Service, wait_for
from tokenbucket import Limit, Limiter, Server

STILL = "10/h"

pytestmark = pytest.mark.usefixtures("admin")


class Interrupted(BaseException):
    """As KeyboardInterrupt, or the end of a request that takes too long."""


class SoftTimeLimit(Exception):
    """As Celery's soft time limit."""


@contextmanager
def interrupting(kind: type[BaseException]) -> Iterator[Any]:
    """Gives a function that raises the error in this thread, so many seconds later.

    Not where the caller has its decision, nor where the driver writes: there it closes the connection. Nor
    where the driver ends, as Python swallows what is raised there.
    """

    def interrupt(_: int, frame: Any) -> None:
        names = {one.f_code.co_name for one, _ in traceback.walk_stack(frame)}
        if names & {"exchange", "wait"} and not names & {"send_packed_command", "__del__"}:
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


@pytest.mark.parametrize("kind", [Interrupted, SoftTimeLimit])
def test_an_interrupted_call_gives_back_what_it_took(server: Service, kind: type[BaseException]) -> None:
    limiter = Limiter(Server(url(server), timeout_ms=20_000), Limit(5, STILL))
    assert limiter.take("a").allowed
    server.signal(signal.SIGSTOP)
    with interrupting(kind) as interrupt:
        interrupt(0.2)
        with pytest.raises(kind):
            limiter.take("a", 3)
    server.signal(signal.SIGCONT)
    wait_for(lambda: limiter.peek("a", 0).remaining == 4, "the tokens")


@pytest.mark.parametrize("kind", [Interrupted, SoftTimeLimit])
def test_calls_interrupted_at_any_moment_lose_neither_tokens_nor_connections(
    server: Service, proxy: Proxy, kind: type[BaseException]
) -> None:
    proxy.delay_s = 0.0005
    limiter = Limiter(Server(url(proxy), timeout_ms=500), Limit(1000, STILL))
    slots = Limiter(limiter.server, Limit(1, 0), "slots:")
    assert limiter.take("b").allowed
    kept = interrupted = 0
    with interrupting(kind) as interrupt:
        for at in range(300):
            try:
                interrupt(random.uniform(0.0002, 0.003))
                if at % 2:
                    kept += limiter.take("a").allowed
                else:
                    slots.hold("a", 1).settle()
                interrupt(0)
            except kind:
                interrupted += 1
    assert interrupted > 30
    # A take whose reply is being read in that very moment loses its tokens; a hold ends by its id.
    wait_for(lambda: 1000 - kept - interrupted / 8 <= level(server) <= 1000 - kept, "the tokens")
    wait_for(lambda: ask(server, "TB.HOLDS", "slots:a") == [], "the slot")
    assert not limiter.take("a").degraded
    limiter.close()


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
    with gevent.Timeout(random.uniform(0.001, 0.03), False):
        decision = limiter.take("a")
        kept += decision.allowed
def hold():
    with gevent.Timeout(random.uniform(0.001, 0.03), False):
        slots.hold("a", 1).settle()
for _ in range(8):
    gevent.joinall([gevent.spawn(take if at % 2 else hold) for at in range(100)])
for _ in range(500):
    left = limiter.peek("a", 0).remaining, slots.peek("a", 0).remaining
    if left == (10_000 - kept, 2): break
    time.sleep(0.02)
print(left == (10_000 - kept, 2), 0 < kept < 400, server.degraded_count)
"""


def test_greenlets_whose_timeout_ends_a_call_lose_neither_tokens_nor_connections(proxy: Proxy) -> None:
    proxy.delay_s = 0.004
    command = [sys.executable, "-W", "ignore", "-c", GREENLETS, str(proxy.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "True", "0"], done.stdout + done.stderr


def test_a_process_forked_while_a_limiter_is_made_makes_its_own(server: Service) -> None:
    is_over = threading.Event()

    def make_limiters() -> None:
        while not is_over.is_set():
            Limiter(f"{url(server)}?health_check_interval={random.randrange(10**6)}", Limit(1, 1))

    makers = [threading.Thread(target=make_limiters) for _ in range(4)]
    for maker in makers:
        maker.start()
    children = []
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(10)  # ends the child if it hangs
                limiter = Limiter(Server(url(server), timeout_ms=5000), Limit(100, STILL))
                os._exit(not Limiter(url(server), Limit(1, 1)) or limiter.take("a").degraded)
            children.append(child)
            time.sleep(0.01)
    finally:
        is_over.set()
        for maker in makers:
            maker.join()
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 20


def test_a_task_cancelled_in_the_round_of_its_reply_gives_back(server: Service) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis(port=server.port)
        of = tokenbucket.asyncio.Server(client, timeout_ms=5000)
        limiter = tokenbucket.asyncio.Limiter(of, Limit(1000, STILL))
        slots = tokenbucket.asyncio.Limiter(of, Limit(1, 0), "slots:")
        await limiter.take("b")

        async def hold() -> None:
            await slots.hold("a", 1)

        for at in range(60):
            task = asyncio.create_task(limiter.take("a") if at % 2 else hold())
            for _ in range(at % 6):
                await asyncio.sleep(0)
            time.sleep(0.005)  # noqa: ASYNC251 - the reply comes while the loop is busy
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.to_thread(wait_for, lambda: level(server) == 1000, "the tokens")
        await asyncio.to_thread(wait_for, lambda: ask(server, "TB.HOLDS", "slots:a") == [], "the slot")
        await of.aclose()
        await client.aclose()

    asyncio.run(main())


def test_a_thread_that_is_interrupted_waiting_for_a_batch_leaves_it_to_the_others(proxy: Proxy) -> None:
    proxy.delay_s = 0.05
    limiter = Limiter(Server(url(proxy), timeout_ms=5000), Limit(1000, STILL), batch=10)
    assert limiter.take("b").allowed
    taken: list[bool] = []

    def take(cost: int) -> threading.Thread:
        thread = threading.Thread(target=lambda: taken.append(limiter.take("a", cost).allowed))
        thread.start()
        return thread

    with interrupting(Interrupted) as interrupt:
        for waits in (False, True):
            others = [take(1)] if waits else []  # which fetches for itself alone
            time.sleep(0.02 * waits)
            interrupt(0.03)
            with pytest.raises(Interrupted):
                limiter.take("a", 10)
            others += [take(10), take(10)]
            for other in others:
                other.join(10)
                assert not other.is_alive()
    assert taken == [True] * 5
    limiter.close()
