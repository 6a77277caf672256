"""What every scenario gets: a real server with the module, a proxy before it, and the packages' drivers.

LANGUAGES says which packages take part, `python,node,go,rust` unless told otherwise.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from drivers import Driver
from proxy import Proxy
from services import Service, redis_server, wait_for

# As Ctrl-C does, so that what the tests have started is still ended.
signal.signal(signal.SIGTERM, signal.default_int_handler)
# Thousands of callers at once have a socket each.
_, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))

LANGUAGES = os.environ.get("LANGUAGES", "python,node,go,rust").split(",")
# The libraries by which each driver can be told to call, see README.md.
CLIENTS = {
    "python": ["redis-py", "redis-py-asyncio"],
    "node": ["node-redis", "ioredis"],
    "go": ["go-redis", "redigo"],
    "rust": ["redis-rs", "redis-rs-sync"],
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A scenario runs by every client of every language; `@pytest.mark.only(...)` names those that it is about."""
    if "client" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("only")
    wanted = [(language, client) for language in LANGUAGES for client in CLIENTS[language]]
    if mark:
        wanted = [one for one in wanted if one[0] in mark.args or one[1] in mark.args]
    metafunc.parametrize("client", wanted, ids=[client for _, client in wanted])


class Package:
    """One package by one client library: a driver process, and a server made in it."""

    def __init__(self, start: Callable[[str], Driver], client: tuple[str, str]) -> None:
        self.language, self.client = client
        self._start = start
        self.driver = start(self.language)

    def another(self) -> Package:
        """The same in another process."""
        return Package(self._start, (self.language, self.client))

    def server(self, url: str, name: str = "s", **options: Any) -> None:
        self.driver.do("server", name=name, client=self.client, url=url, **options)

    def limiter(self, name: str = "l", *, capacity: float, rate: str | float, **options: Any) -> None:
        options = {"server": "s", **options}
        self.driver.do("limiter", name=name, capacity=capacity, rate=rate, **options)

    def take(self, name: str = "user", *, on: str = "l", **words: Any) -> dict[str, Any]:
        return self.driver.do("take", on=on, name=name, **words)  # type: ignore[no-any-return]

    def many(self, op: str = "take", *, on: str = "l", **words: Any) -> dict[str, Any]:
        return self.driver.do("many", op=op, on=on, **{"name": "user", **words})  # type: ignore[no-any-return]


@pytest.fixture
def start_driver(tmp_path: Path) -> Iterator[Callable[[str], Driver]]:
    started: list[Driver] = []

    def start(language: str) -> Driver:
        started.append(Driver(language, tmp_path))
        return started[-1]

    yield start
    for driver in started:
        driver.stop()


@pytest.fixture
def package(start_driver: Callable[[str], Driver], client: tuple[str, str]) -> Package:
    return Package(start_driver, client)


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    started: list[Service] = []

    def start(*options: str) -> Service:
        folder = tmp_path / f"server-{len(started)}"
        folder.mkdir()
        started.append(redis_server(folder, *options))
        started[-1].start()
        return started[-1]

    yield start
    for service in started:
        service.stop()


@pytest.fixture
def server(start_server: Callable[..., Service]) -> Service:
    return start_server()


@pytest.fixture
def start_proxy() -> Iterator[Callable[..., Proxy]]:
    started: list[Proxy] = []

    def start(port: int, **options: Any) -> Proxy:
        started.append(Proxy(port, **options))
        return started[-1]

    yield start
    for proxy in started:
        proxy.stop()


@pytest.fixture
def proxy(server: Service, start_proxy: Callable[..., Proxy]) -> Proxy:
    return start_proxy(server.port)


@pytest.fixture
def admin(server: Service) -> Iterator[redis.Redis]:
    """A client that no package knows of."""
    with redis.Redis(port=server.port, decode_responses=True) as client:
        yield client


def url_of(service: Service) -> str:
    return f"redis://127.0.0.1:{service.port}"


def level(admin: redis.Redis, key: str, full: float = 1000) -> float:
    """What the bucket held at its last write; a key that is not there is a full bucket."""
    state = admin.execute_command("TB.STATE", key)
    return float(int(float(state[0]))) if state else full


def eventually(holds: Callable[[], bool]) -> None:
    """For what goes on in the background of a package."""
    wait_for(holds, "what was promised", within_s=10)
