"""The gateway over HTTP, as its own process, against a real server and a stand-in for the model."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from redis.asyncio import Redis

from run import model_server
from services import Service

pytestmark = pytest.mark.anyio

STILL = "10/h"
KEY = {"Authorization": "Bearer demo-key"}
ROUTE = "/v1/chat/completions"

# The limits of the tests that look into the buckets.
REQUESTS = 1000
TOKENS = 100_000
# Longer than any test reads on.
ENDLESS = " ".join(["word"] * 600)


def call(content: str, max_tokens: int) -> dict:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens}


async def chat(client: httpx.AsyncClient, content: str, max_tokens: int) -> httpx.Response:
    return await client.post(ROUTE, json=call(content, max_tokens), headers=KEY)


def stream(client: httpx.AsyncClient, content: str, max_tokens: int):
    """`async with`: the response, whose body is still to be read."""
    body = call(content, max_tokens) | {"stream": True}
    return client.stream("POST", ROUTE, json=body, headers=KEY)


async def events(response: httpx.Response) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        if line:
            assert line.startswith("data: ")
            yield line.removeprefix("data: ")


def start_gateway(
    start_app, redis_service: Service, model: Service, max_wait_ms: int = 0
) -> httpx.AsyncClient:
    return start_app(
        redis_service,
        model_url=f"http://127.0.0.1:{model.port}/v1",
        llm_request_limit=f"{REQUESTS} {STILL}",
        llm_token_limit=f"{TOKENS} {STILL}",
        llm_inflight_limit="1",
        llm_hold_ttl_ms="60000",
        llm_max_wait_ms=str(max_wait_ms),
    )


async def look(redis: Redis) -> dict[str, int]:
    """What is left in the three buckets of the demo caller, at one moment."""
    limits = {"requests": (REQUESTS, STILL), "tokens": (TOKENS, STILL), "inflight": (1, 0)}
    async with redis.pipeline(transaction=True) as together:
        for which, limit in limits.items():
            together.execute_command("TB.PEEK", f"tb:llm:{{demo}}:{which}", *limit, 0)
        peeked = await together.execute()
    return {which: peek[1] for which, peek in zip(limits, peeked, strict=True)}


async def test_the_gateway_settles_what_a_call_really_cost(
    redis: Redis, redis_service: Service, model: Service, start_app
):
    client = start_app(
        redis_service,
        model_url=f"http://127.0.0.1:{model.port}/v1",
        llm_request_limit=f"10 {STILL}",
        llm_token_limit=f"1000 {STILL}",
    )
    # The estimate is 400 and more; the model used six words and repeated them.
    cheap = await chat(client, "one two three four five six", max_tokens=400)
    assert cheap.status_code == 200
    assert cheap.json()["usage"]["total_tokens"] == 12
    assert cheap.headers["X-RateLimit-Remaining-Tokens"] == str(1000 - 12)
    assert cheap.headers["X-RateLimit-Remaining-Requests"] == "9"

    # 700 one-letter words: estimated at 349 + 700, which the bucket does not hold.
    words = " ".join(["a"] * 700)
    too_much = await chat(client, words, max_tokens=700)
    assert too_much.status_code == 429
    assert "Retry-After" not in too_much.headers, "above the capacity: waiting does not help"

    # Estimated at 349 + 600, costs 1300: allowed, and 312 in debt afterwards.
    costly = await chat(client, words, max_tokens=600)
    assert costly.status_code == 200
    assert costly.json()["usage"]["total_tokens"] == 1300
    assert costly.headers["X-RateLimit-Remaining-Tokens"] == str(1000 - 12 - 1300)
    assert costly.headers["X-RateLimit-Remaining-Requests"] == "8", "the denied one took none"

    in_debt = await chat(client, "hi", max_tokens=1)
    assert in_debt.status_code == 429
    # 312 tokens of debt and one for the call, ten an hour.
    assert 312 * 360 < int(in_debt.headers["Retry-After"]) <= 313 * 360


async def test_a_model_that_is_down_costs_nothing(
    redis: Redis, redis_service: Service, start_app, tmp_path
):
    model = model_server(tmp_path)
    client = start_app(
        redis_service,
        model_url=f"http://127.0.0.1:{model.port}/v1",
        llm_request_limit=f"10 {STILL}",
        llm_token_limit=f"1000 {STILL}",
        llm_inflight_limit="1",
    )
    for _ in range(3):
        assert (await chat(client, "hi", max_tokens=900)).status_code == 502
        async with stream(client, "hi", max_tokens=900) as response:
            assert response.status_code == 502
    model.start()
    try:
        answer = await chat(client, "hi", max_tokens=900)
        assert answer.status_code == 200
        assert answer.headers["X-RateLimit-Remaining-Tokens"] == str(1000 - 2)
        assert answer.headers["X-RateLimit-Remaining-Requests"] == "9"
    finally:
        model.stop()


async def test_bad_requests_take_nothing(redis: Redis, redis_service: Service, start_app):
    client = start_app(redis_service)
    assert (await chat(client, "hi", max_tokens=0)).status_code == 422
    assert [key async for key in redis.scan_iter("tb:llm:*")] == []


async def test_a_denied_slot_spends_neither_the_request_nor_its_tokens(
    redis: Redis, redis_service: Service, model: Service, start_app
):
    client = start_gateway(start_app, redis_service, model)
    async with stream(client, ENDLESS, max_tokens=600) as response:
        assert response.status_code == 200
        before = await look(redis)
        assert before["inflight"] == 0
        for denied in [await chat(client, "hi", max_tokens=1) for _ in range(3)]:
            assert denied.status_code == 429
            assert 0 < int(denied.headers["Retry-After"]) <= 60
        assert await look(redis) == before
        assert before["requests"] == REQUESTS - 1


async def waiting(redis: Redis) -> int:
    return (await redis.info("everything"))["tokenbucket_waiting"]


async def test_a_call_without_a_slot_waits_its_turn_if_it_may(
    redis: Redis, redis_service: Service, model: Service, start_app
):
    client = start_gateway(start_app, redis_service, model, max_wait_ms=30_000)
    async with stream(client, ENDLESS, 1000) as first:
        assert first.status_code == 200
        second = asyncio.create_task(chat(client, "hi", 10))
        while await waiting(redis) < 1:
            assert not second.done()
            await asyncio.sleep(0.01)
        assert (await look(redis))["inflight"] == 0
    assert (await second).status_code == 200, "the caller of the first has hung up"


async def test_a_stream_is_settled_before_its_end(
    redis: Redis, redis_service: Service, model: Service, start_app
):
    client = start_gateway(start_app, redis_service, model)
    async with stream(client, "one two three", max_tokens=500) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        told = [event async for event in events(response)]
    assert await look(redis) == {"requests": REQUESTS - 1, "tokens": TOKENS - 6, "inflight": 1}

    *deltas, usage, done = told
    words = [json.loads(event)["choices"][0]["delta"]["content"] for event in deltas]
    assert "".join(words).split() == ["one", "two", "three"]
    assert json.loads(usage)["usage"]["total_tokens"] == 6
    assert done == "[DONE]"


async def test_a_caller_who_hangs_up_frees_the_slot_at_once_and_pays_the_estimate(
    redis: Redis, redis_service: Service, model: Service, start_app
):
    client = start_gateway(start_app, redis_service, model)
    async with stream(client, ENDLESS, max_tokens=600) as response:
        told = events(response)
        await anext(told)
        held = await look(redis)
        assert held["inflight"] == 0
    deadline = time.monotonic() + 10
    while (end := await look(redis))["inflight"] == 0:
        assert time.monotonic() < deadline, "still held"
        await asyncio.sleep(0.02)
    assert end == held | {"inflight": 1}


async def test_a_stream_that_breaks_off_says_so_and_costs_the_estimate(
    redis: Redis, redis_service: Service, start_app, tmp_path
):
    model = model_server(tmp_path)
    model.start()
    client = start_gateway(start_app, redis_service, model)
    async with stream(client, ENDLESS, max_tokens=600) as response:
        told = events(response)
        await anext(told)
        held = await look(redis)
        model.signal(signal.SIGKILL)
        model.stop()
        assert "error" in json.loads([event async for event in told][-1])
    assert await look(redis) == held | {"inflight": 1}
