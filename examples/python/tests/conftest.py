from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest
from redis.asyncio import Redis

from run import app_server, model_server
from services import Service, redis_server, wait_for

# As Ctrl-C does, so that what the tests have started is still ended.
signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def redis_service(tmp_path_factory) -> Iterator[Service]:
    """The server that most tests share; each test starts with it empty."""
    service = redis_server(tmp_path_factory.mktemp("redis"))
    service.start()
    yield service
    service.stop()


@pytest.fixture
async def redis(redis_service: Service) -> AsyncIterator[Redis]:
    client = Redis(port=redis_service.port)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Iterator[Service]:
    service = model_server(tmp_path_factory.mktemp("model"))
    service.start()
    yield service
    service.stop()


@pytest.fixture
async def start_app(tmp_path) -> AsyncIterator[Callable]:
    """Starts the app on the given Redis, as its own process; answers a client for it.

    Five seconds are plenty for a loaded machine to ask Redis, so that no test passes or fails by
    the policy for errors unless it is about that.
    """
    clients: list[httpx.AsyncClient] = []
    services: list[Service] = []

    def start(redis: Service, **settings: str) -> httpx.AsyncClient:
        settings = {"rate_limit_timeout_ms": "5000", "ip_limit": "1000 1000/s"} | settings
        service = app_server(tmp_path, redis_url=f"redis://127.0.0.1:{redis.port}/0", **settings)
        services.append(service)
        service.start()
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.port}", timeout=20)
        clients.append(client)
        wait_for(
            lambda: httpx.get(f"{client.base_url}/healthz", timeout=20).status_code == 200,
            "the app",
        )
        return client

    yield start
    for client in clients:
        await client.aclose()
    for service in services:
        service.stop()
