"""Runs the tests of `limits`, from its released source, on the storages of this package.

Only what they are run on is replaced: each of their lists of storages is ours instead. The page says which
of them fail, and why. These alone may fail: one of them that passes, or is not there, is an error as well.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import tokenbucket.limits

sys.path.insert(0, str(Path(__file__).parents[3] / "testing"))

from services import Service, redis_server

PAGE = Path(__file__).parents[1] / "docs/flask-limiter.md"
DEVIATIONS = dict(re.findall(r"^\| `(Test\w+\.\w+)` \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE))


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
    if not DEVIATIONS or DEVIATIONS.keys() - map(name_of, items):
        raise pytest.UsageError(f"not all of these deviations are tests: {sorted(DEVIATIONS)}")
    for item in items:
        if reason := DEVIATIONS.get(name_of(item)):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def name_of(item: pytest.Item) -> str:
    """Their class and function, the same for threads and asyncio."""
    kind, function = item.nodeid.split("::")[-2:]
    return f"{kind.replace('Async', '')}.{function.partition('[')[0]}"
