"""The app over HTTP, as its own process, against a real server."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time

import httpx
import pytest
from redis.asyncio import Redis

from run import HERE
from services import Service

pytestmark = pytest.mark.anyio

STILL = "10/h"
KEY = {"Authorization": "Bearer demo-key"}


def status_codes(responses: list[httpx.Response]) -> list[int]:
    return [response.status_code for response in responses]


async def test_a_burst_passes_then_429_then_after_retry_after_it_passes(
    redis: Redis, redis_service: Service, start_app
):
    client = start_app(redis_service, ip_limit="3 1/2s")
    began = time.monotonic()
    responses = []
    while not responses or responses[-1].status_code != 429:
        responses.append(await client.get("/"))
    # Exactly the burst, and what flowed in meanwhile on a machine that is slow.
    assert 3 <= len(responses) - 1 <= 3 + (time.monotonic() - began) / 2
    assert set(status_codes(responses[:-1])) == {200}

    first, denied = responses[0], responses[-1]
    assert first.headers["RateLimit-Policy"] == '"default";q=3;w=6'
    assert first.headers["RateLimit"] == '"default";r=2;t=2'
    assert "Retry-After" not in first.headers

    retry_after_ms = denied.json()["retry_after_ms"]
    assert 0 < retry_after_ms <= 2000
    assert denied.headers["Retry-After"] == str(math.ceil(retry_after_ms / 1000))
    assert denied.headers["RateLimit"].startswith('"default";r=0;')
    await asyncio.sleep(int(denied.headers["Retry-After"]))
    assert (await client.get("/")).status_code == 200


async def test_the_address_is_the_one_that_a_trusted_proxy_saw(
    redis: Redis, redis_service: Service, start_app
):
    client = start_app(redis_service, ip_limit=f"2 {STILL}", trusted_proxies="127.0.0.1")

    async def through_proxy(forged: str, seen: str) -> int:
        headers = {"X-Forwarded-For": f"{forged}, {seen}"}
        return (await client.get("/", headers=headers)).status_code

    same = [await through_proxy(f"198.51.100.{i}", "203.0.113.7") for i in range(3)]
    assert same == [200, 200, 429]
    assert await through_proxy("198.51.100.0", "203.0.113.8") == 200

    without_proxy = start_app(redis_service, ip_limit=f"2 {STILL}")
    forged = [{"X-Forwarded-For": f"203.0.113.{i}"} for i in range(4)]
    responses = [await without_proxy.get("/", headers=headers) for headers in forged]
    assert status_codes(responses) == [200, 200, 429, 429]


async def test_the_dependency_limits_each_api_key(redis: Redis, redis_service: Service, start_app):
    client = start_app(
        redis_service,
        search_limit=f"2 {STILL}",
        api_keys='{"demo-key": "demo", "other-key": "other"}',
    )
    assert (await client.get("/search")).status_code == 401
    unknown = {"Authorization": "Bearer nobody's"}
    assert (await client.get("/search", headers=unknown)).status_code == 401

    responses = [await client.get("/search?q=hi", headers=KEY) for _ in range(3)]
    assert status_codes(responses) == [200, 200, 429]
    assert responses[0].json() == {"q": "hi"}
    first = responses[0].headers
    assert ";q=2;" in first["RateLimit-Policy"], "the route's limit, not the middleware's"
    assert ";r=1;" in first["RateLimit"]
    assert 0 < int(responses[2].headers["Retry-After"]) <= 360

    other = await client.get("/search", headers={"Authorization": "Bearer other-key"})
    assert other.status_code == 200
    assert (await client.get("/")).status_code == 200, "other routes are not affected"


async def test_redis_stopped_and_back(own_redis: Service, start_app):
    client = start_app(own_redis, ip_limit=f"3 {STILL}", rate_limit_on_error="closed")
    responses = [await client.get("/") for _ in range(4)]
    assert status_codes(responses) == [200, 200, 200, 429]

    own_redis.stop()
    for _ in range(5):
        response = await client.get("/")
        assert response.status_code == 503
        assert "RateLimit" not in response.headers and "Retry-After" in response.headers

    own_redis.start()
    # The new server holds full buckets, and the first that is limited takes the first token.
    responses = [await first_limited(client)] + [await client.get("/") for _ in range(3)]
    assert status_codes(responses) == [200, 200, 200, 429]


async def first_limited(client: httpx.AsyncClient) -> httpx.Response:
    """The first response that Redis was asked for again, once it is back."""
    deadline = time.monotonic() + 5
    while "RateLimit" not in (response := await client.get("/")).headers:
        assert time.monotonic() < deadline, "not limiting again"
    return response


async def test_the_app_starts_and_limits_while_redis_is_away(own_redis: Service, start_app):
    own_redis.stop()
    client = start_app(own_redis, ip_limit=f"1 {STILL}")
    assert status_codes([await client.get("/") for _ in range(2)]) == [200, 429]
    own_redis.start()
    assert status_codes([await first_limited(client), await client.get("/")]) == [200, 429]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("IP_LIMIT", "20", "IP_LIMIT: "),
        ("IP_LIMIT", "20 10/fortnight", "rate: '10/fortnight'"),
        ("SEARCH_LIMIT", "many 1/s", "capacity: 'many'"),
        ("RATE_LIMIT_ON_ERROR", "maybe", "'local', 'open' or 'closed'"),
        ("RATE_LIMIT_TIMEOUT_MS", "0", "RATE_LIMIT_TIMEOUT_MS: "),
        ("LLM_INFLIGHT_LIMIT", "0", "LLM_INFLIGHT_LIMIT: "),
        ("LLM_HOLD_TTL_MS", "999", "LLM_HOLD_TTL_MS: "),
        ("API_KEYS", "demo-key", "API_KEYS"),
        ("IP_LIMIT", "20 0", "IP_LIMIT: "),
    ],
)
def test_wrong_settings_end_the_app_with_a_clear_error(redis_service: Service, name, value, says):
    env = {name: value, "REDIS_URL": f"redis://127.0.0.1:{redis_service.port}/0", "PATH": ""}
    command = [sys.executable, str(HERE / "app.py")]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    assert ended.returncode != 0
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
