"""Connections of a limiter's own, made as the client that it was given makes them.

The library of that client connects: it knows about passwords, TLS, databases and Sentinel. What is sent
and read afterwards is ours, so that all versions of redis-py and valkey-py behave alike.
"""

from __future__ import annotations

import importlib
import inspect
import socket
from typing import Any

from ..values.errors import BadArgument

CONNECT_WITHIN_S = 1.0

# What a pool of redis-py adds for its own maintenance.
_OF_A_POOL = ("maint_", "orig_", "himport_", "event_dispatcher", "oss_cluster_", "cache")
_OF_A_CLUSTER = ("host", "port", "path", "connection_class", "response_callbacks", "max_connections")


class Endpoint:
    """Makes connections to one server, or to the master that Sentinel names."""

    def __init__(self, connection_class: Any, options: dict[str, Any], asynchronous: bool) -> None:
        self.connection_class = connection_class
        self.options = {name: value for name, value in options.items() if not name.startswith(_OF_A_POOL)}
        self.asynchronous = asynchronous
        self.options |= self._answering_or_failing(_library_of(connection_class))

    @property
    def name(self) -> str:
        options = self.options
        if pool := options.get("connection_pool"):
            return f"the master {pool.service_name} of Sentinel"
        if "path" in options:
            return str(options["path"])
        host = str(options.get("host", "localhost"))
        return f"{f'[{host}]' if ':' in host else host}:{options.get('port', 6379)}"

    def at(self, host: str, port: int) -> Endpoint:
        """Another node of the same cluster."""
        options = {name: value for name, value in self.options.items() if name not in _OF_A_CLUSTER}
        return Endpoint(self.connection_class, options | {"host": host, "port": port}, self.asynchronous)

    def new(self) -> Any:
        """A connection of the library, not connected yet."""
        return self.connection_class(**self.options)

    def _answering_or_failing(self, library: str) -> dict[str, Any]:
        """Options of a connection that repeats nothing, and speaks the protocol that we read."""
        home = f"{library}.asyncio" if self.asynchronous else library
        retry = importlib.import_module(f"{home}.retry").Retry
        options = {
            "retry": retry(importlib.import_module(f"{library}.backoff").NoBackoff(), 0),
            "retry_on_error": [],
            "retry_on_timeout": False,
            "health_check_interval": 0,
            "protocol": 2,
            # An asyncio connection is given its time by the event loop's own count, see `_lanes.py`.
            "socket_timeout": None if self.asynchronous else CONNECT_WITHIN_S,
            "socket_connect_timeout": None if self.asynchronous else CONNECT_WITHIN_S,
        }
        if "maint_notifications_config" in _parameters(self.connection_class):
            notifications = importlib.import_module(f"{library}.maint_notifications")
            options["maint_notifications_config"] = notifications.MaintNotificationsConfig(enabled=False)
        return options


def _parameters(connection_class: Any) -> set[str]:
    """Which options it knows: that differs between versions, and between threads and asyncio."""
    kinds = (one for one in connection_class.__mro__ if "__init__" in vars(one))
    return {name for one in kinds for name in inspect.signature(one.__init__).parameters}


def _library_of(connection_class: Any) -> str:
    for one in getattr(connection_class, "__mro__", ()):
        library = one.__module__.split(".")[0]
        if one.__name__ == "AbstractConnection" and library in ("redis", "valkey"):
            return str(library)
    raise BadArgument(f"client: connections of {connection_class!r} are neither redis-py's nor valkey-py's")


def is_asynchronous(client: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(client, "execute_command", None))


def endpoints_of(client: Any, asynchronous: bool) -> tuple[list[Endpoint], Any]:
    """The server of a client; of a cluster's client the nodes that it was told, and its node manager."""
    if not hasattr(client, "execute_command"):
        raise BadArgument(f"client: {_kind(client)} is not a client of redis-py or valkey-py")
    if is_asynchronous(client) != asynchronous:
        package = "tokenbucket" if asynchronous else "tokenbucket.asyncio"
        raise BadArgument(f"client: {_kind(client)} is for the limiters of {package}")
    if manager := getattr(client, "nodes_manager", None):
        return [_node_endpoint(manager, node, asynchronous) for node in _nodes_told(manager)], manager
    pool: Any = getattr(client, "connection_pool", None)
    if not hasattr(pool, "connection_class") or not isinstance(
        getattr(pool, "connection_kwargs", None), dict
    ):
        raise BadArgument(f"client: {_kind(client)} has no connection pool of redis-py or valkey-py")
    return [Endpoint(pool.connection_class, pool.connection_kwargs, asynchronous)], None


def _nodes_told(manager: Any) -> list[Any]:
    nodes = manager.startup_nodes
    return list(nodes.values()) if isinstance(nodes, dict) else list(nodes)


def _node_endpoint(manager: Any, node: Any, asynchronous: bool) -> Endpoint:
    if asynchronous:
        return Endpoint(node.connection_class, node.connection_kwargs, True)
    client = (
        manager.create_redis_node if hasattr(manager, "create_redis_node") else manager.create_valkey_node
    )
    pool = client(node.host, node.port, **manager.connection_kwargs).connection_pool
    return Endpoint(pool.connection_class, pool.connection_kwargs, False)


def socket_of(connection: Any) -> socket.socket:
    """What a connected connection of the library sends by."""
    found = connection._sock
    if not isinstance(found, socket.socket):
        raise BadArgument(f"client: {_kind(connection)} has no socket")
    return found


def transport_of(connection: Any) -> Any:
    writer = connection._writer
    if writer is None or not hasattr(writer.transport, "set_protocol"):
        raise BadArgument(f"client: {_kind(connection)} has no transport of asyncio")
    if writer.transport.is_closing():
        raise ConnectionError("the server closed the connection")
    return writer.transport


def _kind(one: Any) -> str:
    return f"{type(one).__module__}.{type(one).__qualname__}"
