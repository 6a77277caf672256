"""The README: its Python runs, its tables are true."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

import django.conf
import pytest
from deviations import DEVIATIONS

import tokenbucket
from servers import PACKAGE
from services import Service

README = (PACKAGE / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def namespace() -> dict[str, Any]:
    return {"__name__": "readme"}


@pytest.mark.usefixtures("admin")
def test_its_python_runs(server: Service, namespace: dict[str, Any]) -> None:
    """In one program from top to bottom, on the test's server instead of the usual port."""
    assert len(BLOCKS) == 9
    for block in BLOCKS:
        block = block.replace("Redis()", f"Redis(port={server.port})").replace(":6379", f":{server.port}")
        exec(compile(block, "README.md", "exec"), namespace)
    # Tokens flow in meanwhile.
    assert namespace["decision"].allowed
    assert 100_000 - 412 <= namespace["hold"].remaining["tokens"] <= 100_000
    assert namespace["hold"].remaining["inflight"] == 10
    for one in namespace.values():
        if isinstance(one, tokenbucket.Limiter | tokenbucket.JointLimiter):
            one.close()
    response = namespace["app"].test_client().get("/")
    assert response.status_code == 404, "an app without routes"


def test_its_django_settings_are_settings(namespace: dict[str, Any]) -> None:
    [block] = [block for block in BLOCKS if "REST_FRAMEWORK" in block]
    exec(block, namespace)
    settings = django.conf.UserSettingsHolder(django.conf.global_settings)
    settings.REST_FRAMEWORK = namespace["REST_FRAMEWORK"]
    for name in namespace["TOKENBUCKET"]:
        assert name in {"URL", "PREFIX", "ON_ERROR", "TIMEOUT_MS", "RETRY_EVERY_MS", "FALLBACK"}


def test_its_deviations_are_those_that_are_expected() -> None:
    rows = re.findall(r"^\| `(Test\w+\.\w+)` \| (.*) \|$", README, re.MULTILINE)
    said: dict[str, str] = {}
    for name, reason in rows:
        said[name] = list(said.values())[-1] if reason == "the same" else reason
    assert said == DEVIATIONS


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
    }
    assert {name: version(name) for name in said} == said
