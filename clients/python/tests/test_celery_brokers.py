"""Brokers as users of Celery configure them: the limit is where kombu puts the message."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from services import Service, free_port, redis_server, self_signed, sentinel_server, tls_options
from test_celery import run_as_a_worker, task_of
from tokenbucket import Limit

PASSWORD = "p@ss:/word"
QUOTED = "p%40ss%3A%2Fword"
NONE = {"ssl_cert_reqs": ssl.CERT_NONE}


@dataclass
class Broker:
    """A server that listens in every way: by TCP, TLS and a socket, and behind Sentinel."""

    server: Service
    tls_port: int
    sentinel: Service
    certificate: str
    socket: Path

    def fill_in(self, setting: Any) -> Any:
        """Returns a setting with this server's ports and paths."""
        if isinstance(setting, dict):
            return {name: self.fill_in(value) for name, value in setting.items()}
        if not isinstance(setting, str):
            return setting
        return setting.format(
            port=self.server.port,
            tls=self.tls_port,
            sentinel=self.sentinel.port,
            ca=self.certificate,
            socket=self.socket,
            password=QUOTED,
            closed=free_port(),
        )


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("broker")
    (certificate, key), socket, tls_port = self_signed(folder), folder / "socket", free_port()
    tls = tls_options(tls_port, certificate, key)
    user = ["--user", "jobs", "on", f">{PASSWORD}", "~*", "&*", "+@all"]
    server = redis_server(folder, *tls, *user, "--requirepass", PASSWORD, "--unixsocket", str(socket))
    server.start()
    sentinel = sentinel_server(folder, server, "jobs", f'sentinel auth-pass jobs "{PASSWORD}"')
    sentinel.start()
    yield Broker(server, tls_port, sentinel, certificate, socket)
    sentinel.stop()
    server.stop()


AS_CONFIGURED = {
    "a password": {"broker_url": "redis://:{password}@127.0.0.1:{port}/0"},
    "a user, a database": {"broker_url": "redis://jobs:{password}@127.0.0.1:{port}/3"},
    "TLS that is not checked": {
        "broker_url": "rediss://:{password}@127.0.0.1:{tls}/0?ssl_cert_reqs=CERT_NONE"
    },
    "TLS by a file": {
        "broker_url": "rediss://:{password}@localhost:{tls}/1?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs={ca}"
    },
    "TLS by broker_use_ssl alone": {
        "broker_url": "redis://:{password}@127.0.0.1:{tls}/0",
        "broker_use_ssl": NONE,
    },
    "broker_use_ssl with a file": {
        "broker_url": "rediss://:{password}@localhost:{tls}/0",
        "broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "{ca}"},
    },
    "a socket": {"broker_url": "redis+socket://:{password}@{socket}?virtual_host=1"},
    "the second of two": {
        "broker_url": "redis://127.0.0.1:{closed}/0;redis://:{password}@127.0.0.1:{port}/0",
    },
    "one to read and one to write": {
        "broker_read_url": "redis://:{password}@127.0.0.1:{port}/4",
        "broker_write_url": "redis://:{password}@127.0.0.1:{port}/4",
    },
    "options of the transport": {
        "broker_url": "redis://:{password}@127.0.0.1:{port}/0",
        "broker_transport_options": {
            "socket_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "visibility_timeout": 600,
            "global_keyprefix": "jobs:",
        },
    },
    "Sentinel": {
        "broker_url": "sentinel://:{password}@127.0.0.1:{sentinel}/0",
        "broker_transport_options": {"master_name": "jobs"},
    },
}


@pytest.mark.parametrize("name", AS_CONFIGURED)
def test_the_limit_is_where_the_message_is(broker: Broker, name: str) -> None:
    admin: Any = redis.Redis(port=broker.server.port, password=PASSWORD)
    admin.flushall()
    with Celery("as configured", **broker.fill_in(AS_CONFIGURED[name])) as app:
        task = task_of(app, name="a", limit=Limit(3, "1/h"), on_error="raise")
        task.delay(1)
        assert run_as_a_worker(task) == 6
    in_each = [admin.execute_command("SELECT", number) and admin.keys() for number in range(5)]
    [keys] = [found for found in in_each if found]
    assert b"tb:celery:a:rate" in keys
    assert {b"celery", b"jobs:celery"} & set(keys)
