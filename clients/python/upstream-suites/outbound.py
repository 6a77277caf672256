"""Sends requests by two processes that share a limit, by this package and by others: `make compare-outbound`.

For each limiter it prints what was sent in proportion to what the limit allows, and the commands that Redis
executed for each request, those inside scripts too. Rounds of all are taken in turns.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import redis

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parents[2] / "testing"), str(HERE.parent / "tests")]
CAPACITY, PER_S = 20, 50
ROUNDS, ROUND_S = 3, 3.0
PROCESSES = 2


# One process that sends, started as `outbound.py send NAME PORT URL`.


def tokenbucket_httpx(port: int) -> Any:
    import tokenbucket
    from tokenbucket.httpx import RateLimitTransport

    limit = tokenbucket.Limit(CAPACITY, PER_S)
    # On a loaded machine too, the server decides.
    server = tokenbucket.Server(f"redis://127.0.0.1:{port}", timeout_ms=20_000)
    return RateLimitTransport(tokenbucket.Limiter(server, limit, on_error="raise"))


def pyrate_limiter(port: int) -> Any:
    from pyrate_limiter import Duration, Limiter, Rate, RedisStateStore, StateBucket, TokenBucket
    from pyrate_limiter.extras.httpx_limiter import RateLimiterTransport

    rate = Rate(PER_S, Duration.SECOND, burst=CAPACITY)
    store = RedisStateStore(redis.Redis(port=port), "pyrate")
    return RateLimiterTransport(Limiter(StateBucket([rate], store=store, algorithm=TokenBucket())))


class ByAcquire(httpx.BaseTransport):
    """As a chat model does: it acquires, then sends."""

    def __init__(self, limiter: Any) -> None:
        self.limiter = limiter
        self.transport = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.limiter.acquire(blocking=True)
        return self.transport.handle_request(request)


def tokenbucket_langchain(port: int) -> Any:
    from tokenbucket import Limit, Server
    from tokenbucket.langchain import TokenBucketRateLimiter

    limit = Limit(CAPACITY, PER_S)
    server = Server(f"redis://127.0.0.1:{port}", timeout_ms=20_000)
    return ByAcquire(TokenBucketRateLimiter(server, limit, on_error="raise"))


def langchain_core(port: int) -> Any:
    from langchain_core.rate_limiters import InMemoryRateLimiter

    return ByAcquire(InMemoryRateLimiter(requests_per_second=PER_S, max_bucket_size=CAPACITY))


LIMITERS: dict[str, Callable[[int], Any]] = {
    "tokenbucket.httpx": tokenbucket_httpx,
    "pyrate-limiter": pyrate_limiter,
    "tokenbucket.langchain": tokenbucket_langchain,
    "langchain-core": langchain_core,
}


def send(name: str, port: int, url: str) -> None:
    with httpx.Client(transport=LIMITERS[name](port), timeout=60) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        ends_at, count = time.monotonic() + ROUND_S, 0
        while time.monotonic() < ends_at:
            client.get(url)
            count += 1
        print(count, flush=True)


# The comparison.


def executed(port: int) -> int:
    with redis.Redis(port=port) as admin:
        stats: Any = admin.info("commandstats")
        return sum(stat["calls"] for name, stat in stats.items() if name != "cmdstat_info")


def sent(name: str, port: int, url: str) -> tuple[float, float]:
    """What a round sends, as a part of what is allowed, and the commands of Redis for each request."""
    with redis.Redis(port=port) as admin:
        admin.flushall()
    command = [sys.executable, __file__, "send", name, str(port), url]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, **pipes) for _ in range(PROCESSES)]
    for one in started:
        assert one.stdout
        assert one.stdout.readline() == "ready\n"
    before = executed(port)
    for one in started:
        assert one.stdin
        one.stdin.write("go\n")
        one.stdin.flush()
    count = sum(int(one.communicate()[0]) for one in started)
    return count / (CAPACITY + PER_S * ROUND_S), (executed(port) - before) / count


@contextmanager
def upstream() -> Iterator[str]:
    from serving import asgi

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"here"})

    with asgi(app) as url:
        yield url


def main() -> None:
    from services import redis_server

    for package in ("httpx", "pyrate-limiter", "langchain-core"):
        print(package, version(package))
    with tempfile.TemporaryDirectory() as folder, upstream() as url:
        server = redis_server(Path(folder))
        server.start()
        rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in LIMITERS}
        for _ in range(ROUNDS):
            for name, seen in rounds.items():
                seen.append(sent(name, server.port, url))
        server.stop()
    print(f"{'':<22}     sent/allowed  commands/request")
    for name, seen in rounds.items():
        print(f"{name:<22}", *(f"{median(one):>17.2f}" for one in zip(*seen, strict=True)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["send"]:
        _, _, name, port, url = sys.argv
        send(name, int(port), url)
    else:
        main()
