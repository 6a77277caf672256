"""Limits of Celery tasks, by real workers: processes that are killed, and a broker that restarts."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.exceptions import ImproperlyConfigured

from launch import ask
from paths import PACKAGE
from services import Service, redis_server, wait_for
from tokenbucket import BadArgument, Denied, Limit
from tokenbucket.celery import LimitedTask
from tokenbucket.testing import FakeServer

# Celery takes seconds to start on a machine that is busy.
PATIENCE_S = 60


class Workers:
    """Some workers on a broker, and what their tasks have noted."""

    def __init__(self, broker: Service, folder: Path, pool: str, count: int, **env: str) -> None:
        self.broker = broker
        self.notes = redis.Redis(port=broker.port, db=1, decode_responses=True)
        self.app = Celery("tests", broker=f"redis://127.0.0.1:{broker.port}/0")
        env |= {
            "TASKS_URL": f"redis://127.0.0.1:{broker.port}",
            "PYTHONPATH": os.pathsep.join([str(PACKAGE / "tests"), os.environ.get("PYTHONPATH", "")]),
        }
        command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-P", pool, "-c", "4"]
        command += ["--without-mingle", "--without-gossip", "-l", "INFO", "-n"]
        self.each = [
            Service(f"w{number}", [*command, f"w{number}@test"], broker.port, folder, env)
            for number in range(count)
        ]

    def send(self, name: str, *arguments: Any, **options: Any) -> Any:
        return self.app.send_task(name, arguments, **options)

    def count(self, what: str) -> int:
        return int(self.notes.llen(what))

    def wait_for(self, what: str, count: int = 1) -> None:
        try:
            wait_for(lambda: self.count(what) >= count, what, PATIENCE_S)
        except TimeoutError as error:
            logs = "\n".join(one.output()[-3000:] for one in self.each)
            raise AssertionError(f"{what}: {self.count(what)} of {count}\n{logs}") from error

    def most_at_a_time(self, name: str) -> int:
        return max(int(count) for count in self.notes.lrange(f"at a time:{name}", 0, -1))

    def places(self, name: str) -> list[Any]:
        """Who has a place in flight: id, amount and milliseconds left."""
        holds: list[Any] = ask(self.broker, "TB.HOLDS", f"tb:celery:{name}:in_flight")
        return holds

    def stop(self) -> None:
        for one in self.each:
            if one.process:
                one.signal(signal.SIGTERM)
        for one in self.each:
            one.stop()
        self.app.close()


Start = Callable[..., Workers]


@contextmanager
def working(folder: Path, pool: str, count: int, **env: str) -> Iterator[Workers]:
    broker = redis_server(folder)
    broker.start()
    workers = Workers(broker, folder, pool, count, **env)
    try:
        for one in workers.each:
            one.launch()
        workers.wait_for("ready", count)
        yield workers
    finally:
        workers.stop()
        broker.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a broker and workers: `start("prefork", 2)`."""
    with ExitStack() as stack:
        yield lambda *what, **env: stack.enter_context(working(tmp_path, *what, **env))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """One for the tests that need no more, and have a task of their own."""
    with working(tmp_path_factory.mktemp("worker"), "threads", 1) as workers:
        yield workers


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_both_limits_hold_over_all_workers(start: Start, pool: str) -> None:
    workers = start(pool, 2)
    began = time.time()
    for number in range(44):
        workers.send("both", number)
    workers.wait_for("ended:both", 44)
    assert workers.most_at_a_time("both") <= 3
    times = sorted(float(at) for at in workers.notes.lrange("began:both", 0, -1))
    for count, at in enumerate(times, 1):
        assert count <= 4 + 20 * (at - began)
    wait_for(lambda: workers.places("both") == [], "the end of the last")


def test_tasks_that_wait_do_not_block_others(worker: Workers) -> None:
    for number in range(100):
        worker.send("hourly", number)
    worker.send("other")
    worker.wait_for("ended:other")
    assert worker.count("ended:hourly") == 1


def test_a_flood_comes_back_in_turn(worker: Workers) -> None:
    began = time.time()
    for number in range(200):
        worker.send("flood", number)
    worker.wait_for("ended:flood", 200)
    times = sorted(float(at) for at in worker.notes.lrange("began:flood", 0, -1))
    assert all(count <= 1 + 100 * (at - began) for count, at in enumerate(times, 1))
    # If all of them came back for the next token, it would be fifty times as many.
    assert int(worker.notes.get("put back:flood") or 0) < 2 * 200


