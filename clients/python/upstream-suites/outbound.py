"""Sends requests by two processes that share a limit, by this package and by others: `make compare-outbound`.

For each limiter it prints what was sent in proportion to what the limit allows, the commands that Redis
executed for each request, those inside scripts too, and with a limit that nobody reaches, requests a
second and processor time a request, in proportion to httpx without a limiter. Rounds of all are taken in
turns.
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
from typing import Any, NamedTuple

import httpx
import redis

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parents[2] / "testing"), str(HERE.parent / "tests")]
CAPACITY, PER_S = 20, 50
FREE = 1_000_000
ROUNDS, ROUND_S = 3, 3.0
PROCESSES = 2


# One process that sends, started as `outbound.py send NAME PORT URL PER_S`.


def tokenbucket_httpx(port: int, per_s: int) -> Any:
    import tokenbucket
    from tokenbucket.httpx import RateLimitTransport

    limit = tokenbucket.Limit(CAPACITY if per_s == PER_S else per_s, per_s)
    # On a loaded machine too, the server decides.
    server = tokenbucket.Server(f"redis://127.0.0.1:{port}", timeout_ms=20_000)
    return RateLimitTransport(tokenbucket.Limiter(server, limit, on_error="raise"))


def pyrate_limiter(port: int, per_s: int) -> Any:
    from pyrate_limiter import Duration, Limiter, Rate, RedisStateStore, StateBucket, TokenBucket
    from pyrate_limiter.extras.httpx_limiter import RateLimiterTransport

    rate = Rate(per_s, Duration.SECOND, burst=CAPACITY if per_s == PER_S else per_s)
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


def tokenbucket_langchain(port: int, per_s: int) -> Any:
    from tokenbucket import Limit, Server
    from tokenbucket.langchain import TokenBucketRateLimiter

    limit = Limit(CAPACITY if per_s == PER_S else per_s, per_s)
    server = Server(f"redis://127.0.0.1:{port}", timeout_ms=20_000)
    return ByAcquire(TokenBucketRateLimiter(server, limit, on_error="raise"))


def langchain_core(port: int, per_s: int) -> Any:
    from langchain_core.rate_limiters import InMemoryRateLimiter

    burst = CAPACITY if per_s == PER_S else per_s
    return ByAcquire(InMemoryRateLimiter(requests_per_second=per_s, max_bucket_size=burst))


LIMITERS: dict[str, Callable[[int, int], Any]] = {
    "tokenbucket.httpx": tokenbucket_httpx,
    "pyrate-limiter": pyrate_limiter,
    "tokenbucket.langchain": tokenbucket_langchain,
    "langchain-core": langchain_core,
}


def send(name: str, port: int, url: str, per_s: int) -> None:
    transport = LIMITERS[name](port, per_s) if name in LIMITERS else httpx.HTTPTransport()
    with httpx.Client(transport=transport, timeout=60) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        ends_at, began_s, count = time.monotonic() + ROUND_S, time.process_time(), 0
        while time.monotonic() < ends_at:
            client.get(url)
            count += 1
        print(count, time.process_time() - began_s, flush=True)


# The comparison.


def executed(port: int) -> int:
    with redis.Redis(port=port) as admin:
        stats: Any = admin.info("commandstats")
        return sum(stat["calls"] for name, stat in stats.items() if name != "cmdstat_info")


class Sent(NamedTuple):
    requests: int
    commands: float
    """Those of Redis, and processor time of the processes, for each request."""
    cpu_s: float


def sent(name: str, port: int, url: str, per_s: int) -> Sent:
    """What the processes sent in a round."""
    with redis.Redis(port=port) as admin:
        admin.flushall()
    command = [sys.executable, __file__, "send", name, str(port), url, str(per_s)]
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
    said = [one.communicate()[0].split() for one in started]
    count = sum(int(one) for one, _ in said)
    return Sent(count, (executed(port) - before) / count, sum(float(cpu_s) for _, cpu_s in said) / count)


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
        rounds: dict[str, list[tuple[float, ...]]] = {name: [] for name in LIMITERS}
        for _ in range(ROUNDS):
            bare = sent("httpx", server.port, url, FREE)
            for name in LIMITERS:
                limited, free = (sent(name, server.port, url, per_s) for per_s in (PER_S, FREE))
                over = limited.requests / (CAPACITY + PER_S * ROUND_S)
                row = (over, limited.commands, free.requests / bare.requests, free.cpu_s / bare.cpu_s)
                rounds[name].append(row)
        server.stop()
    columns = ("sent/allowed", "commands/request", "requests/s", "CPU/request")
    print(f"{'':<22}", *(f"{one:>17}" for one in columns))
    for name, seen in rounds.items():
        print(f"{name:<22}", *(f"{median(one):>17.2f}" for one in zip(*seen, strict=True)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["send"]:
        _, _, name, port, url, per_s = sys.argv
        send(name, int(port), url, int(per_s))
    else:
        main()
