"""The Python of the project's README and documentation runs as it is pasted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tokenbucket
from paths import PACKAGE
from services import Service

ROOT = PACKAGE.parents[1]
PAGES = [page for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")] if "```python" in page.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_runs(server: Service, capsys: pytest.CaptureFixture[str], page: Path) -> None:
    text = page.read_text()
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        namespace: dict[str, object] = {"__name__": "page"}
        exec(compile(block.replace("Redis()", f"Redis(port={server.port})"), str(page), "exec"), namespace)
        for one in namespace.values():
            if isinstance(one, tokenbucket.Limiter | tokenbucket.JointLimiter):
                one.close()
    for line in capsys.readouterr().out.splitlines():
        shown = not line.startswith("RateLimit") or line in text
        assert shown, f"{page.name} shows another {line}"
