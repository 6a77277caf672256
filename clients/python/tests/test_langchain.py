"""The rate limiter of LangChain: models wait for tokens that all processes share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio
from langchain_core import rate_limiters
from langchain_core.caches import InMemoryCache
from langchain_core.language_models import GenericFakeChatModel

import tokenbucket.asyncio
from conftest import until_waiting
from launch import ask
from paths import rows_of
from services import Service
from tokenbucket import BadArgument, Denied, Limit, Server
from tokenbucket.langchain import TokenBucketRateLimiter
from tokenbucket.testing import FakeServer

# One token in six minutes: nothing flows in while a test runs.
STILL = "10/h"
LIMIT = Limit(10, STILL)

pytestmark = pytest.mark.usefixtures("admin")


def limiter_on(server: Service, limit: Limit = LIMIT, **options: Any) -> TokenBucketRateLimiter:
    url = f"redis://127.0.0.1:{server.port}"
    # A machine that is busy for a moment is no outage.
    patient = Server(url, timeout_ms=20_000), tokenbucket.asyncio.Server(url, timeout_ms=20_000)
    settings: Any = {"async_server": patient[1], "on_error": "raise"}
    return TokenBucketRateLimiter(patient[0], limit, "gpt", **(settings | options))


@pytest.fixture
def limiter(server: Service) -> Iterator[TokenBucketRateLimiter]:
    one = limiter_on(server)
    yield one
    asyncio.run(one.aclose())


def model_with(limiter: TokenBucketRateLimiter, **options: Any) -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter(["hello world"] * 20), rate_limiter=limiter, **options)


def taken(limiter: TokenBucketRateLimiter) -> int:
    return 10 - limiter.limiter.peek("gpt", 0).remaining


def test_every_way_to_call_a_model_takes_a_token(limiter: TokenBucketRateLimiter) -> None:
    model = model_with(limiter)
    model.invoke("foo")
    list(model.stream("foo"))
    model.batch(["foo", "foo"])
    assert taken(limiter) == 4

    async def work() -> None:
        await model.ainvoke("foo")
        _ = [part async for part in model.astream("foo")]
        await model.abatch(["foo", "foo"])
        assert limiter.async_limiter
        await limiter.async_limiter.aclose()

    asyncio.run(work())
    assert taken(limiter) == 8


@pytest.mark.parametrize(
    ("theirs", "ours"), rows_of("langchain.md", "| `InMemoryRateLimiter(…)` | `Limit(…)` |")
)
def test_limits_are_those_of_the_limiter_in_memory(
    theirs: str, ours: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(rate_limiters, "time", SimpleNamespace(monotonic=lambda: now_s))
    in_memory: rate_limiters.InMemoryRateLimiter = eval(f"InMemoryRateLimiter({theirs})", vars(rate_limiters))
    in_memory.acquire(blocking=False)  # begins to count
    server = FakeServer()
    limiter = TokenBucketRateLimiter(Server(server), eval(f"Limit({ours})", {"Limit": Limit}))
    for passed_s in [1_000_000, 0, 1, 5, 20, 100, 4000]:
        now_s += passed_s
        server.advance(passed_s)
        granted = [sum(one.acquire(blocking=False) for _ in range(50)) for one in (in_memory, limiter)]
        assert granted[0] == granted[1], passed_s


def test_a_cached_answer_takes_nothing(limiter: TokenBucketRateLimiter) -> None:
    model = model_with(limiter, cache=InMemoryCache())
    for _ in range(5):
        model.invoke("foo")
    assert taken(limiter) == 1


def test_without_blocking_it_says_whether_there_was_a_token(limiter: TokenBucketRateLimiter) -> None:
    assert [limiter.acquire(blocking=False) for _ in range(12)] == [True] * 10 + [False] * 2

    async def work() -> bool:
        try:
            return await limiter.aacquire(blocking=False)
        finally:
            await limiter.aclose()

    assert not asyncio.run(work())


def test_models_of_all_processes_wait_for_the_same_tokens(
    server: Service, limiter: TokenBucketRateLimiter
) -> None:
    another = limiter_on(server)
    for one in [limiter, another] * 5:
        model_with(one).invoke("foo")
    with ThreadPoolExecutor(2) as threads:
        waits = []
        for at, one in enumerate([limiter, another]):
            waits.append(threads.submit(model_with(one).invoke, "foo"))
            until_waiting(server, at + 1)
        ask(server, "TB.GIVE", "tb:gpt", 10, STILL, 1)
        assert waits[0].result().content == "hello world"
        assert not waits[1].done()
        ask(server, "TB.GIVE", "tb:gpt", 10, STILL, 1)
        assert waits[1].result().content == "hello world"
    asyncio.run(another.aclose())


def test_a_turn_that_does_not_come_is_an_error(server: Service) -> None:
    limiter = limiter_on(server, Limit(1, STILL), max_wait_ms=50)
    model = model_with(limiter)
    model.invoke("foo")
    with pytest.raises(Denied):
        model.invoke("foo")

    async def work() -> None:
        with pytest.raises(Denied):
            await model.ainvoke("foo")
        await limiter.aclose()

    asyncio.run(work())


def test_clients_may_be_given_in_place_of_a_url(server: Service) -> None:
    client = redis.Redis(port=server.port)
    limiter = TokenBucketRateLimiter(client, LIMIT)
    assert limiter.acquire()
    with pytest.raises(BadArgument, match="async_server"):
        asyncio.run(limiter.aacquire())
    limiter.close()

    async def work() -> None:
        awaited = redis.asyncio.Redis(port=server.port)
        both = TokenBucketRateLimiter(client, LIMIT, async_server=awaited)
        assert await both.aacquire()
        await both.aclose()
        await awaited.aclose()

    asyncio.run(work())
    assert tokenbucket.Limiter(client, LIMIT).peek("langchain", 0).remaining == 8
    client.close()