def test_a_message_that_is_put_back_is_the_same(worker: Workers) -> None:
    for number in range(4):
        options = {"task_id": f"t{number}", "priority": 7, "headers": {"x": "y"}}
        worker.send("once", number, kwargs={"word": "w"}, **options)
    worker.wait_for("once", 4)
    noted = sorted(worker.notes.lrange("once", 0, -1))
    assert noted == [repr((f"t{number}", number, "w", 0, 7, "y")) for number in range(4)]
    assert int(worker.notes.get("put back:once") or 0) > 0


def test_a_name_of_its_own_is_a_limit_of_its_own(worker: Workers) -> None:
    for customer in ["ada", "bob", "ada"]:
        worker.send("by_customer", customer)
    worker.wait_for("ended:ada")
    worker.wait_for("ended:bob")
    wait_for(lambda: worker.notes.get("put back:by_customer"), "the second of one customer")
    assert worker.count("ended:ada") == 1


def test_a_run_gives_its_place_back_however_it_ends(start: Start) -> None:
    workers = start("prefork", 1)
    workers.send("fails", "last too long", soft_time_limit=1)
    workers.wait_for("lasts")
    for how in ["raise", "retry", "raise", "return"]:
        workers.send("fails", how)
    workers.wait_for("ended:fails", 6)  # one of them three times
    wait_for(lambda: workers.places("fails") == [], "the end of the last")
    assert workers.most_at_a_time("fails") == 1


def test_a_killed_process_gives_its_place_back(start: Start) -> None:
    workers = start("prefork", 1)
    workers.send("told", "end of the first")
    workers.wait_for("pids")
    first = workers.places("told")
    workers.send("told", "end of the second")
    # It runs for longer than the ttl: a place that is not renewed would be free.
    time.sleep(2.5)
    assert [place[0] for place in workers.places("told")] == [first[0][0]]
    assert workers.count("pids") == 1

    os.kill(int(workers.notes.lindex("pids", 0) or 0), signal.SIGKILL)
    workers.notes.set("running:told", 0)  # nobody has counted it down
    killed_at = time.monotonic()
    workers.wait_for("pids", 2)
    assert time.monotonic() - killed_at > 0.5, "the ttl since its last renewal"
    workers.notes.set("end of the second", 1)
    workers.wait_for("ended:told")
    assert workers.most_at_a_time("told") == 1


def test_each_delivery_of_a_message_has_a_place_of_its_own(start: Start) -> None:
    workers = start("prefork", 1)
    for _ in range(2):
        workers.send("told", "end", task_id="delivered twice")
    workers.wait_for("pids")
    wait_for(lambda: workers.notes.get("put back:told"), "the second delivery to be put back")
    assert workers.count("pids") == 1
    workers.notes.set("end", 1)
    workers.wait_for("ended:told", 2)
    assert workers.most_at_a_time("told") == 1


