"""The gateway over HTTP, as its own process, against a real server and a stand-in for the model."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

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
    start_app,
    redis_service: Service,
    model: Service,
    *,
    inflight: int,
    ttl_ms: int,
    max_wait_ms: int = 0,
) -> httpx.AsyncClient:
    return start_app(
        redis_service,
        model_url=f"http://127.0.0.1:{model.port}/v1",
        llm_request_limit=f"{REQUESTS} {STILL}",
        llm_token_limit=f"{TOKENS} {STILL}",
        llm_inflight_limit=str(inflight),
        llm_hold_ttl_ms=str(ttl_ms),
        llm_max_wait_ms=str(max_wait_ms),
    )


@dataclass
class Buckets:
    """The three buckets of the demo caller, as they were at one moment."""

    now_ms: float
    remaining: dict[str, int]
    holds: dict[str, dict[bytes, tuple[int, float]]]
    """Of each bucket: the amount of each hold, and the moment at which it expires."""


async def look(redis: Redis, inflight: int) -> Buckets:
    limits = {"requests": (REQUESTS, STILL), "tokens": (TOKENS, STILL), "inflight": (inflight, 0)}
    keys = {which: f"tb:llm:{{demo}}:{which}" for which in limits}
    while True:
        async with redis.pipeline(transaction=True) as together:
            together.time()
            for key in keys.values():
                together.execute_command("TB.HOLDS", key)
            for which, limit in limits.items():
                together.execute_command("TB.PEEK", keys[which], *limit, 0)
            for key in keys.values():
                together.execute_command("TB.HOLDS", key)
            (s, us), *replies = await together.execute()
        before, peeked, after = replies[:3], replies[3:6], replies[6:]
        if list(map(len, before)) == list(map(len, after)):  # none expired while we looked
            break
    now_ms = s * 1000 + us / 1000
    return Buckets(
        now_ms,
        {which: peek[1] for which, peek in zip(keys, peeked, strict=True)},
        {
            which: {id: (int(amount), now_ms + expires_in_ms) for id, amount, expires_in_ms in held}
            for which, held in zip(keys, before, strict=True)
        },
    )


async def look_until_none_is_held(redis: Redis, inflight: int) -> Buckets:
    deadline = time.monotonic() + 10
    while any((seen := await look(redis, inflight)).holds.values()):
        assert time.monotonic() < deadline, f"still held: {seen}"
        await asyncio.sleep(0.02)
    return seen


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


async def test_what_a_killed_gateway_held_comes_back_after_its_ttl_and_not_before(
    redis: Redis, redis_service: Service, model: Service, start_app, app_processes
):
    client = start_gateway(start_app, redis_service, model, inflight=60, ttl_ms=2000)
    assert (await chat(client, "one two three", max_tokens=10)).status_code == 200
    settled = {"requests": REQUESTS - 1, "tokens": TOKENS - 6, "inflight": 60}

    async with AsyncExitStack() as streams:

        async def begin() -> AsyncIterator[str]:
            response = await streams.enter_async_context(stream(client, ENDLESS, max_tokens=600))
            assert response.status_code == 200
            told = events(response)
            assert "word" in await anext(told)
            return told  # forgotten, it would hang up

        reading = await asyncio.gather(*(begin() for _ in range(50)))
        [gateway] = app_processes
        gateway.signal(signal.SIGKILL)
        gateway.stop()
        killed = await look(redis, inflight=60)
    assert [len(held) for held in killed.holds.values()] == [len(reading)] * 3
    assert all(amount > 600 for amount, _ in killed.holds["tokens"].values())

    seen, looks = killed, 0
    while any(seen.holds.values()):
        seen, looks = await look(redis, inflight=60), looks + 1
        for which, held in killed.holds.items():
            # Milliseconds are rounded up, and the look took a moment.
            for id, (_, expires_at_ms) in held.items():
                if abs(expires_at_ms - seen.now_ms) > 20:
                    assert (id in seen.holds[which]) == (expires_at_ms > seen.now_ms)
            still_held = sum(amount for amount, _ in seen.holds[which].values())
            assert seen.remaining[which] == settled[which] - still_held
        await asyncio.sleep(0.01)
    assert looks > 10, "seen on its way back"
    assert seen.remaining == settled


async def test_a_denied_slot_spends_neither_the_request_nor_its_tokens(
    redis: Redis, redis_service: Service, model: Service, start_app
):
    client = start_gateway(start_app, redis_service, model, inflight=1, ttl_ms=60_000)
    async with stream(client, ENDLESS, max_tokens=600) as response:
        assert response.status_code == 200
        before = await look(redis, inflight=1)
        assert before.remaining["inflight"] == 0
        for denied in [await chat(client, "hi", max_tokens=1) for _ in range(3)]:
            assert denied.status_code == 429
            assert 0 < int(denied.headers["Retry-After"]) <= 60
        after = await look(redis, inflight=1)
        assert after.remaining == before.remaining
        assert before.remaining["requests"] == REQUESTS - 1


async def waiting(redis: Redis) -> int:
    return (await redis.info("everything"))["tokenbucket_waiting"]


async def test_a_call_without_a_slot_waits_its_turn_if_it_may(
    redis: Redis, redis_service: Service, model: Service, start_app
):
    client = start_gateway(
        start_app, redis_service, model, inflight=1, ttl_ms=60_000, max_wait_ms=30_000
    )
    async with stream(client, ENDLESS, 1000) as first:
        assert first.status_code == 200
        second = asyncio.create_task(chat(client, "hi", 10))
        while await waiting(redis) < 1:
            assert not second.done()
            await asyncio.sleep(0.01)
        assert (await look(redis, 1)).remaining["inflight"] == 0
    assert (await second).status_code == 200, "the caller of the first has hung up"


async def test_a_stream_is_settled_before_its_end(
    redis: Redis, redis_service: Service, model: Service, start_app
):
    client = start_gateway(start_app, redis_service, model, inflight=1, ttl_ms=60_000)
    async with stream(client, "one two three", max_tokens=500) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        told = [event async for event in events(response)]
    end = await look(redis, inflight=1)
    assert end.remaining == {"requests": REQUESTS - 1, "tokens": TOKENS - 6, "inflight": 1}
    assert not any(end.holds.values())

    *deltas, usage, done = told
    words = [json.loads(event)["choices"][0]["delta"]["content"] for event in deltas]
    assert "".join(words).split() == ["one", "two", "three"]
    assert json.loads(usage)["usage"]["total_tokens"] == 6
    assert done == "[DONE]"


async def test_a_settlement_after_the_expiry_charges_once(
    redis: Redis, redis_service: Service, model: Service, start_app, app_processes
):
    client = start_gateway(start_app, redis_service, model, inflight=1, ttl_ms=1000)
    words = " ".join(["word"] * 20)
    async with stream(client, words, max_tokens=500) as response:
        told = events(response)
        await anext(told)
        [gateway] = app_processes
        gateway.signal(signal.SIGSTOP)
        expired = await look_until_none_is_held(redis, inflight=1)
        assert expired.remaining == {"requests": REQUESTS, "tokens": TOKENS, "inflight": 1}
        # Somebody else has the slot by now, so that no renewal takes it again.
        slot = ("tb:llm:{demo}:inflight", 1, 0, 1, 60_000, "another's")
        assert (await redis.execute_command("TB.HOLD", *slot))[0] == 1
        gateway.signal(signal.SIGCONT)
        assert [event async for event in told][-1] == "[DONE]"
    end = await look(redis, inflight=1)
    assert end.remaining == {"requests": REQUESTS - 1, "tokens": TOKENS - 40, "inflight": 0}
    assert [list(held) for held in end.holds.values()] == [[], [], [b"another's"]]


async def test_a_caller_who_hangs_up_frees_the_slot_at_once_and_pays_the_estimate(
    redis: Redis, redis_service: Service, model: Service, start_app
):
    client = start_gateway(start_app, redis_service, model, inflight=1, ttl_ms=60_000)
    async with stream(client, ENDLESS, max_tokens=600) as response:
        told = events(response)
        await anext(told)
        held = await look(redis, inflight=1)
        assert held.remaining["inflight"] == 0
    end = await look_until_none_is_held(redis, inflight=1)
    assert end.remaining == held.remaining | {"inflight": 1}


async def test_a_stream_that_breaks_off_says_so_and_costs_the_estimate(
    redis: Redis, redis_service: Service, start_app, tmp_path
):
    model = model_server(tmp_path)
    model.start()
    client = start_gateway(start_app, redis_service, model, inflight=1, ttl_ms=60_000)
    async with stream(client, ENDLESS, max_tokens=600) as response:
        told = events(response)
        await anext(told)
        held = await look(redis, inflight=1)
        model.signal(signal.SIGKILL)
        model.stop()
        assert "error" in json.loads([event async for event in told][-1])
    end = await look(redis, inflight=1)
    assert end.remaining == held.remaining | {"inflight": 1}


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
    await until_asked(own_redis, client)
    model.signal(signal.SIGCONT)
    assert (await unasked).status_code == 200
    after = await chat(client, "one two three", max_tokens=10)
    assert after.headers["X-RateLimit-Remaining-Tokens"] == str(1000 - 6 - 6)


async def until_asked(redis_service: Service, client: httpx.AsyncClient) -> None:
    """Calls until the app has noticed that this Redis, which is empty, is back."""
    deadline = time.monotonic() + 10
    async with Redis(port=redis_service.port) as redis:
        while not await redis.dbsize():
            assert time.monotonic() < deadline, "the app never asked Redis again"
            await client.get("/search")
            await asyncio.sleep(0.02)


def connections_waiting(port: int) -> bool:
    """Whether somebody is connected to `port` on this host."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    established = "01"
    return any(
        fields[1].endswith(f":{port:04X}") and fields[3] == established
        for fields in map(str.split, lines)
    )
