"""Runs the tests of LangChain's in-memory rate limiter, from its released source, on token buckets.

Their limiter becomes ours, on a fake server whose clock is the one that the tests see. A bucket in memory
starts empty, so ours is emptied first. `deviations.py` says which tests fail, and why.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import langchain_core.rate_limiters
import pytest
from deviations import LANGCHAIN_DEVIATIONS, expect

from tokenbucket import Limit
from tokenbucket.langchain import TokenBucketRateLimiter
from tokenbucket.testing import FakeServer

fake = FakeServer()


class OnBuckets(TokenBucketRateLimiter):
    """Takes the arguments of LangChain's limiter; how often that looks means nothing here."""

    def __init__(
        self, *, requests_per_second: float, check_every_n_seconds: float, max_bucket_size: float
    ) -> None:
        super().__init__(fake, Limit(max_bucket_size, requests_per_second), async_server=fake.asyncio)
        self.limiter.charge(self.name, max_bucket_size)

    @property
    def available_tokens(self) -> float:
        return self.limiter.peek(self.name, 0).remaining


class FrozenTime:
    def tick(self, seconds: float) -> None:
        fake.advance(seconds)


@contextmanager
def freeze_time(_: str) -> Iterator[FrozenTime]:
    yield FrozenTime()


def pytest_configure() -> None:
    """What their tests import and have no use for here."""
    langchain_core.rate_limiters.InMemoryRateLimiter = OnBuckets  # type: ignore[assignment,misc]
    stand_in("freezegun", freeze_time=freeze_time)
    stand_in("blockbuster", BlockBuster=object)


def stand_in(name: str, **contents: Any) -> None:
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(contents)


@pytest.fixture
def blockbuster() -> Any:
    return types.SimpleNamespace(deactivate=lambda: None)


@pytest.fixture(autouse=True)
def _clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that time a call measure the time of the fake, exactly."""
    fake._buckets._begin_anew()
    monkeypatch.setattr(request.module, "time", types.SimpleNamespace(time=now))


def now() -> Decimal:
    return Decimal(f"{fake.monotonic():.6f}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    expect(LANGCHAIN_DEVIATIONS, items, name_of)


def name_of(item: pytest.Item) -> str:
    return item.name.partition("[")[0]
