"""What every scenario gets: a real server with the module, a proxy before it, and the packages' drivers.

LANGUAGES says which packages take part, `python,node,go,rust` by default.
"""

from __future__ import annotations

import os
import resource
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from drivers import Driver, DriverError
from proxy import Proxy
from services import Service, free_port, redis_server, wait_for

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
# The client libraries of each driver.
CLIENTS = {
    "python": ["redis-py", "redis-py-asyncio"],
    "node": ["node-redis", "ioredis"],
    "go": ["go-redis", "redigo"],
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
# Clients whose callers can hang up.
WITH_DEADLINES = ("redis-py-asyncio", "node", "go", "redis-rs")

StartDriver = Callable[..., Driver]
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

    def __init__(self, start: StartDriver, client: Client, **env: str) -> None:
        self.client = client
        self._start = start
        self.driver = start(client.language, **env)
        if client.library not in self.driver.clients:
            pytest.skip(f"the driver was built without {client.library}")

    def another(self) -> Package:
        """The same in another process."""
        return Package(self._start, self.client)

    def server(self, at: Service | Proxy | int, name: str = "s", **options: Any) -> None:
        """Makes a Server `name` of the package, for what listens at that port."""
        port = at if isinstance(at, int) else at.port
        url = f"redis://127.0.0.1:{port}"
        if TLS:
            url = f"rediss://127.0.0.1:{TLS_PORTS.get(port, port)}?ssl_cert_reqs=none"
        where = {"cluster": [url]} if self.client.in_cluster else {"url": url}
        self.driver.do("server", name=name, client=self.client.library, **{**where, **options})

    def limiter(
        self, name: str = "l", *, capacity: float, rate: str, connect: bool = True, **options: Any
    ) -> None:
        """Makes a limiter, and waits until it has reached the server unless `connect` is false."""
        self.driver.do(
            "limiter", **{"name": name, "server": "s", "capacity": capacity, "rate": rate, **options}
        )

        if connect:
            eventually(lambda: self._reaches(name))

    def _reaches(self, limiter: str) -> bool:
        try:
            return not self.take("connects", on=limiter)["degraded"]
        except DriverError as error:
            if error.kind != "ServerAway":
                raise
            return False

    def take(self, name: str = "user", *, on: str = "l", **words: Any) -> dict[str, Any]:
        return self.driver.do("take", on=on, name=name, **words)  # type: ignore[no-any-return]

    def many(self, op: str = "take", *, on: str = "l", **words: Any) -> dict[str, Any]:
        return self.driver.do("many", op=op, on=on, **{"name": "user", **words})  # type: ignore[no-any-return]


@pytest.fixture
def start_driver(tmp_path: Path) -> Iterator[StartDriver]:
    started: list[Driver] = []

    def start(language: str, **env: str) -> Driver:
        started.append(Driver(language, tmp_path / f"driver-{len(started)}.log", env))
        return started[-1]

    yield start
    for driver in started:
        driver.stop()
        print(driver.log.read_text(errors="replace"))  # shown when the scenario fails


@pytest.fixture
def package(start_driver: StartDriver, client: Client) -> Package:
    return Package(start_driver, client)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path] | None:
    """What servers and proxies show to packages that speak TLS, and its key."""
    if not TLS:
        return None
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


@pytest.fixture
def start_server(tmp_path: Path, certificate: tuple[Path, Path] | None) -> Iterator[StartServer]:
    started: list[Service] = []

    def start(*options: str, with_module: bool = True) -> Service:
        folder = tmp_path / f"server-{len(started)}"
        folder.mkdir()
        started.append(redis_server(folder, *options, with_module=with_module))
        if certificate:
            port = TLS_PORTS[started[-1].port] = free_port()
            started[-1].command += ["--tls-port", str(port), "--tls-auth-clients", "no"]
            started[-1].command += [
                "--tls-cert-file",
                str(certificate[0]),
                "--tls-key-file",
                str(certificate[1]),
            ]
            started[-1].command += ["--tls-ca-cert-file", str(certificate[0])]
        started[-1].start()
        return started[-1]

    yield start
    for service in started:
        service.stop()


