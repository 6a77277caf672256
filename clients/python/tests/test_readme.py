"""The README and the pages of docs/: their Python runs, their tables are true."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import django.conf
import pytest
from deviations import DEVIATIONS, LANGCHAIN_DEVIATIONS

import tokenbucket
from launch import Servers
from paths import PACKAGE
from services import Service

README = (PACKAGE / "README.md").read_text()
PAGES = "".join([README, *(page.read_text() for page in sorted((PACKAGE / "docs").iterdir()))])
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGES, re.MULTILINE | re.DOTALL)


@pytest.fixture
def namespace() -> dict[str, Any]:
    return {"__name__": "readme"}


@pytest.mark.usefixtures("admin")
def test_its_python_runs(server: Service, namespace: dict[str, Any], tmp_path: Path) -> None:
    """In one program from top to bottom, on the test's servers instead of the usual port."""
    assert len(BLOCKS) == 16
    with Servers(tmp_path, cluster=True) as nodes:
        run_blocks(server.port, nodes.nodes[0].port, namespace)


def run_blocks(port: int, port_of_cluster: int, namespace: dict[str, Any]) -> None:
    for block in BLOCKS:
        block = block.replace("Redis()", f"Redis(port={port})").replace(":6379", f":{port}")
        block = block.replace("port=6379", f"port={port_of_cluster}")
        exec(compile(block, "README.md", "exec"), namespace)
    # Tokens flow in meanwhile.
    assert namespace["decision"].allowed
    assert 100_000 - 412 <= namespace["hold"].remaining["tokens"] <= 100_000
    assert namespace["hold"].remaining["inflight"] == 10
    for one in namespace.values():
        if isinstance(one, tokenbucket.Limiter | tokenbucket.JointLimiter):
            one.close()
    namespace["cluster"].close()
    caller = namespace["app"].test_client()
    assert [caller.post("/login").status_code for _ in range(6)] == [200] * 5 + [429]


def test_its_django_settings_are_settings(namespace: dict[str, Any]) -> None:
    [block] = [block for block in BLOCKS if "REST_FRAMEWORK" in block]
    exec(block, namespace)
    settings = django.conf.UserSettingsHolder(django.conf.global_settings)
    settings.REST_FRAMEWORK = namespace["REST_FRAMEWORK"]
    for name in namespace["TOKENBUCKET"]:
        assert name in {"URL", "PREFIX", "ON_ERROR", "TIMEOUT_MS", "RETRY_EVERY_MS", "FALLBACK"}


def test_its_deviations_are_those_that_are_expected() -> None:
    assert deviations_said(r"Test\w+\.\w+") == DEVIATIONS
    assert deviations_said(r"test_\w+") == LANGCHAIN_DEVIATIONS


def deviations_said(test: str) -> dict[str, str]:
    rows = re.findall(rf"^\| `({test})` \| (.*) \|$", PAGES, re.MULTILINE)
    said: dict[str, str] = {}
    for name, reason in rows:
        said[name] = list(said.values())[-1] if reason == "the same" else reason
    return said


def versions_said() -> dict[str, str]:
    rows = README.partition("## Tested with")[2]
    return dict(re.findall(r"\| ([a-z][\w-]*) \| (\d[\w.]*) ", rows))


def test_its_versions_are_those_that_are_tested() -> None:
    said = versions_said()
    said.pop("litellm")
    assert set(said) == {
        "redis",
        "valkey",
        "limits",
        "flask-limiter",
        "slowapi",
        "djangorestframework",
        "opentelemetry-api",
        "celery",
        "gevent",
        "httpx",
        "langchain-core",
    }
    assert {name: version(name) for name in said} == said
