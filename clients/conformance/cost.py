"""Times a take by each package beside the same command of the bare client, in turns: `make cost`.

Timing belongs on a quiet machine, so it is no scenario. Prints microseconds a call, and their ratio. For one
call in flight the server has a core of its own. Without it, the kernel's choice of cores made the bare client
of one run three times as fast as that of the next.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).resolve().parents[2] / "testing"))

from drivers import Driver, DriverError
from services import Service, redis_server

ROUNDS = 15
ROUND_S = 0.15
LIMIT = {"capacity": 1_000_000_000, "rate": "1000000000/s"}
COMMAND = ["TB.TAKE", "tb:user", "1000000000", "1000000000/s", "1"]


def per_call_us(driver: Driver, callers: int, count: int, bare: bool) -> float:
    words = {"on": "l", "server": "s", "count": count, "concurrency": callers, "command": COMMAND}
    return float(driver.do("cost", bare=bare, **words)["per_call_us"])


def measure(driver: Driver, callers: int) -> tuple[float, float]:
    """Microseconds a call, of the bare client and of the package."""
    first = max(per_call_us(driver, callers, 100 * callers, bare) for bare in (True, False))
    count = max(int(ROUND_S * 1e6 / first) // callers, 1) * callers
    rounds = [[per_call_us(driver, callers, count, bare) for bare in (True, False)] for _ in range(ROUNDS)]
    bare, package = (median(one) for one in zip(*rounds, strict=True))
    return bare, package


def confine(pid: int, cores: set[int]) -> None:
    """Each thread has an affinity of its own, and those begun later inherit it."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def place(server: int, driver: int, callers: int) -> None:
    cores = os.sched_getaffinity(0)
    first = {min(cores)}
    apart = callers == 1 and cores != first
    confine(server, first if apart else cores)
    confine(driver, cores - first if apart else cores)


def main() -> None:
    languages = os.environ.get("LANGUAGES", "python,node,go,rust").split(",")
    clients = os.environ.get("CLIENTS", "").split(",")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = redis_server(folder)
        server.start()
        print(f"{'client':<22} {'in flight':>9} {'bare':>8} {'package':>8} {'ratio':>6}")
        for language in languages:
            driver = Driver(language, folder / f"{language}.log")
            for client in driver.clients:
                if clients == [""] or client in clients:
                    report(driver, client, server)
            driver.stop()
        server.stop()


def report(driver: Driver, client: str, server: Service) -> None:
    driver.do("server", name="s", client=client, url=f"redis://127.0.0.1:{server.port}")
    driver.do("limiter", name="l", server="s", **LIMIT)
    for callers in (1, 50):
        place(server.pid, driver.pid, callers)
        try:
            bare, package = measure(driver, callers)
        except DriverError as error:
            print(f"{client:<22} {error}")
            return
        print(f"{client:<22} {callers:>9} {bare:>8.1f} {package:>8.1f} {package / bare:>6.2f}", flush=True)


if __name__ == "__main__":
    main()
