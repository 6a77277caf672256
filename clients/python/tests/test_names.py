"""What `help` shows of public names: signatures, docstrings and bases speak in public names alone."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

MODULES = ("", ".asyncio", ".celery", ".httpx", ".limits", ".litellm", ".testing")


def shown(name: str, public: Any) -> Iterator[tuple[str, str]]:
    """Yields what `help` shows of a name and its members, each with where it was found."""
    yield name, public.__doc__ or ""
    if inspect.isfunction(public):
        yield name, str(inspect.signature(public))
    for kind in getattr(public, "__mro__", ()):
        if not kind.__module__.startswith("tokenbucket"):
            continue
        yield name, " ".join(base.__name__ for base in kind.__bases__)
        for member, value in vars(kind).items():
            function = inspect.unwrap(getattr(value, "fget", None) or getattr(value, "__func__", value))
            if inspect.isfunction(function) and (member == "__init__" or not member.startswith("_")):
                yield f"{name}.{member}", f"{function.__doc__} {inspect.signature(function)}"


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.filterwarnings("ignore")
def test_help_names_nothing_private(module: str) -> None:
    try:
        imported = importlib.import_module(f"tokenbucket{module}")
    except ModuleNotFoundError as error:  # LiteLLM has an environment of its own
        pytest.skip(str(error))
    public = {
        name: value
        for name, value in vars(imported).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("tokenbucket")
    }
    private = re.compile(r"(?<!\w)_[a-zA-Z]\w*")
    found = {
        f"{place}: {name}"
        for one, value in public.items()
        if callable(value)
        for place, text in shown(one, value)
        for name in private.findall(text)
    }
    assert not found
