"""What two Celery workers let through: by Celery's own `rate_limit`, by ours, and without a limit.

make compare-celery
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import redis
from celery import Celery
from celery.signals import worker_process_init, worker_ready

from services import Service, redis_server, wait_for
from tokenbucket import Limit
from tokenbucket.celery import LimitedTask

URL = os.environ.get("TASKS_URL", "redis://127.0.0.1:1")
notes = redis.Redis.from_url(f"{URL}/1")
app = Celery("celery_rates", broker=f"{URL}/0")
ROOMY = Limit(10**6, 10**6)
RATED_S = 15
MANY = 1000
WITHIN_S = 300


@worker_ready.connect  # type: ignore[untyped-decorator]
def is_ready(**_: Any) -> None:
    notes.rpush("pids", os.getpid())
    notes.incr("ready")


@worker_process_init.connect  # type: ignore[untyped-decorator]
def has_process(**_: Any) -> None:
    notes.rpush("pids", os.getpid())


def counted(name: str, **options: Any) -> Any:
    def task() -> None:
        notes.incr(f"ran:{name}")

    return app.task(name=name, **options)(task)


OPTIONS: dict[str, dict[str, Any]] = {
    'rate_limit="2/s"': {"rate_limit": "2/s"},
    'limit=Limit(1, "2/s")': {"base": LimitedTask, "limit": Limit(1, "2/s")},
    "unlimited": {},
    "limit": {"base": LimitedTask, "limit": ROOMY},
    "max_in_flight": {"base": LimitedTask, "max_in_flight": 1000},
    "limit, max_in_flight": {"base": LimitedTask, "limit": ROOMY, "max_in_flight": 1000},
}
TASKS = {name: counted(name, **options) for name, options in OPTIONS.items()}


def ran(name: str) -> int:
    return int(notes.get(f"ran:{name}") or 0)


def cpu_s() -> float:
    """What the processes of the workers have computed so far: the same however busy the machine is."""
    stats = [
        Path(f"/proc/{int(pid)}/stat").read_text().split(") ")[1].split()
        for pid in notes.lrange("pids", 0, -1)
    ]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


def send(name: str, count: int) -> int:
    """How many will have run then."""
    last = ran(name) + count
    for _ in range(count):
        TASKS[name].delay()
    return last


def cpu_ms_a_task(name: str) -> float:
    before = cpu_s()
    last = send(name, MANY)
    wait_for(lambda: ran(name) >= last, name, WITHIN_S)
    return (cpu_s() - before) * 1000 / MANY


def passed_a_second(name: str) -> float:
    send(name, 100)  # more than can pass
    wait_for(lambda: ran(name) >= 4, name, WITHIN_S)
    began, before = time.monotonic(), ran(name)
    time.sleep(RATED_S)
    return (ran(name) - before) / (time.monotonic() - began)


def main() -> None:
    print(f"celery {version('celery')}, kombu {version('kombu')}, 2 workers with 2 processes each")
    rounds = [{name: cpu_ms_a_task(name) for name in list(TASKS)[2:]} for _ in range(4)][1:]
    for name in rounds[0]:
        cpu_ms = median(one[name] for one in rounds)
        ratio = median(one[name] / one["unlimited"] for one in rounds)
        print(f"{name:24} {cpu_ms:6.2f} ms of CPU a task, {ratio:.2f} times unlimited")
    for name in list(TASKS)[:2]:
        print(f"{name:24} {passed_a_second(name):6.1f} tasks a second")
        app.control.purge()


def start_workers(folder: Path, stack: ExitStack) -> str:
    """The URL of a broker that two workers are ready at."""
    server = redis_server(folder)
    stack.callback(server.stop)
    server.start()
    url = f"redis://127.0.0.1:{server.port}"
    for number in range(2):
        what = ["-A", "celery_rates", "worker", "-c", "2", "-n", f"w{number}@rates"]
        command = [sys.executable, "-m", "celery", *what]
        env = {"TASKS_URL": url, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        worker = Service(f"w{number}", command, server.port, folder, env)
        stack.callback(worker.stop)
        worker.launch()
    with redis.Redis.from_url(f"{url}/1") as seen:
        wait_for(lambda: seen.get("ready") == b"2", "the workers", WITHIN_S)
    return url


if __name__ == "__main__":
    if "TASKS_URL" in os.environ:
        main()
    else:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = start_workers(folder, stack)
            subprocess.run([sys.executable, __file__], env=os.environ | {"TASKS_URL": url}, check=True)
