"""Runs the tests of `limits`, from its released source, on the storages of this package.

Only what they are run on is replaced: each of their lists of storages is ours instead. `deviations.py`
says which of them fail, and why; one that is said to fail and passes is an error as well.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import tokenbucket.limits

sys.path.insert(0, str(Path(__file__).parents[3] / "testing"))

from deviations import DEVIATIONS, expect

from services import Service, redis_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    process = redis_server(tmp_path_factory.mktemp("redis"))
    process.start()
    yield process
    process.stop()


@pytest.fixture
def bucket_client(server: Service) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port) as client:
        client.flushall()
        yield client


@pytest.fixture
def uri(request: pytest.FixtureRequest, server: Service, bucket_client: redis.Redis) -> str:
    """Stands before their parameter of that name, which only says whether asyncio is meant."""
    return f"{request.param}://127.0.0.1:{server.port}"


@pytest.fixture
def fixture(bucket_client: redis.Redis) -> redis.Redis:
    return bucket_client


@pytest.fixture
def args(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {}


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Puts ours in the place of every list of storages, and lets fixtures say where they are."""
    asynchronous = "/aio/" in str(metafunc.definition.path) or "Async" in metafunc.definition.nodeid
    scheme = "async+tokenbucket" if asynchronous else "tokenbucket"
    kind: type[Any] = (
        tokenbucket.limits.AsyncTokenBucketStorage if asynchronous else tokenbucket.limits.TokenBucketStorage
    )
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = [name.strip() for name in str(mark.args[0]).split(",")]
        if "fixture" not in names:
            continue
        ours = {"uri": scheme, "args": {}, "expected_instance": kind, "fixture": None}
        parameters = [pytest.param(*(ours[name] for name in names), id=scheme)]
        object.__setattr__(mark, "args", (mark.args[0], parameters))
        object.__setattr__(mark, "kwargs", {"indirect": ["uri", "args", "fixture"]})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is not about a storage, and expects what is known to fail."""
    about = [item for item in items if "uri" in getattr(getattr(item, "callspec", None), "params", {})]
    about = [item for item in about if "fixture" in item.callspec.params]  # type: ignore[attr-defined]
    config.hook.pytest_deselected(items=[item for item in items if item not in about])
    items[:] = about
    expect(DEVIATIONS, items, name_of)


def name_of(item: pytest.Item) -> str:
    """Their class and function, the same for threads and asyncio."""
    kind, function = item.nodeid.split("::")[-2:]
    return f"{kind.replace('Async', '')}.{function.partition('[')[0]}"
