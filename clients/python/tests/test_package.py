"""What is published: the wheel, and the script in it."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tokenbucket
from paths import PACKAGE, REPOSITORY

SCRIPT = "tokenbucket/fallback.lua"


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
        assert set(re.findall(r"\[([a-z][\w-]+)\](?!\()", (PACKAGE / "README.md").read_text())) <= set(extras)
        assert packed.read(SCRIPT) == (REPOSITORY / "clients/fallback.lua").read_bytes()


def test_the_version_is_the_modules() -> None:
    cargo = (REPOSITORY / "Cargo.toml").read_text()
    [version] = re.findall(r'^version = "(.*)"', cargo, re.MULTILINE)[:1]
    assert tokenbucket.__version__ == version


def test_the_core_needs_no_drop_in() -> None:
    code = (
        "import sys, tokenbucket, tokenbucket.asyncio, tokenbucket.testing\n"
        "drop_ins = {'limits', 'rest_framework', 'litellm', 'django', 'celery', 'httpx', 'langchain_core'}\n"
        "assert not drop_ins & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
