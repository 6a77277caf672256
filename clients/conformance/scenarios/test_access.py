"""Each package works with no more rights than the page on access gives, and refuses nothing silently."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conftest import Package, StartNodes, documented_rights, info, until_waiting
from launch import ask
from services import Service

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/access.md"


def documented_rules(package: Package, version: str) -> list[str]:
    """The words of the page's command that makes the user, and what its driver needs."""
    text = PAGE.read_text()
    line = re.search(r"^ACL SETUSER api .*$", text, re.MULTILINE)
    row = re.search(r"^\| its driver, when it connects \|.*$", text, re.MULTILINE)
    assert line, f"no user in {PAGE.name}"
    assert row, f"no driver in {PAGE.name}"
    setinfo, ioredis, database, _name, cluster = re.findall(r"`(\+[^`]*)`", row[0].replace("\\|", "|"))
    rules = [line[0]]
    rules += [setinfo] * (tuple(map(int, version.split(".")[:2])) >= (7, 2))
    rules += [ioredis] * (package.client.library == "ioredis")
    rules += [cluster if package.client.in_cluster else database]
    return " ".join(rules).split()


@pytest.mark.also_in_clusters
def test_the_documented_user_may_do_all_that_a_package_does(package: Package, server: Service) -> None:
    ask(server, *documented_rules(package, info(server)["redis_version"]))
    url = f"redis://api:secret@127.0.0.1:{server.port}"
    where = {"cluster": [url]} if package.client.in_cluster else {"url": f"{url}/1"}
    package.limit(server, capacity=10, rate="1/h", **where)
    assert package.take(cost=4)["allowed"]
    package.do("charge", amount=1)
    package.do("give", amount=1)
    package.do("hold", amount=6, ttl_ms=60_000)
    waits = package.begin("take", max_wait_ms=60_000)
    until_waiting(server, 1)
    package.do("settle", used=5)
    decision = waits.result()
    assert (decision["allowed"], decision["degraded"]) == (True, False)
    # What `reset`, `take_up_to`, batches, `reserve` and renewals send.
    bucket = ["tb:user", "10", "1"]
    for call in (
        ["DEL", "tb:user"],
        ["TB.TAKEUPTO", *bucket, "5"],
        ["TB.RESERVE", *bucket, "1", "100"],
        ["TB.RENEW", *bucket, "1000", "id"],
        ["TB.MRENEW", "1", "1000", "id", *bucket],
    ):
        assert ask(server, "ACL", "DRYRUN", "api", *call) == "OK", call
    assert refused(server) == []


@pytest.mark.parametrize("by", ["module", "script"])
@pytest.mark.only("python", "node", "node-redis-5", "go", "rust")
def test_the_documented_user_follows_a_slot_that_moves(
    package: Package, start_nodes: StartNodes, by: str
) -> None:
    nodes = start_nodes()
    for node in nodes.nodes:
        version = info(node)["redis_version"]
        ask(node, *documented_rules(package, version))
        if by == "script":
            ask(node, "ACL", "SETUSER", "api", *documented_rights(version))
    old, new, _ = nodes.nodes
    url = f"redis://api:secret@127.0.0.1:{old.port}"
    package.limit(old, capacity=10, rate="1/h", cluster=[url], timeout_ms=5000, by=by)
    tag = nodes.name_on(old)
    assert package.take(tag)["remaining"] == 9
    nodes.begin_to_move_slot_of(f"tb:{tag}", new)
    for _ in range(2):
        decision = package.take(f"{tag}new")
        assert (decision["allowed"], decision["degraded"]) == (True, False)
    if by == "module":
        assert package.do("hold", name=f"{tag}new", amount=4, ttl_ms=60_000)["allowed"]
        assert package.do("settle", used=1)["remaining"] == 7
    assert [refused(node) for node in nodes.nodes] == [[], [], []]


def refused(server: Service) -> list[tuple[str, str]]:
    """What the server refused to users without the right."""
    entries = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in ask(server, "ACL", "LOG")]
    return [(entry["reason"], entry["object"]) for entry in entries]
