"""The words that are sent, for the module and for the script."""

from __future__ import annotations

import functools
import hashlib
from importlib import resources
from typing import Final

Word = str | int
Command = tuple[Word, ...]
Commands = tuple[Command, ...]

NEED_THE_MODULE: Final = {"TB.MHOLD", "TB.MRENEW", "TB.MSETTLE", "TB.TAKEANY", "TB.HOLDANY"}
# The position of the first key, if it does not follow the name.
_FIRST_KEY = {"TB.MTAKE": 2, "TB.MSETTLE": 3, "TB.MHOLD": 4, "TB.MRENEW": 4, "EVALSHA": 3}
_FIRST_KEY |= {"TB.TAKEANY": 3, "TB.HOLDANY": 5}


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


@functools.cache
def script() -> tuple[str, str]:
    """Returns the script, and the name that the server gives it."""
    text = resources.files("tokenbucket").joinpath("fallback.lua").read_text("utf-8")
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def by_script(command: Command) -> Command:
    """Returns the form of a command for the script: keys first, under names that the module never uses."""
    name, *words = command
    if name == "DEL":
        return ("DEL", *(f"{key}:script" for key in words))
    groups, step = (words[1:], 4) if name == "TB.MTAKE" else (words, len(words))
    keys = [f"{key}:script" for key in groups[::step]]
    rest = (word for at, word in enumerate(groups) if at % step)
    return ("EVALSHA", script()[1], len(keys), *keys, str(name).removeprefix("TB."), *rest)
