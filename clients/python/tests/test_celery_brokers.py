"""Brokers as users of Celery configure them: the limit is where kombu puts the message."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
import redis
from celery import Celery

from conftest import PASSWORD, PLAIN
from test_celery import run_as_a_worker, task_of
from tokenbucket import Limit

NONE = {"ssl_cert_reqs": ssl.CERT_NONE}
TRANSPORT: dict[str, Any] = {"socket_timeout": 5, "socket_keepalive": True, "health_check_interval": 10}
TRANSPORT |= {"visibility_timeout": 600, "global_keyprefix": "jobs:"}
SENTINEL = {"master_name": "mymaster", "sentinel_kwargs": {"password": PLAIN}}


def filled_in(setting: Any, listening: dict[str, Any]) -> Any:
    """A setting with the ports and paths of the server."""
    if isinstance(setting, dict):
        return {name: filled_in(value, listening) for name, value in setting.items()}
    return setting.format(**listening) if isinstance(setting, str) else setting


PLAIN_URL = "redis://:{password}@127.0.0.1:{port}/0"
# The broker's URL, and other settings.
AS_CONFIGURED: dict[str, tuple[str | None, dict[str, Any]]] = {
    "a password": (PLAIN_URL, {}),
    "a user, a database": ("redis://app:{password}@127.0.0.1:{port}/3", {}),
    "TLS that is not checked": ("rediss://:{password}@127.0.0.1:{tls}/0?ssl_cert_reqs=CERT_NONE", {}),
    "TLS by a file": (
        "rediss://:{password}@localhost:{tls}/1?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs={ca}",
        {},
    ),
    "TLS by broker_use_ssl alone": ("redis://:{password}@127.0.0.1:{tls}/0", {"broker_use_ssl": NONE}),
    "broker_use_ssl with a file": (
        "rediss://:{password}@localhost:{tls}/0",
        {"broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "{ca}"}},
    ),
    "a socket": ("redis+socket://:{password}@{socket}?virtual_host=1", {}),
    "the second of two": ("redis://127.0.0.1:{closed}/0;" + PLAIN_URL, {}),
    "one to read and one to write": (
        None,
        dict.fromkeys(("broker_read_url", "broker_write_url"), "redis://:{password}@127.0.0.1:{port}/4"),
    ),
    "options of the transport": (PLAIN_URL, {"broker_transport_options": TRANSPORT}),
    "Sentinel": ("sentinel://:{password}@127.0.0.1:{sentinel}/0", {"broker_transport_options": SENTINEL}),
}


@pytest.mark.parametrize("name", AS_CONFIGURED)
def test_the_limit_is_where_the_message_is(listening: dict[str, Any], name: str) -> None:
    admin: Any = redis.Redis(port=listening["port"], password=PASSWORD)
    admin.flushall()
    url, settings = AS_CONFIGURED[name]
    with Celery("as configured", **filled_in({"broker_url": url, **settings}, listening)) as app:
        task = task_of(app, name="a", limit=Limit(3, "1/h"), on_error="raise")
        task.delay(1)
        assert run_as_a_worker(task) == 6
    in_each = [admin.execute_command("SELECT", number) and admin.keys() for number in range(5)]
    [keys] = [found for found in in_each if found]
    assert b"tb:celery:a:rate" in keys
    assert {b"celery", b"jobs:celery"} & set(keys)
