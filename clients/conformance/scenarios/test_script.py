"""Without the module the script decides, with no more rights than the documentation gives."""

from __future__ import annotations

import re
from pathlib import Path

from conftest import Package, StartServer, info
from launch import ask

PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/without-the-module.md"


def documented_rights(version: str) -> list[str]:
    """The ACL rules of the page's row, and what it adds for Redis 6.0."""
    rules = re.search(r"`(\+evalsha [^`]*)`", PAGE.read_text())
    assert rules, f"no rule with +evalsha in {PAGE.name}"
    return rules[1].replace("\\|", "|").split() + ["+pexpireat"] * version.startswith("6.0.")


def test_the_documented_rights_suffice(package: Package, start_server: StartServer) -> None:
    server = start_server(with_module=False)
    ask(server, "ACL", "SETUSER", "app", "on", ">secret", *documented_rights(info(server)["redis_version"]))
    package.server(server, url=f"redis://app:secret@127.0.0.1:{server.port}", fallback="script")
    package.limiter(capacity=10, rate="10/h")
    done = package.many(count=20, concurrency=5)
    assert (done["allowed"], done["degraded"], done["errors"]) == (10, 0, {})
