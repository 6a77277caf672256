"""The words that are sent, for the module and for the script."""

from __future__ import annotations

from typing import Final

Word = str | int
Command = tuple[Word, ...]
Commands = tuple[Command, ...]

NO_SCRIPT: Final = {"TB.MHOLD", "TB.MRENEW", "TB.MSETTLE", "DEL"}
# The position of the first key, if it does not follow the name.
_FIRST_KEY = {"TB.MTAKE": 2, "TB.MSETTLE": 3, "TB.MHOLD": 4, "TB.MRENEW": 4}


def key_of(command: Command) -> str:
    """The key by which a cluster finds the node."""
    return str(command[_FIRST_KEY.get(str(command[0]), 1)])


def waiting(command: Command, max_wait_ms: int, share: Command = ()) -> Command:
    """Returns the command that waits its turn in the server; with a share it is of a single bucket."""
    operation, *words = command
    if share and operation == "TB.MHOLD":
        _, ttl_ms, id, *bucket = words
        return ("TB.BHOLD", *bucket, ttl_ms, id, max_wait_ms, *share)
    at = {"TB.TAKE": len(words), "TB.MTAKE": 1, "TB.MHOLD": 3}[str(operation)]
    return (f"TB.B{str(operation).removeprefix('TB.')}", *words[:at], max_wait_ms, *words[at:], *share)


def renewing(command: Command) -> Command:
    """Returns the form of a `TB.MHOLD` that makes its hold last longer, and takes nothing if it is gone."""
    _, count, ttl_ms, id, *groups = command
    return ("TB.MRENEW", count, ttl_ms, id, *(word for at, word in enumerate(groups) if at % 4 != 3))


def script_key(key: Word) -> str:
    """The module and the script never use the same key."""
    return f"{key}:script"


def script_arguments(command: Command) -> Command:
    """`TB.TAKE key capacity rate cost` as the script takes it: keys first, under names of its own."""
    operation = str(command[0]).removeprefix("TB.")
    if operation == "MTAKE":
        keys, rest = command[2::4], command[2:]
        words = tuple(word for at, word in enumerate(rest) if at % 4)
    else:
        keys, words = command[1:2], command[2:]
    return (len(keys), *map(script_key, keys), operation, *words)
