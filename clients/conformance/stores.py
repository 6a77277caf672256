"""The stores for rate limit libraries of Node beside their own Redis stores, in turns: `make stores`.

Prints requests for a second of the app's CPU, so that others on the machine matter little. Then what passes
at the edge of two windows and without a server, of a limit of 100 in 10 seconds.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "testing"))

from drivers import Driver
from flood import flood
from services import Service, redis_server

ADAPTERS = ["express-rate-limit", "fastify-rate-limit", "hono-rate-limiter"]
ROUNDS = 7
ROUND_S = 2
WINDOW_S = 10
LIMIT = 100


class App:
    """A process of its own, so that no store slows another."""

    def __init__(self, folder: Path, server: Service, framework: str, capacity: float, rate: str) -> None:
        self.driver = Driver("node", folder / f"{framework}.log", {})
        self.driver.do("server", name="s", client="ioredis", url=f"redis://127.0.0.1:{server.port}")
        self.driver.do("limiter", name="l", server="s", capacity=capacity, rate=rate)
        self.port = int(self.driver.do("http", on="l", framework=framework, name="all")["port"])

    def burst(self, count: int, within_s: float = 5) -> Counter[str]:
        """What so many requests at once are answered."""
        return asyncio.run(self._burst(count, within_s))

    async def _burst(self, count: int, within_s: float) -> Counter[str]:
        return Counter(await asyncio.gather(*(self._status(within_s) for _ in range(count))))

    async def _status(self, within_s: float) -> str:
        try:
            async with asyncio.timeout(within_s):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                status = (await reader.readline()).split()[1].decode()
                writer.close()
                return status
        except TimeoutError:
            return f"no reply in {within_s:.0f} s"


def cpu_s(app: App) -> float:
    """What the app has used: fields 14 and 15, the first of which come after a name in brackets."""
    fields = Path(f"/proc/{app.driver.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def per_cpu_second(folder: Path, server: Service, adapter: str) -> list[float]:
    """Requests for a second of CPU, of the library's own store and of ours."""
    apps = [App(folder, server, name, 1_000_000_000, "1000000000/s") for name in of(adapter)]
    rounds: list[list[float]] = [[], []]
    for at in range(ROUNDS + 1):
        for seen, app in zip(rounds, apps, strict=True):
            before = cpu_s(app)
            done = flood(app.port, folder, connections=50, seconds=ROUND_S)
            assert done.failed == done.refused == 0, done
            # The first round compiles.
            if at > 0:
                seen.append(done.passed / (cpu_s(app) - before))
    for app in apps:
        app.driver.stop()
    # The others were disturbed more.
    return [max(seen) for seen in rounds]


def at_the_edge(app: App) -> int:
    """How many pass at once, if the first request has opened a window that ends amid the others."""
    app.burst(1)
    opened = time.monotonic()
    time.sleep(WINDOW_S - 0.5)
    before = app.burst(LIMIT)
    time.sleep(max(WINDOW_S + 0.02 - (time.monotonic() - opened), 0))
    return before["200"] + app.burst(LIMIT)["200"]


def of(adapter: str) -> list[str]:
    return [f"{adapter} with its Redis store", adapter]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = redis_server(folder)
        server.start()
        for adapter in ADAPTERS:
            theirs, ours = per_cpu_second(folder, server, adapter)
            print(f"{adapter}: {theirs:.0f} requests/s with its own store, {ours:.0f} with ours", end="")
            print(f", {ours / theirs:.2f} times as many")
            apps = [App(folder, server, name, LIMIT, f"{LIMIT // WINDOW_S}/s") for name in of(adapter)]
            for app in apps:
                app.burst(LIMIT)  # compiles
            time.sleep(WINDOW_S + 1)
            for whose, app in zip(("own", "our"), apps, strict=True):
                print(f"  {whose} store: {at_the_edge(app)} pass at the edge of two windows")
            server.stop()
            for whose, app in zip(("own", "our"), apps, strict=True):
                print(f"  {whose} store: of {2 * LIMIT} without a server {dict(app.burst(2 * LIMIT))}")
                app.driver.stop()
            server.start()
        server.stop()


if __name__ == "__main__":
    main()
