"""The gateway over HTTP, as its own process, against a real server and a stand-in for the model."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis

from run import Service, model_server

pytestmark = pytest.mark.anyio

STILL = "10/h"
KEY = {"Authorization": "Bearer demo-key"}


async def chat(client: httpx.AsyncClient, content: str, max_tokens: int) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens}
    return await client.post("/v1/chat/completions", json=body, headers=KEY)


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


async def test_the_gateway_limits_requests_too(
    redis: Redis, redis_service: Service, model: Service, start_app
):
    client = start_app(
        redis_service,
        model_url=f"http://127.0.0.1:{model.port}/v1",
        llm_request_limit=f"10 {STILL}",
        llm_token_limit="1000000 1000000/s",
    )
    responses = await asyncio.gather(*(chat(client, "hi there", 10) for _ in range(50)))
    assert sorted(response.status_code for response in responses) == [200] * 10 + [429] * 40


async def test_a_model_that_is_down_costs_no_tokens(
    redis: Redis, redis_service: Service, start_app, tmp_path
):
    model = model_server(tmp_path)
    client = start_app(
        redis_service,
        model_url=f"http://127.0.0.1:{model.port}/v1",
        llm_token_limit=f"1000 {STILL}",
    )
    for _ in range(3):
        assert (await chat(client, "hi", max_tokens=900)).status_code == 502
    model.start()
    try:
        answer = await chat(client, "hi", max_tokens=900)
        assert answer.status_code == 200
        assert answer.headers["X-RateLimit-Remaining-Tokens"] == str(1000 - 2)
    finally:
        model.stop()


async def test_bad_requests_take_nothing(redis: Redis, redis_service: Service, start_app):
    client = start_app(redis_service)
    assert (await chat(client, "hi", max_tokens=0)).status_code == 422
    assert [key async for key in redis.scan_iter("tb:llm:*")] == []


async def test_the_gateway_works_while_redis_is_away(own_redis: Service, model: Service, start_app):
    client = start_app(own_redis, model_url=f"http://127.0.0.1:{model.port}/v1")
    own_redis.stop()
    answer = await chat(client, "hi there", max_tokens=10)
    assert answer.status_code == 200
    assert "X-RateLimit-Remaining-Tokens" not in answer.headers


async def test_a_call_let_through_unasked_is_charged_when_redis_is_back(
    own_redis: Service, model: Service, start_app
):
    client = start_app(
        own_redis,
        model_url=f"http://127.0.0.1:{model.port}/v1",
        llm_token_limit=f"1000 {STILL}",
    )
    own_redis.stop()
    model.signal(signal.SIGSTOP)
    unasked = asyncio.create_task(chat(client, "one two three", max_tokens=500))
    # The model's socket holds the call once the app has asked Redis in vain.
    deadline = time.monotonic() + 10
    while not connections_waiting(model.port):
        assert time.monotonic() < deadline, "the call never reached the model"
        await asyncio.sleep(0.02)
    own_redis.start()
    model.signal(signal.SIGCONT)
    assert (await unasked).status_code == 200
    after = await chat(client, "one two three", max_tokens=10)
    assert after.headers["X-RateLimit-Remaining-Tokens"] == str(1000 - 6 - 6)


def connections_waiting(port: int) -> bool:
    """Whether somebody is connected to `port` on this host."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    established = "01"
    return any(
        fields[1].endswith(f":{port:04X}") and fields[3] == established
        for fields in map(str.split, lines)
    )
