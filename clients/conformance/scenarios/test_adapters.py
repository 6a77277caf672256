"""Stores for rate limit libraries of Node: as an application has them, over HTTP."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import Package, get
from services import Service

ADAPTERS = ["express-rate-limit", "express-rate-limit-7", "fastify-rate-limit", "hono-rate-limiter"]

pytestmark = pytest.mark.only("ioredis")


def serve(package: Package) -> dict[str, int]:
    """The ports of apps that are limited by each library, with our store, each under a name of its own."""
    package.limiter(capacity=10, rate="10/h")
    http = {
        adapter: package.driver.do("http", on="l", framework=adapter, name=adapter) for adapter in ADAPTERS
    }
    return {adapter: int(reply["port"]) for adapter, reply in http.items()}


def statuses(*ports: int, count: int) -> Counter[int]:
    """Of so many requests, ten at a time, to each port in turn."""
    with ThreadPoolExecutor(10) as pool:
        return Counter(status for status, _ in pool.map(get, [*ports] * (count // len(ports))))


def test_two_processes_share_the_limit_exactly(package: Package, server: Service) -> None:
    processes = [package, package.another()]
    for process in processes:
        process.server(server, timeout_ms=5000)
    ours, theirs = map(serve, processes)
    for adapter in ADAPTERS:
        ports = ours[adapter], theirs[adapter]
        assert statuses(*ports, count=40) == {200: 10, 429: 30}, adapter
        for port in ports:
            _, headers = get(port)
            assert (headers["RateLimit-Limit"], headers["RateLimit-Remaining"]) == ("10", "0"), adapter
            # A token in six minutes.
            assert 0 < int(headers["Retry-After"]) <= 360, adapter
            assert headers["RateLimit-Reset"] == headers["Retry-After"], adapter
