"""Tasks for workers of the tests, which write down what they do in database 1 of the broker."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from celery import Celery
from celery.signals import task_retry, worker_ready

from tokenbucket import Denied, Limit, Server
from tokenbucket.celery import LimitedTask

URL = os.environ.get("TASKS_URL", "redis://127.0.0.1:1")
notes = redis.Redis.from_url(f"{URL}/1")
app = Celery("celery_tasks", broker=f"{URL}/0")
app.conf.broker_connection_retry_on_startup = True
LIMITS_URL = os.environ.get("TASKS_LIMITS_URL", f"{URL}/0")
# Which a machine that is busy does not exceed.
PATIENT = Server(LIMITS_URL, timeout_ms=20_000)


@worker_ready.connect  # type: ignore[untyped-decorator]
def is_ready(sender: Any, **_: Any) -> None:
    notes.rpush("ready", sender.hostname)


@task_retry.connect  # type: ignore[untyped-decorator]
def is_put_back(sender: Any, reason: Any, **_: Any) -> None:
    notes.incr(f"put back:{sender.name}")
    if isinstance(reason.exc, Denied) and reason.exc.decision.degraded:
        notes.rpush("degraded", sender.name)


@contextmanager
def running(name: str) -> Iterator[None]:
    """Notes when a run begins, and how many there are then."""
    notes.rpush(f"began:{name}", time.time())
    notes.rpush(f"at a time:{name}", notes.incr(f"running:{name}"))
    try:
        yield
    finally:
        notes.decr(f"running:{name}")
        notes.rpush(f"ended:{name}", time.time())


def define(name: str, seconds: float = 0, **options: Any) -> None:
    """A task that takes so long, whatever its arguments are."""

    def work(*_: Any) -> None:
        with running(name):
            time.sleep(seconds)

    app.task(name=name, **options)(work)


LIMITED: dict[str, Any] = {"base": LimitedTask, "server": PATIENT}
CLOSED: dict[str, Any] = {"base": LimitedTask, "server": LIMITS_URL, "on_error": "closed"}
define("both", 0.02, **LIMITED, limit=Limit(4, "20/s"), max_in_flight=3)
define("flood", **LIMITED, limit=Limit(1, "100/s"))
define("hourly", **LIMITED, limit=Limit(1, "1/h"))
define("other")
define("closed", 0.1, **CLOSED, limit=Limit(5, "10/s"), max_in_flight=2)


@app.task(name="told", **LIMITED, max_in_flight=1, hold_ttl=1.5, acks_late=True)  # type: ignore[untyped-decorator]
def told(key: str) -> None:
    """Runs until `key` is set."""
    notes.rpush("pids", os.getpid())
    with running("told"):
        while not notes.exists(key):
            time.sleep(0.01)


@app.task(name="once", **LIMITED, limit=Limit(1, "5/s"), bind=True, max_retries=0)  # type: ignore[untyped-decorator]
def once(self: Any, number: int, *, word: str) -> None:
    request = self.request
    headers = request.headers or {}
    note = [number, word, request.retries, request.delivery_info["priority"], headers.get("x")]
    notes.rpush("once", repr((request.id, *note)))


@app.task(name="fails", **LIMITED, max_in_flight=1, hold_ttl=600, bind=True, default_retry_delay=0)  # type: ignore[untyped-decorator]
def fails(self: Any, how: str) -> None:
    if how == "last too long":
        notes.rpush("lasts", 1)
        time.sleep(600)
    with running("fails"):
        if how == "retry" and self.request.retries < 2:
            raise self.retry()
        if how == "raise":
            raise ValueError


class ByCustomer(LimitedTask):
    limit = Limit(1, "1/h")
    server = PATIENT

    def limit_name(self, customer: str) -> str:
        return f"customer:{customer}"


@app.task(name="by_customer", base=ByCustomer)  # type: ignore[untyped-decorator]
def by_customer(customer: str) -> None:
    with running(customer):
        pass