@pytest.fixture
def server(request: pytest.FixtureRequest, start_server: StartServer) -> Service:
    """A server, or a cluster of one node where the client is a cluster's."""
    client = request.node.callspec.params.get("client") if hasattr(request.node, "callspec") else None
    if client is None or not client.in_cluster:
        return start_server()
    node = start_server("--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1")
    with redis.Redis(port=node.port, decode_responses=True) as admin:
        ask(admin, "CLUSTER", "ADDSLOTS", *range(16_384))
        eventually(lambda: is_whole(admin))
    return node


@pytest.fixture
def start_sentinel(tmp_path: Path) -> Iterator[Callable[[Service], Service]]:
    """Starts a Sentinel for a master, which it calls "tokens" and replaces half a second after its end."""
    started: list[Service] = []

    def start(master: Service) -> Service:
        port, config = free_port(), tmp_path / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\nsentinel monitor tokens 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds tokens 500\nsentinel failover-timeout tokens 2000\n"
        )
        command = [master.command[0], str(config), "--sentinel"]
        started.append(Service("sentinel", command, port, tmp_path))
        started[-1].start()
        return started[-1]

    yield start
    for service in started:
        service.stop()


@pytest.fixture
def watched_pair(
    start_server: StartServer, start_sentinel: Callable[[Service], Service]
) -> tuple[Service, Service, dict[str, Any]]:
    """A master, its replica, and where a driver asks which of them is the master."""
    old, new = start_server("--repl-diskless-sync-delay", "0"), start_server()
    with redis.Redis(port=new.port) as admin:
        ask(admin, "REPLICAOF", "127.0.0.1", old.port)
        eventually(lambda: admin.info("replication")["master_link_status"] == "up", within_s=30)
    sentinel = start_sentinel(old)
    with redis.Redis(port=sentinel.port) as watch:
        eventually(lambda: len(watch.sentinel_slaves("tokens")) == 1, within_s=30)
    return old, new, {"nodes": [f"127.0.0.1:{sentinel.port}"], "master": "tokens"}


@pytest.fixture
def start_proxy(certificate: tuple[Path, Path] | None) -> Iterator[StartProxy]:
    started: list[Proxy] = []
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if certificate else None
    if tls and certificate:
        tls.load_cert_chain(*certificate)

    def start(server: Service, **options: Any) -> Proxy:
        started.append(Proxy(server.port, tls=tls, **options))
        return started[-1]

    yield start
    for proxy in started:
        proxy.stop()


@pytest.fixture
def proxy(server: Service, admin: redis.Redis, start_proxy: StartProxy) -> Proxy:
    """Where clients of a cluster are sent too."""
    proxy = start_proxy(server)
    admin.config_set("cluster-announce-port", proxy.port)
    return proxy


@pytest.fixture
def admin(server: Service) -> Iterator[redis.Redis]:
    """A client that no package knows of."""
    with redis.Redis(port=server.port, decode_responses=True) as client:
        yield client


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What scenarios measured beside what they assert."""
    for report in terminalreporter.stats.get("passed", []):
        for name, measured in report.user_properties:
            terminalreporter.write_line(f"{name}: {measured}")


class Witness:
    """Measures meanwhile how long the server is silent to others: a starved machine is no package's fault."""

    def __init__(self, server: Service) -> None:
        self._client = redis.Redis(port=server.port)
        self._client.ping()
        self._over = threading.Event()
        self.silence_s = 0.0
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            began = time.monotonic()
            self._client.ping()
            self.silence_s = max(self.silence_s, time.monotonic() - began)

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


def ask(admin: redis.Redis, *words: Any) -> Any:
    """A command that redis-py has no method for."""
    return admin.execute_command(*words)  # type: ignore[no-untyped-call]


def level(admin: redis.Redis, key: str, full: int = 1000) -> int:
    """What the bucket held at its last write; a missing key is a full bucket."""
    state = ask(admin, "TB.STATE", key)
    return int(float(state[0])) if state else full


def is_whole(admin: redis.Redis) -> bool:
    """Whether the node knows a cluster that has all slots."""
    return "cluster_state:ok" in str(ask(admin, "CLUSTER", "INFO"))


def executed(admin: redis.Redis, command: str) -> int:
    """How often the server has executed a command."""
    stats = {name.lower(): stat for name, stat in admin.info("commandstats").items()}
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


def eventually(holds: Callable[[], bool], within_s: float = 10) -> None:
    """For what a package does in the background."""
    wait_for(holds, "the promise", within_s)
