"""The words that are sent, for the module and for the script."""

from __future__ import annotations

from typing import Final

Word = str | int
Command = tuple[Word, ...]

NEED_THE_MODULE: Final = {"TB.HOLD", "TB.MHOLD", "TB.SETTLE", "TB.MSETTLE"}
# Where the first key stands, if not right behind the name.
_FIRST_KEY = {"TB.MTAKE": 2, "TB.MSETTLE": 3, "TB.MHOLD": 4, "EVALSHA": 3, "EVAL": 3}


def key_of(command: Command) -> str:
    """The key by which a cluster finds the node."""
    return str(command[_FIRST_KEY.get(str(command[0]), 1)])


def script_key(key: Word) -> str:
    """No key is a bucket of the module at one time and one of the script at another."""
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
