"""Options as drop-ins get them, from settings and environments."""

from __future__ import annotations

from typing import Any

from .errors import BadArgument

_NUMBERS = {"timeout_ms": float, "retry_every_ms": float, "batch": int, "remember_denials": int}


def read_numbers(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options with those numbers read that are strings. Raises BadArgument for what is none."""
    return {name: _read(name, value) if name in _NUMBERS else value for name, value in options.items()}


def _read(name: str, value: Any) -> Any:
    try:
        return _NUMBERS[name](value) if isinstance(value, str) else value
    except ValueError as error:
        raise BadArgument(f"{name}: {value!r} is not a number") from error
