"""Connections of the driver whose client was given, by its public names: redis-py and valkey-py alike.

The driver connects, writes and parses: it knows about passwords, TLS, databases and Sentinel. Each
connection is made with the options of the client and with those below, so that it repeats nothing.
"""

from __future__ import annotations

import errno
import inspect
import re
import socket
from collections.abc import Iterable, Iterator
from typing import Any

import redis.asyncio

from ..values.errors import AWAY, BadArgument, ReplyError, TokenBucketError, Unanswered
from .commands import Command

# What a pool of redis-py adds for its own maintenance.
_OF_A_POOL = ("maint_", "orig_", "himport_", "event_dispatcher", "oss_cluster_", "cache")
_OF_A_CLUSTER = ("host", "port", "path", "connection_class", "response_callbacks", "max_connections")

# What a process or its machine can run out of.
_LACKS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EAGAIN)
# In which the system sends twice again what was lost, at usual round trips; and the most that it takes.
_UNDELIVERED_S = 0.5
_MOST_UNDELIVERED_MS = 2**31 - 1
# How TLS says that the other side has gone.
_TLS_ENDS = ("SSLEOFError", "SSLZeroReturnError", "SSLSyscallError")

_OPTIONS = re.compile("(<.*?)?(username|password)=.*", re.DOTALL)

# The driver strips the first word of these errors.
_WORDS = {
    "AskError": "ASK",
    "BusyLoadingError": "LOADING",
    "ClusterCrossSlotError": "CROSSSLOT",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "NoScriptError": "NOSCRIPT",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}


class Endpoint:
    """Makes connections to one server, or to the master that Sentinel names."""

    def __init__(self, connection_class: Any, options: dict[str, Any]) -> None:
        self.connection_class = connection_class
        self.options = {name: value for name, value in options.items() if not name.startswith(_OF_A_POOL)}
        self.options |= {
            "retry": None,
            "retry_on_error": [],
            "retry_on_timeout": False,
            "health_check_interval": 0,
            "protocol": 2,
            "decode_responses": False,
        }
        self._has_bound = "timeout" in inspect.signature(connection_class.read_response).parameters

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
        """Returns another node of the same cluster."""
        options = {name: value for name, value in self.options.items() if name not in _OF_A_CLUSTER}
        return Endpoint(self.connection_class, options | {"host": host, "port": port})

    def new(self, step_s: float | None, timeout_s: float) -> Any:
        """Makes a connection of the driver, each of whose steps to connect may take so long.

        Raises BadArgument for wrong options.
        """
        bounds = {"socket_timeout": step_s, "socket_connect_timeout": step_s}
        try:
            connection = self.connection_class(**self.options | bounds)
        except Exception as error:
            if is_lack(error):
                raise
            raise BadArgument(f"client: {error}") from error
        _forget_undelivered(connection, max(timeout_s, _UNDELIVERED_S))
        return connection

    def reads_within(self, for_s: float) -> dict[str, float]:
        """Returns what bounds each read of a reply; nothing in older drivers, where two seconds do."""
        return {"timeout": for_s} if self._has_bound else {}

    def without_secrets(self, error: Exception) -> Exception:
        """Names sentinels by their addresses: redis-py 6 and 7 write all options, with the password."""
        if not is_one(error, "MasterNotFoundError"):
            return error
        text = str(error)
        for sentinel in self.options["connection_pool"].sentinel_manager.sentinels:
            options = sentinel.connection_pool.connection_kwargs
            text = text.replace(str(sentinel), f"<{options.get('host')}:{options.get('port')}>")
        return type(error)(up_to_secrets(text))

    def _is_mistake(self, error: Exception) -> bool:
        """Returns whether a connection failed by what waiting does not change, such as a wrong password."""
        if is_lack(error):
            return False
        if is_one(error, "AuthenticationError", "AuthorizationError", "DataError"):
            return True
        if is_one(error, "MasterNotFoundError"):  # has but the texts of what the sentinels have said
            said = re.findall(r"> - (?:\w+:)?(\w+)", str(error))
            return bool(said) and all(kind.startswith("Auth") for kind in said)
        for one in _causes(error):
            if is_one(one, "SSLError") and not is_one(one, *_TLS_ENDS):
                return True
            if isinstance(one, FileNotFoundError | PermissionError) and "path" not in self.options:
                return True  # of a certificate; the socket of a server that has ended is no mistake
        if is_one(error, "ResponseError"):
            return str(error).split(" ", 1)[0] not in AWAY
        return not is_drivers(error)

    def why_it_failed(self, error: Exception, *, sent: bool = False) -> Exception:
        """Returns the error of a call whose connection failed, or broke after the call was sent."""
        if isinstance(error, TokenBucketError | Unanswered):
            return error
        if not self._is_mistake(error):
            return Unanswered(error, sent=sent, broken=sent)
        mistake = TokenBucketError(f"cannot connect to {self.name}: {error}")
        mistake.__cause__ = error
        return mistake


