from __future__ import annotations

import gc
import importlib
import inspect
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest
import redis

import tokenbucket
import tokenbucket.asyncio
from launch import Servers
from paths import PACKAGE
from proxy import Proxy
from services import Service, free_port, redis_server, self_signed, sentinel_server, tls_options, wait_for

# As Ctrl-C does, so that what the tests have started is still ended.
signal.signal(signal.SIGTERM, signal.default_int_handler)

DRIVERS = ("redis", "redis.asyncio", "valkey", "valkey.asyncio")


class Blocking:
    """What is awaited, for tests that are written once for threads and asyncio.

    Its event loop runs on in another thread between calls, as it does in a program.
    """

    def __init__(self, portal: anyio.from_thread.BlockingPortal, awaited: Any) -> None:
        self._portal = portal
        self._awaited = awaited

    def __getattr__(self, name: str) -> Any:
        awaited = {"close": "aclose", "read": "aread"}.get(name, name)
        value = getattr(self._awaited, awaited)
        if not callable(value):
            return value

        async def call(*arguments: Any, **options: Any) -> Any:
            result = value(*arguments, **options)
            return await result if inspect.isawaitable(result) else result

        def called(*arguments: Any, **options: Any) -> Any:
            result = self._portal.call(lambda: call(*arguments, **options))
            if isinstance(result, tokenbucket.asyncio.Hold):
                return Blocking(self._portal, result)
            return result

        return called

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._awaited, name, value)

    def __bool__(self) -> bool:
        return bool(self._awaited)

    def __enter__(self) -> Blocking:
        self._portal.call(self._awaited.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._portal.call(self._awaited.__aexit__, *error)


@pytest.fixture(scope="session", autouse=True)
def _what_is_imported_is_not_collected() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _leaks(_what_is_imported_is_not_collected: None) -> Iterator[None]:
    """Collects garbage after each test, so that a connection left open fails the test that has left it."""
    yield
    gc.collect()


@pytest.fixture
def anyio_backend() -> str:
    """By which tests run that are coroutine functions."""
    return "asyncio"


@pytest.fixture(scope="session")
def portal() -> Iterator[anyio.from_thread.BlockingPortal]:
    with anyio.from_thread.start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The server that most tests share; each test starts with it empty."""
    with Servers(tmp_path_factory.mktemp("redis")) as servers:
        yield servers.nodes[0]


@pytest.fixture
def admin(server: Service) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, decode_responses=True) as admin:
        admin.flushall()
        yield admin


def until_waiting(server: Service, count: int) -> None:
    """Until so many calls wait their turn in the server."""
    with redis.Redis(port=server.port) as admin:
        wait_for(lambda: admin.info("everything")["tokenbucket_waiting"] == count, f"{count} waiting calls")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as threads:
        yield threads


@pytest.fixture
def proxy(server: Service) -> Iterator[Proxy]:
    """Before the server that tests share."""
    proxy = Proxy(server.port)
    yield proxy
    proxy.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Service]:
    """A server for the tests that stop it."""
    with Servers(tmp_path) as servers:
        yield servers.nodes[0]


@pytest.fixture
def own_nodes(tmp_path: Path) -> Iterator[Servers]:
    """A cluster of three."""
    with Servers(tmp_path, cluster=True) as nodes:
        yield nodes


@pytest.fixture
def bare_server(tmp_path: Path) -> Iterator[Service]:
    """A server without the module."""
    with Servers(tmp_path, with_module=False) as servers:
        yield servers.nodes[0]


@contextmanager
def language_model(folder: Path, **env: str) -> Iterator[Service]:
    """A stand-in for one."""
    port, program = free_port(), str(PACKAGE / "tests/language_model.py")
    model = Service("model", [sys.executable, program, str(port)], port, folder, env)
    model.start()
    try:
        yield model
    finally:
        model.stop()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with language_model(tmp_path_factory.mktemp("model")) as model:
        yield model


# Of the server that listens in every way, and as URLs have it.
PASSWORD, QUOTED = "p@ss:/word", "p%40ss%3A%2Fword"
PLAIN = "other"
"""Is one as well, also of Sentinel: the library `limits` reads no quotes there."""


@pytest.fixture(scope="session")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Where a server listens: by TCP, TLS and a socket, and behind Sentinel. Each wants the password."""
    folder = tmp_path_factory.mktemp("listening")
    (certificate, key), socket, tls = self_signed(folder), folder / "socket", free_port()
    options = [*tls_options(tls, certificate, key), "--unixsocket", str(socket)]
    for user in ("app", "default"):
        options += ["--user", user, "on", f">{PASSWORD}", f">{PLAIN}", "~*", "&*", "+@all"]
    server = redis_server(folder, *options)
    secret = (f"requirepass {PLAIN}", f"sentinel auth-pass mymaster {PLAIN}")
    sentinel = sentinel_server(folder, server, "mymaster", *secret)
    for one in (server, sentinel):
        one.start()
    ports = {"port": server.port, "tls": tls, "sentinel": sentinel.port, "closed": free_port()}
    yield ports | {"socket": socket, "ca": certificate, "password": QUOTED}
    sentinel.stop()
    server.stop()


Make = Callable[..., Any]


@pytest.fixture(params=DRIVERS)
def make(request: pytest.FixtureRequest, portal: anyio.from_thread.BlockingPortal) -> Iterator[Make]:
    """Makes a limiter of each kind: `make(server, limit)`, `make(server, {"requests": limit})`."""
    yield from makes(request.param, "", portal)


@pytest.fixture(params=DRIVERS)
def make_on_cluster(
    request: pytest.FixtureRequest, portal: anyio.from_thread.BlockingPortal
) -> Iterator[Make]:
    """The same, with one node for a cluster."""
    yield from makes(request.param, "Cluster", portal)


def makes(driver: str, cluster: str, portal: anyio.from_thread.BlockingPortal) -> Iterator[Make]:
    """Twenty seconds are plenty for a loaded machine to ask a server, so that no test passes or fails by
    the policy for errors unless it is about that.
    """
    made: list[tuple[Any, Any]] = []
    name, _, asynchronous = driver.partition(".")
    kind_of_client = getattr(importlib.import_module(driver), f"{name.capitalize()}{cluster}")
    package: Any = tokenbucket.asyncio if asynchronous else tokenbucket

    def make(server: Service, limit: Any, **options: Any) -> Any:
        of_client = {"host": "127.0.0.1", "port": server.port} | options.pop("client", {})
        of_server = {"timeout_ms": 20_000} | {
            name: options.pop(name) for name in ("timeout_ms", "retry_every_ms", "by") if name in options
        }
        kind = package.JointLimiter if isinstance(limit, dict) else package.Limiter

        def build() -> tuple[Any, Any]:
            client = kind_of_client(**of_client)
            return kind(
                package.Server(client, **of_server), limit, **({"on_error": "raise"} | options)
            ), client

        limiter, client = portal.call(build) if asynchronous else build()
        if asynchronous:
            limiter, client = Blocking(portal, limiter), Blocking(portal, client)
        made.append((limiter, client))
        return limiter

    yield make
    for limiter, client in made:
        (limiter.aclose if asynchronous else limiter.close)()
        (client.aclose if asynchronous else client.close)()
