"""What is published: the wheel, the README, and pages whose Python runs and whose tables are true."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import django.conf
import httpx
import pytest

import tokenbucket
from launch import Servers
from paths import PACKAGE, REPOSITORY
from services import Service

README = (PACKAGE / "README.md").read_text()
# LiteLLM has an environment and a test of its own.
RUN_HERE = [page for page in sorted((PACKAGE / "docs").iterdir()) if page.name != "litellm.md"]
PAGES = "".join([README, *(page.read_text() for page in RUN_HERE)])
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = FENCED.findall(PAGES)
# The indented lines, with which `pydoc tokenbucket` begins.
FIRST = textwrap.dedent("".join(re.findall(r"^(?: {4}.*)?\n", str(tokenbucket.__doc__), re.MULTILINE)))
SCRIPT = "tokenbucket/fallback.lua"
OF_PROJECT = [REPOSITORY / "README.md", *REPOSITORY.glob("docs/**/*.md")]


@pytest.fixture
def namespace() -> dict[str, Any]:
    return {"__name__": "readme"}


@pytest.mark.usefixtures("admin")
def test_its_python_runs(server: Service, namespace: dict[str, Any], own_nodes: Servers) -> None:
    """Each block alone, on the test's servers instead of the usual ports."""
    assert len(BLOCKS) == 19
    for block in BLOCKS:
        namespace |= run(block.replace("port=7000", f"port={own_nodes.nodes[0].port}"), server.port)
    namespace["cluster"].close()
    # Tokens flow in meanwhile.
    assert namespace["decision"].allowed
    assert 100_000 - 412 <= namespace["hold"].remaining["tokens"] <= 100_000
    assert namespace["hold"].remaining["inflight"] == 10
    caller = namespace["app"].test_client()
    responses = [caller.post("/login") for _ in range(6)]
    assert [response.status_code for response in responses] == [200] * 5 + [429]
    assert 0 < int(responses[-1].headers["Retry-After"]) <= 180
    answered = asyncio.run(call_fastapi(namespace["api"], namespace["searches"]))
    assert [response.status_code for response in answered] == [200] * 5 + [429]
    assert answered[0].headers["RateLimit"]
    assert answered[-1].headers["Retry-After"] == "1"


def test_the_first_lines_of_pydoc_run(server: Service, capsys: pytest.CaptureFixture[str]) -> None:
    run(FIRST, server.port)
    assert capsys.readouterr().out == "go on\n"


async def call_fastapi(app: Any, limiter: Any) -> list[httpx.Response]:
    """Asks from as many addresses of one network of IPv6, which one host has all of."""
    answered = []
    for host in range(6):
        transport = httpx.ASGITransport(app=app, client=(f"2001:db8::{host}", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            answered.append(await client.get("/search"))
    await limiter.aclose()
    return answered


def run(block: str, port: int) -> dict[str, Any]:
    """Runs it on the test's server instead of the usual port, and returns its names."""
    namespace: dict[str, Any] = {"__name__": "page"}
    block = block.replace("Redis()", f"Redis(port={port})").replace(":6379", f":{port}")
    exec(compile(block, "page", "exec"), namespace)
    for one in namespace.values():
        if isinstance(one, tokenbucket.Limiter | tokenbucket.JointLimiter):
            one.close()
    return namespace


@pytest.mark.parametrize("page", [page for page in OF_PROJECT if FENCED.search(page.read_text())], ids=str)
def test_a_page_of_the_project_runs(server: Service, capsys: pytest.CaptureFixture[str], page: Path) -> None:
    text = page.read_text()
    for block in FENCED.findall(text):
        run(block, server.port)
    for line in capsys.readouterr().out.splitlines():
        shown = not line.startswith("RateLimit") or line in text
        assert shown, f"{page.name} shows another {line}"


@pytest.mark.usefixtures("admin")
def test_a_customer_reads_when_the_plan_renews(server: Service, capsys: pytest.CaptureFixture[str]) -> None:
    page = (REPOSITORY / "docs/how-to/daily-quota.md").read_text()
    [block] = [block for block in FENCED.findall(page) if "billing_day" in block]
    run(block, server.port)
    words = r"7,500 of 10,000 requests left\. Your plan renews on [A-Z][a-z]+ 15\.\n"
    assert re.fullmatch(words, capsys.readouterr().out)


def test_one_account_of_several_is_taken_until_all_are_busy(
    server: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (REPOSITORY / "docs/how-to/one-of-several.md").read_text()
    [block] = FENCED.findall(page)
    for said in ["req:1 is sent\nreq:2 is sent\nreq:3 waits\n"] * 2:  # Sent again, each finds its hold.
        namespace = run(block, server.port)
        assert capsys.readouterr().out == said
    assert namespace["hold_one"]("req:1", 6000) != namespace["hold_one"]("req:2", 6000)


def test_its_django_settings_are_settings(namespace: dict[str, Any]) -> None:
    [block] = [block for block in BLOCKS if "REST_FRAMEWORK" in block]
    exec(block, namespace)
    settings = django.conf.UserSettingsHolder(django.conf.global_settings)
    settings.REST_FRAMEWORK = namespace["REST_FRAMEWORK"]
    for name in namespace["TOKENBUCKET"]:
        assert name in {"URL", "PREFIX", "ON_ERROR", "TIMEOUT_MS", "RETRY_EVERY_MS", "FALLBACK"}


def test_its_versions_are_those_that_are_tested() -> None:
    said = dict(re.findall(r"\| ([a-z][\w-]*) \| (\d[\w.]*) ", README.partition("## Tested with")[2]))
    said.pop("litellm")
    assert len(said) == 10
    assert {name: version(name) for name in said} == said


# The package.


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "-q", "--no-isolation", "--outdir", str(folder), str(PACKAGE)]
    subprocess.run(command, check=True)
    [archive] = folder.glob("*.tar.gz")
    assert archive.name == f"tokenbucket_redis-{tokenbucket.__version__}.tar.gz"
    [wheel] = folder.glob("*.whl")
    return wheel


def test_the_wheel_has_all_that_it_needs(wheel: Path) -> None:
    files = [path for path in (PACKAGE / "src").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    sources = {path.relative_to(PACKAGE / "src").as_posix() for path in files}
    assert {"tokenbucket/py.typed", SCRIPT} <= sources
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        assert sources <= names
        assert any(name.endswith("licenses/LICENSE") for name in names)
        [metadata] = [name for name in names if name.endswith("METADATA")]
        extras = re.findall("^Provides-Extra: (.*)$", packed.read(metadata).decode(), re.MULTILINE)
        assert set(re.findall(r"\[([a-z][\w-]+)\](?!\()", README)) <= set(extras)
        assert packed.read(SCRIPT) == (REPOSITORY / "clients/fallback.lua").read_bytes()


def test_the_version_is_the_modules() -> None:
    cargo = (REPOSITORY / "Cargo.toml").read_text()
    [version] = re.findall(r'^version = "(.*)"', cargo, re.MULTILINE)[:1]
    assert tokenbucket.__version__ == version


def test_the_core_needs_no_drop_in() -> None:
    code = (
        "import sys, tokenbucket, tokenbucket.asyncio, tokenbucket.testing\n"
        "drop_ins = {'limits', 'rest_framework', 'litellm', 'django', 'celery', 'httpx'}\n"
        "assert not drop_ins & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
