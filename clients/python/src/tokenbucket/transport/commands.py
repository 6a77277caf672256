"""The words that are sent, for the module and for the script."""

from __future__ import annotations

from typing import Any, Final

from ..values.limit import Limit, Number

Word = str | int
Command = tuple[Word, ...]
Commands = tuple[Command, ...]

NEED_THE_MODULE: Final = {"TB.HOLD", "TB.MHOLD", "TB.SETTLE", "TB.MSETTLE"}
NO_SCRIPT: Final = {*NEED_THE_MODULE, "DEL"}
# The position of the first key, if it does not follow the name.
_FIRST_KEY = {"TB.MTAKE": 2, "TB.MSETTLE": 3, "TB.MHOLD": 4}


def command(*before: str | int | Limit | Number) -> Command:
    """The words of a command: a limit is two of them."""
    words: list[Word] = []
    for one in before:
        if isinstance(one, Limit):
            words += (str(one.capacity), str(one.rate))
        else:
            words.append(str(one))
    return tuple(words)


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


def writes_nothing(waiting: Command) -> Command:
    """A write of the same name and key that changes nothing: a server that is paused keeps it back.

    `CLIENT UNBLOCK` is sent behind it on the same connection. Most servers before Redis 8.2 and Valkey 9
    end if a call is unblocked that they keep back because they are paused.
    """
    name, *words = waiting
    match name:
        case "TB.BMTAKE":
            return (name, 1, 0, words[2], 0, 1, 0)
        case "TB.BMHOLD":
            return (name, 1, 1, "none", 0, words[4], 0, 0, 0)
        case "TB.BHOLD":
            return (name, words[0], 0, 0, 0, 1, "none", 0)
        case _:
            return (name, words[0], 0, 1, 0, 0)


def owed(command: Command, reply: Any) -> list[Command]:
    """The commands that give back what a call took for a caller who is gone.

    `reply` is None if the connection ended first. To settle a hold that was not granted does no harm.
    """
    if reply is None:
        reply = [int(command[0] == "TB.MHOLD")]
    if not isinstance(reply, list) or not reply or not reply[0]:
        return []
    match command:
        case ("TB.TAKE" | "TB.RESERVE", key, capacity, rate, cost, *_):
            return [("TB.GIVE", key, capacity, rate, cost)]
        case ("TB.TAKEUPTO", key, capacity, rate, _):
            return [("TB.GIVE", key, capacity, rate, reply[0])]
        case ("TB.MTAKE", _, *words):
            return [("TB.GIVE", *words[at : at + 4]) for at in range(0, len(words), 4)]
        case ("TB.MHOLD", count, _, id, *words):
            unused = [0 if at % 4 == 3 else word for at, word in enumerate(words)]
            return [("TB.MSETTLE", count, id, *unused)]
    return []


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