def _forget_undelivered(connection: Any, after_s: float) -> None:
    """Bounds how long the system sends again what has not arrived, also after the connection was closed.

    A hold that arrives seconds after its caller gave up would be nobody's until its ttl.
    """
    options = getattr(connection, "socket_keepalive_options", None)  # a Unix socket has none
    if options is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.socket_keepalive = True
        after_ms = min(int(after_s * 1000), _MOST_UNDELIVERED_MS)
        connection.socket_keepalive_options = {**options, socket.TCP_USER_TIMEOUT: after_ms}


def packed(connection: Any, commands: Iterable[Command]) -> Any:
    # A name may hold half of a surrogate pair, as JSON can spell it.
    return connection.pack_commands(
        [[str(word).encode("utf-8", "surrogatepass") for word in words] for words in commands]
    )


def is_one(error: BaseException, *names: str) -> bool:
    """Returns whether the error is of such a class: redis-py and valkey-py share none but by name."""
    return any(one.__name__ in names for one in type(error).__mro__)


def is_drivers(error: Exception) -> bool:
    """Returns whether the driver has raised it, and not a signal's handler in the middle of a call."""
    return is_one(error, "RedisError", "ValkeyError", "OSError")


def is_lack(error: Exception) -> bool:
    """Returns whether a connection failed because this process has no file, thread, port or place for it."""
    if is_one(error, "MemoryError", "RuntimeError") or "max number of clients" in str(error):
        return True
    return any(isinstance(one, OSError) and one.errno in _LACKS for one in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields the error and what it was raised from: drivers wrap what the system says."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def reply_of(error: Exception) -> ReplyError:
    """Returns the error line that the driver has made an exception of; raises any other error."""
    text = str(error)
    if word := _WORDS.get(type(error).__name__):
        return ReplyError(f"{word} {text}")
    if is_one(error, "ResponseError"):
        return ReplyError(text if re.match(r"[A-Z]+ ", text) else f"ERR {text}")
    raise error


def up_to_secrets(text: str) -> str:
    """Cuts off what may be a driver's list of the options of a connection."""
    return _OPTIONS.sub("…", text)


def client_of(url: str, asynchronous: bool) -> Any:
    try:
        return (redis.asyncio if asynchronous else redis).Redis.from_url(url)
    except ValueError as error:
        if "@" in url or "password" in url:  # which both texts may quote
            form = "redis://:password@host:port, with each of /?#@ in the password percent-encoded"
            raise BadArgument(f"client: the URL is invalid: write {form}") from None
        raise BadArgument(f"client: {url!r}: {error}") from error


def endpoints_of(client: Any, asynchronous: bool) -> tuple[list[Endpoint], Any]:
    """Returns the server of a client; of a cluster's client its first nodes, and its node manager."""
    manager: Any = getattr(client, "nodes_manager", None)
    pool: Any = getattr(client, "connection_pool", None)
    kinds = getattr(getattr(pool, "connection_class", None), "__mro__", ())
    if not manager and not any(kind.__module__.split(".")[0] in ("redis", "valkey") for kind in kinds):
        raise BadArgument(f"client: {_kind(client)} is not a client of redis-py or valkey-py")
    if inspect.iscoroutinefunction(client.execute_command) != asynchronous:
        package = "tokenbucket" if asynchronous else "tokenbucket.asyncio"
        raise BadArgument(f"client: {_kind(client)} is for the limiters of {package}")
    if not manager:
        return [Endpoint(pool.connection_class, pool.connection_kwargs)], None
    first = list(manager.startup_nodes.values())
    of = first[0]
    if not asynchronous:
        new = getattr(manager, "create_redis_node", None) or manager.create_valkey_node
        of = new(of.host, of.port, **manager.connection_kwargs).connection_pool
    any_node = Endpoint(of.connection_class, of.connection_kwargs)
    # The manager replaces the nodes that the application has named by those that it finds.
    named = getattr(client, "startup_nodes", [])
    return [any_node.at(node.host, node.port) for node in [*first, *named]], manager


def _kind(one: Any) -> str:
    return f"{type(one).__module__}.{type(one).__qualname__}"
