"""Connections that suit a limiter: they answer now or fail now."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from ._command import Command, key_of
from ._errors import ASKING_ERRORS

# What a pool of redis-py has added to what it was given, and adds again.
_OF_ANOTHER_POOL = ("maint_", "orig_", "himport_", "event_dispatcher", "oss_cluster_")

# A plain asyncio pool raises when all its connections are in use. A limiter that fails open would
# then let a flood through because it is a flood; this many are shared, within the timeout.
_MAX_ASYNC_CONNECTIONS = 50


def is_cluster(client: Any) -> bool:
    """Of redis-py or valkey-py: both know which node has a key."""
    return hasattr(client, "get_node_from_key")


def node_named(client: Any, key: str) -> str:
    """The node of a cluster that has the key; "" while that is not known, and of a single server."""
    if not is_cluster(client):
        return ""
    try:
        return str(client.get_node_from_key(key).name)
    except ASKING_ERRORS:
        return ""


def routed(client: Any, command: Command) -> dict[str, Any]:
    """Where to send it. A cluster's client would ask the server for the keys of a command that it does
    not know, every time, and repeat a call whose reply was lost, which takes twice."""
    return {"target_nodes": client.get_node_from_key(key_of(command))} if is_cluster(client) else {}


def own_client(client: Any, timeout_s: float, on_connect: Callable[[], None]) -> Any | None:
    """A client of the same server, user and database, with connections of its own.

    They wait no longer than `timeout_s` and repeat nothing: whoever retries makes a dead server
    slow, and pays for a take twice whose reply was lost. None if `client` is of a kind whose
    connections are not its own to open (a cluster's, Sentinel's).
    """
    pool: Any = getattr(client, "connection_pool", None)
    if type(pool).__name__ not in ("ConnectionPool", "BlockingConnectionPool"):
        return None
    library, *path = type(pool).__module__.split(".")
    if library not in ("redis", "valkey"):
        return None
    home = f"{library}.asyncio" if path[0] == "asyncio" else library
    asynchronous = home != library
    given = {
        name: value for name, value in pool.connection_kwargs.items() if not name.startswith(_OF_ANOTHER_POOL)
    }
    connect_func = f"{library}_connect_func"
    no_retry = importlib.import_module(f"{home}.retry").Retry(
        importlib.import_module(f"{library}.backoff").NoBackoff(), 0
    )
    given |= {
        "retry": no_retry,
        "retry_on_error": [],
        "health_check_interval": 0,
        # An asyncio call has a deadline of its own. The library's would be a second one, made of
        # wait_for, which before Python 3.12 can miss that it was cancelled.
        "socket_timeout": None if asynchronous else timeout_s,
        "socket_connect_timeout": timeout_s,
        connect_func: _announcing(given.get(connect_func), on_connect, asynchronous),
    }
    given.pop("retry_on_timeout", None)
    if library == "redis":
        given |= _without_notifications()
    pools = importlib.import_module(f"{home}.connection")
    if asynchronous:
        own_pool = pools.BlockingConnectionPool(
            connection_class=pool.connection_class,
            max_connections=_MAX_ASYNC_CONNECTIONS,
            timeout=None,
            **given,
        )
    else:
        # As many as there are threads that ask at the same time.
        own_pool = pools.ConnectionPool(
            connection_class=pool.connection_class, max_connections=2**31, **given
        )
    kind = getattr(importlib.import_module(home), library.capitalize())
    return kind(connection_pool=own_pool)


def _without_notifications() -> dict[str, Any]:
    """Settings that make the pool of a redis-py that knows them look whether a connection is alive.

    With notifications of maintenance it hands out those that died with the server, and each fails
    once.
    """
    try:
        notifications = importlib.import_module("redis.maint_notifications")
    except ModuleNotFoundError:
        return {}
    return {"maint_notifications_config": notifications.MaintNotificationsConfig(enabled=False)}


def _announcing(given: Any, on_connect: Callable[[], None], asynchronous: bool) -> Callable[..., Any]:
    """What a new connection does first: what it would do anyway, and tell `on_connect`."""

    def greet(connection: Any) -> None:
        on_connect()
        given(connection) if given else connection.on_connect()

    async def greet_async(connection: Any) -> None:
        on_connect()
        greeting = given(connection) if given else connection.on_connect()
        if inspect.isawaitable(greeting):
            await greeting

    return greet_async if asynchronous else greet