def test_a_restart_of_the_limits_server_loses_no_task_and_no_limit(start: Start, tmp_path: Path) -> None:
    limits = redis_server(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    limits.start()
    workers = start("prefork", 2, TASKS_LIMITS_URL=f"redis://127.0.0.1:{limits.port}")
    for number in range(20):
        workers.send("closed", number)
    workers.wait_for("ended:closed", 5)
    limits.stop()
    workers.send("closed", 20)
    workers.wait_for("degraded")
    limits.start()
    workers.wait_for("ended:closed", 21)
    assert workers.most_at_a_time("closed") <= 2
    limits.stop()


def task_of(app: Celery, **options: Any) -> Any:
    @app.task(base=LimitedTask, **options)  # type: ignore[untyped-decorator]
    def double(number: int) -> int:
        return 2 * number

    return double


def test_eager_tasks_and_functions_are_not_limited() -> None:
    with Celery("eager", broker="redis://127.0.0.1:1") as app:
        app.conf.task_always_eager = True
        double = task_of(app, limit=Limit(1, "1/h"), max_in_flight=1)
        assert [double.delay(number).get() for number in range(3)] == [0, 2, 4]
        assert [double(number) for number in range(3)] == [0, 2, 4]


def test_a_task_that_calls_itself_has_one_place(server: Service, admin: redis.Redis) -> None:
    with Celery("calls itself", broker=f"redis://127.0.0.1:{server.port}") as app:

        @app.task(base=LimitedTask, bind=True, max_in_flight=1)  # type: ignore[untyped-decorator]
        def factorial(self: Any, number: int) -> int:
            return number * self(number - 1) if number else 1

        assert run_as_a_worker(factorial) == 6
        assert factorial.apply((4,)).get() == 24


def run_as_a_worker(task: Any) -> Any:
    """What a worker does with a message, in this process."""
    task.push_request(id="1", called_directly=False, is_eager=False, retries=0, args=(3,), kwargs={})
    try:
        return task(3)
    finally:
        task.pop_request()


def test_without_a_limit_no_server_is_asked() -> None:
    with Celery("unlimited", broker="memory://") as app:
        assert run_as_a_worker(task_of(app)) == 6


def test_another_broker_needs_a_server_for_the_limit(server: Service, admin: redis.Redis) -> None:
    limit = Limit(1, "1/h")
    with Celery("other broker", broker="memory://") as app:
        with pytest.raises(ImproperlyConfigured, match="set server="):
            run_as_a_worker(task_of(app, limit=limit))
        url = f"redis://127.0.0.1:{server.port}"
        assert run_as_a_worker(task_of(app, name="a", limit=limit, server=url)) == 6
        assert admin.keys() == ["tb:celery:a:rate"]


def test_a_task_that_may_never_run_fails(server: Service, admin: redis.Redis) -> None:
    with Celery("suspended", broker=f"redis://127.0.0.1:{server.port}") as app:
        with pytest.raises(Denied):
            run_as_a_worker(task_of(app, name="a", limit=Limit(0, 1)))
        with pytest.raises(Denied):
            run_as_a_worker(task_of(app, name="b", max_in_flight=0))
    assert not admin.keys()


TEN = Limit(10, "10/s")
# As an environment or `task_annotations` have them, and the name in the error of a mistake.
OPTIONS: list[tuple[dict[str, Any], str]] = [
    *(({"limit": limit}, "limit") for limit in ("", 0, "10/m", 10, ("10", "10/s"), Limit(10, 0))),
    *(({"max_in_flight": count}, "max_in_flight") for count in ("", "many", "2.5", 2.5, -1, "-1")),
    *(({"max_in_flight": count}, "") for count in ("3", " 3 ", 3)),
    *(({"limit": TEN, "max_wait": wait}, "max_wait") for wait in ("", "long", "nan", -1)),
    *(({"limit": TEN, "max_wait": wait}, "") for wait in ("0.5", 0, None)),
    *(({"max_in_flight": 1, "hold_ttl": ttl}, "hold_ttl") for ttl in ("", "long", 0, "inf")),
    *(({"max_in_flight": 1, "hold_ttl": ttl}, "") for ttl in ("30", 1.5, None)),
    ({"limit": TEN, "on_error": "LOCAL"}, "on_error"),
    ({"limit": TEN, "prefix": None}, "prefix"),
]


@pytest.mark.parametrize(("options", "mistake"), OPTIONS, ids=repr)
def test_an_option_is_read_from_text_or_named(options: dict[str, Any], mistake: str) -> None:
    with Celery("options", broker="memory://") as app:
        task = task_of(app, server=FakeServer(), **options)
        with pytest.raises(BadArgument, match=f"^{mistake}: ") if mistake else nullcontext():
            assert run_as_a_worker(task) == 6


@pytest.mark.parametrize("broker", ["redis", "sentinel"])
def test_a_task_that_cannot_be_put_back_waits(
    server: Service, admin: redis.Redis, caplog: Any, broker: str
) -> None:
    url = f"redis://127.0.0.1:{server.port}"
    with Celery("no broker", broker=f"{broker}://127.0.0.1:1") as app:
        of_sentinel = {"password": "s3cret", "retry": None}
        app.conf.broker_transport_options = {"master_name": "m", "sentinel_kwargs": of_sentinel}
        task = task_of(app, name="a", limit=Limit(1, "2/s"), server=url, max_wait=0)
        began = time.monotonic()
        assert [run_as_a_worker(task) for _ in range(2)] == [6, 6]
        assert time.monotonic() - began > 0.45
        assert "a waits in its worker, not put back: " in caplog.text
        assert "password=" not in caplog.text
