"""Whose fault an error is, of redis-py and of valkey-py alike.

Both name their exceptions the same and share no class, so they are told apart by name.
"""

from __future__ import annotations

from enum import Enum, auto

from redis.exceptions import RedisClusterException, RedisError

# What can go wrong in asking.
ASKING_ERRORS: tuple[type[Exception], ...] = (RedisError, RedisClusterException, OSError, TimeoutError)
try:
    from valkey.exceptions import ValkeyClusterException, ValkeyError

    ASKING_ERRORS += (ValkeyError, ValkeyClusterException)
except ModuleNotFoundError:
    pass


class ServerAway(Exception):
    """The server cannot be asked, and `on_error` is "raise"."""


class ModuleMissing(Exception):
    """The server has no tokenbucket module."""


class CrossSlot(Exception):
    """The buckets of one call are in several slots of a cluster."""

    def __init__(self) -> None:
        super().__init__(
            "in a cluster, the names of one call have to share a hash tag, as in '{ada}:requests'"
        )


class Fault(Enum):
    CALLER = auto()
    """The call is wrong, or may not be made: it would be the next time as well."""
    AWAY = auto()
    """Nobody answers, or nobody who decides."""
    REFUSING = auto()
    """The server is there and refuses this write, which says nothing about the next."""


# By the first word of an error's text, or the class that the client library makes of that word.
_NOT_DECIDING = {"LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "UNKILLABLE"}
_REFUSING = {"OOM", "READONLY", "MISCONF", "NOREPLICAS", "TRYAGAIN"}
_NOT_DECIDING_CLASSES = {"ClusterDownError", "MasterDownError"}
_REFUSING_CLASSES = {"OutOfMemoryError", "ReadOnlyError", "TryAgainError"}
# A wrong password is a ConnectionError to the libraries. Waiting does not make it right.
_CALLERS_CLASSES = {"AuthenticationError", "AuthorizationError", "DataError"}


def fault_of(error: Exception) -> Fault:
    classes = _classes(error)
    if classes & _CALLERS_CLASSES:
        return Fault.CALLER
    if "ResponseError" not in classes:
        return Fault.AWAY
    word = str(error).split(" ", 1)[0]
    if word in _NOT_DECIDING or classes & _NOT_DECIDING_CLASSES:
        return Fault.AWAY
    if word in _REFUSING or classes & _REFUSING_CLASSES:
        return Fault.REFUSING
    return Fault.CALLER


def is_broken_connection(error: Exception) -> bool:
    return "ConnectionError" in _classes(error) and fault_of(error) is Fault.AWAY


def is_cross_slot(error: Exception) -> bool:
    return "ClusterCrossSlotError" in _classes(error)


def is_unknown_command(error: Exception) -> bool:
    return "ResponseError" in _classes(error) and "unknown command" in str(error)


def is_unknown_script(error: Exception) -> bool:
    return "NoScriptError" in _classes(error)


def _classes(error: Exception) -> set[str]:
    return {one.__name__ for one in type(error).__mro__}
