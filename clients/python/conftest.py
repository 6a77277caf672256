"""The examples of methods use the names that those of their classes import."""

from __future__ import annotations

import asyncio

import pytest

import tokenbucket
from tokenbucket.testing import FakeServer

NAMES = {name: getattr(tokenbucket, name) for name in tokenbucket.__all__}
NAMES |= {"FakeServer": FakeServer, "asyncio": asyncio}


@pytest.fixture(autouse=True)
def imported(request: pytest.FixtureRequest) -> None:
    if (example := getattr(request.node, "dtest", None)) is not None:
        example.globs |= NAMES | example.globs
