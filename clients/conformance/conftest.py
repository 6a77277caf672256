"""What every scenario gets: a real server with the module, a proxy before it, and the packages' drivers.

LANGUAGES says which packages take part, `python,node,go,rust` by default.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import resource
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPMessage
from pathlib import Path
from typing import Any

import pytest
import redis

from drivers import ANSWERS_WITHIN_S, Driver, DriverError
from launch import Servers, ask
from proxy import Proxy
from services import Service, free_port, redis_server, self_signed, sentinel_server, tls_options, wait_for

# As Ctrl-C does, so that the processes of a test still end with it.
signal.signal(signal.SIGTERM, signal.default_int_handler)
# Each of thousands of callers has a socket.
_, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))

LANGUAGES = os.environ.get("LANGUAGES", "python,node,go,rust").split(",")
# Whether packages speak TLS. Only the driver for Python knows how.
TLS = bool(os.environ.get("TLS"))
TLS_PORTS: dict[int, int] = {}
"""Of servers, by their other ports."""
# The name by which Sentinel knows its master.
MASTER = "tokens"
# The client libraries of each driver.
CLIENTS = {
    "python": ["redis-py", "redis-py-asyncio"],
    "node": ["node-redis", "ioredis"],
    "go": ["go-redis"],
    "rust": ["redis-rs", "redis-rs-sync"],
}
# More shapes and older releases, for the scenarios that name them.
OTHERS = {
    "python": ["valkey-py", "valkey-py-asyncio"],
    "node": [
        *("node-redis-pool", "node-redis-5", "node-redis-5-pool", "node-redis-4"),
        *("ioredis-5", "iovalkey"),
    ],
    "go": [],
    "rust": [],
}
# The middlewares of each driver.
FRAMEWORKS = {
    "python": ["starlette"],
    "node": ["express", "fastify"],
    "go": ["net/http"],
    "rust": ["axum"],
}
# What one token of "10/h" takes: none flows in during a scenario.
TOKEN_MS = 360_000
# Clients whose callers can hang up.
WITH_DEADLINES = ("redis-py-asyncio", "node", "go", "redis-rs")

StartDriver = Callable[..., Driver]
StartNodes = Callable[..., Servers]
StartServer = Callable[..., Service]
StartProxy = Callable[..., Proxy]


@dataclass(frozen=True)
class Client:
    language: str
    library: str
    in_cluster: bool = False

    def __str__(self) -> str:
        return self.library + ("-cluster" if self.in_cluster else "")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a scenario with every client of every language, or with those that its marks name."""
    by_itself = any("client" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "client" not in metafunc.fixturenames or by_itself:
        return
    only = metafunc.definition.get_closest_marker("only")
    in_clusters = metafunc.definition.get_closest_marker("also_in_clusters") and not TLS
    shapes = [False, True] if in_clusters else [False]
    clients = [
        Client(language, library, in_cluster)
        for language in LANGUAGES
        for library in CLIENTS[language] + OTHERS[language]
        for in_cluster in shapes
        if (only and library in only.args)
        or (library in CLIENTS[language] and (not only or language in only.args))
    ]
    metafunc.parametrize("client", clients, ids=str)


class Package:
    """One package with one client library: a driver process, and what it has made."""

    def __init__(self, start: StartDriver, client: Client) -> None:
        self.client = client
        self._start = start
        self.driver = start(client.language)
        if client.library not in self.driver.clients:
            pytest.skip(f"the driver was built without {client.library}")

    def another(self) -> Package:
        """The same in another process."""
        return Package(self._start, self.client)

    def server(
        self,
        at: Service | Proxy | int,
        name: str = "s",
        sentinel: Service | None = None,
        sentinels: list[str] | None = None,
        **options: Any,
    ) -> None:
        """Makes a Server `name` of the package, for what listens at that port, or for Sentinel's master."""
        port = at if isinstance(at, int) else at.port
        url = f"redis://127.0.0.1:{port}"
        if TLS:
            url = f"rediss://127.0.0.1:{TLS_PORTS.get(port, port)}?ssl_cert_reqs=none"
        where: dict[str, Any] = {"cluster": [url]} if self.client.in_cluster else {"url": url}
        if sentinel:
            nodes = sentinels or [f"127.0.0.1:{sentinel.port}"]
            where["sentinel"] = {"nodes": nodes, "master": MASTER}
        self.driver.do("server", name=name, client=self.client.library, **{**where, **options})

    def limiter(self, name: str = "l", *, connect: bool = True, **options: Any) -> None:
        """Makes a limiter, and waits until it has reached the server unless `connect` is false."""
        self.driver.do("limiter", **{"name": name, "server": "s", **options})
        if connect:
            eventually(lambda: self._reaches(name))

    def limit(self, at: Service | Proxy | int, name: str = "l", **options: Any) -> None:
        """Makes a limiter on a Server of its own, which takes those of the options that are a server's."""
        of_server = ("url", "cluster", "sentinel", "sentinels", "timeout_ms", "retry_every_ms", "by")
        self.server(at, **{option: options.pop(option) for option in of_server if option in options})
        self.limiter(name, **options)

    def _reaches(self, limiter: str) -> bool:
        try:
            return not self.take("connects", on=limiter)["degraded"]
        except DriverError as error:
            if error.kind != "ServerAway":
                raise
            return False

    def joint(self, limits: dict[str, list[Any]], **options: Any) -> None:
        self.driver.do("joint", name="j", server="s", limits=limits, **options)

    def begin(self, do: str, **words: Any) -> Future[Any]:
        """Calls limiter "l" with the name "user", unless `words` give others. A hold is called "h"."""
        usual = {"on": "l", "name": "user", "as": "h", "hold": "h", "ttl_ms": 60_000}
        return self.driver.begin(do, **{**usual, **words})

    def do(self, do: str, **words: Any) -> Any:
        return self.begin(do, **words).result(ANSWERS_WITHIN_S)

    def take(self, name: str = "user", /, **words: Any) -> Any:
        return self.do("take", name=name, **words)

    def many(self, op: str = "take", /, **words: Any) -> Any:
        return self.do("many", op=op, **words)

    def degraded_count(self) -> int:
        return int(self.driver.do("degraded", server="s")["count"])


@pytest.fixture
def at_the_end() -> Iterator[ExitStack]:
    """Stops what a scenario has started, the last one first."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def start_driver(tmp_path: Path, at_the_end: ExitStack) -> StartDriver:
    numbers = itertools.count()

    def start(language: str) -> Driver:
        driver = Driver(language, tmp_path / f"driver-{next(numbers)}.log")
        # Shown when the scenario fails.
        at_the_end.callback(lambda: print(driver.log.read_text(errors="replace")))
        at_the_end.callback(driver.stop)
        return driver

    return start


@pytest.fixture
def package(start_driver: StartDriver, client: Client) -> Package:
    return Package(start_driver, client)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str] | None:
    """What servers and proxies show to packages that speak TLS, and its key."""
    if not TLS:
        return None
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def start_server(tmp_path: Path, certificate: tuple[str, str] | None, at_the_end: ExitStack) -> StartServer:
    numbers = itertools.count()

    def start(*options: str, with_module: bool = True) -> Service:
        folder = tmp_path / f"server-{next(numbers)}"
        folder.mkdir()
        service = redis_server(folder, *options, with_module=with_module)
        if certificate:
            port = TLS_PORTS[service.port] = free_port()
            service.command += tls_options(port, *certificate)
        service.start()
        at_the_end.callback(service.stop)
        return service

    return start


@pytest.fixture
def server(request: pytest.FixtureRequest, start_server: StartServer) -> Service:
    """A server, or a cluster of one node where the client is a cluster's."""
    client = request.node.callspec.params.get("client") if hasattr(request.node, "callspec") else None
    if client is None or not client.in_cluster:
        return start_server()
    return cluster_of_one(start_server)


@pytest.fixture
def start_nodes(package: Package, tmp_path: Path, at_the_end: ExitStack) -> StartNodes:
    """Starts a cluster of three, for the package's cluster client."""
    package.client = replace(package.client, in_cluster=True)
    return lambda **options: at_the_end.enter_context(Servers(tmp_path, cluster=True, **options))


def documented_rights(version: str) -> list[str]:
    """The ACL rules of the row about the script, and what it adds for Redis 6.0."""
    page = Path(__file__).resolve().parents[2] / "docs/how-to/without-the-module.md"
    rules = re.search(r"`(\+evalsha [^`]*)`", page.read_text())
    assert rules, f"no rule with +evalsha in {page.name}"
    return rules[1].replace("\\|", "|").split() + ["+pexpireat"] * version.startswith("6.0.")


def cluster_of_one(start_server: StartServer) -> Service:
    node = start_server("--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1")
    ask(node, "CLUSTER", "ADDSLOTS", *range(16_384))
    eventually(lambda: is_whole(node))
    return node


@pytest.fixture
def watched_pair(
    start_server: StartServer, tmp_path: Path, at_the_end: ExitStack
) -> tuple[Service, Service, Service]:
    """A master, its replica, and the Sentinel that replaces the master half a second after its end."""
    old, new = start_server("--repl-diskless-sync-delay", "0"), start_server()
    ask(new, "REPLICAOF", "127.0.0.1", old.port)
    eventually(lambda: info(new)["master_link_status"] == "up", within_s=30)
    quick = (f"sentinel down-after-milliseconds {MASTER} 500", f"sentinel failover-timeout {MASTER} 2000")
    sentinel = sentinel_server(tmp_path, old, MASTER, *quick)
    sentinel.start()
    at_the_end.callback(sentinel.stop)
    eventually(lambda: len(ask(sentinel, "SENTINEL", "replicas", MASTER)) == 1, within_s=30)
    return old, new, sentinel


@pytest.fixture
def start_proxy(certificate: tuple[str, str] | None, at_the_end: ExitStack) -> StartProxy:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if certificate else None
    if tls and certificate:
        tls.load_cert_chain(*certificate)

    def start(server: Service, **options: Any) -> Proxy:
        proxy = Proxy(server.port, tls=tls, **options)
        at_the_end.callback(proxy.stop)
        return proxy

    return start


@pytest.fixture
def proxy(server: Service, start_proxy: StartProxy) -> Proxy:
    """Where clients of a cluster are sent too."""
    proxy = start_proxy(server)
    ask(server, "CONFIG", "SET", "cluster-announce-port", proxy.port)
    return proxy


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Keeps a process from everything meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def disconnect(proxy: Proxy) -> None:
    """Until it is redirected, as if the server was down."""
    proxy.redirect(1)
    proxy.drop_connections()


class Witness:
    """Measures meanwhile how long the server is silent to others: a starved machine is no package's fault.

    From answer to answer: one that starves itself asks late, and would see only the end of a silence.
    """

    def __init__(self, server: Service) -> None:
        self._client = redis.Redis(port=server.port)
        self._client.ping()
        self._over = threading.Event()
        self.silence_s = 0.0
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        answered = time.monotonic()
        while not self._over.wait(0.002):
            self._client.ping()
            now = time.monotonic()
            self.silence_s = max(self.silence_s, now - answered)
            answered = now

    def __enter__(self) -> Witness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()

    @property
    def saw_an_outage(self) -> bool:
        """Whether the server was silent for about the packages' default timeout."""
        return self.silence_s > 0.08


def level(server: Service, key: str = "tb:user", full: int = 1000) -> int:
    """What the bucket held at its last write; a missing key is a full bucket."""
    state = ask(server, "TB.STATE", key)
    return math.floor(float(state[0])) if state else full


def is_whole(node: Service) -> bool:
    """Whether the node knows a cluster that has all slots."""
    return "cluster_state:ok" in ask(node, "CLUSTER", "INFO")


def info(server: Service) -> dict[str, str]:
    """Its fields in lower case."""
    lines = ask(server, "INFO", "everything").lower().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def executed(server: Service, *commands: str) -> int:
    """How often the server has executed any of the commands."""
    stats = info(server)
    calls = (stats.get(f"cmdstat_{command}", "calls=0").split(",")[0] for command in commands)
    return sum(int(one.removeprefix("calls=")) for one in calls)


def until_waiting(server: Service, count: int) -> None:
    """Until so many calls wait their turn in the server."""
    eventually(lambda: info(server)["tokenbucket_waiting"] == str(count), within_s=30)


def eventually(holds: Callable[[], bool], within_s: float = 10) -> None:
    """For what a package does in the background."""
    wait_for(holds, "the promise", within_s)


def get(port: int, **headers: str) -> tuple[int, HTTPMessage]:
    """The status and the headers of an answer."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", "/", headers=headers)
        response = connection.getresponse()
        response.read()
        return response.status, response.headers
