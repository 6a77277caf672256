"""Options as drop-ins get them, from settings and environments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .errors import BadArgument

_WHOLE = {"batch", "remember_denials", "max_in_flight"}
_NUMBERS = _WHOLE | {"timeout_ms", "retry_every_ms", "max_wait", "hold_ttl"}


def read_numbers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options with those numbers read that are strings, and without those that are None.

    Raises BadArgument for any other value of a number.
    """
    given = {name: value for name, value in options.items() if value is not None or name not in _NUMBERS}
    return {name: _read(name, value) if name in _NUMBERS else value for name, value in given.items()}


def _read(name: str, value: Any) -> Any:
    try:
        if isinstance(value, str):
            return int(value) if name in _WHOLE else float(value)
        if isinstance(value, int if name in _WHOLE else int | float):
            return value
    except ValueError:
        pass
    raise BadArgument(f"{name}: {value!r} is not a {'whole ' if name in _WHOLE else ''}number")


@contextmanager
def named(as_written: Callable[[str], str]) -> Iterator[None]:
    """Names the option that an error begins with as the user has written it."""
    try:
        yield
    except BadArgument as error:
        raise BadArgument(re.sub(r"^\w+(?=:)", lambda name: as_written(name[0]), str(error))) from error
